"""What a model says of itself before it is compiled: session options among its metadata."""

from __future__ import annotations

import os
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.errors import InvalidArgument
from sardonyx.load import read_record
from sardonyx.load.source import ModelBytes
from sardonyx.ort.options import SessionOptions

_VARIABLE: Final = "ORT_LOAD_CONFIG_FROM_MODEL"
_KEY: Final = "ort_config"
_PART: Final = "session_options"
_NAMES: Final = frozenset((
    "intra_op_num_threads", "inter_op_num_threads", "execution_mode", "graph_optimization_level",
    "enable_profiling",
))  # fmt: skip


def is_wanted(kwargs: dict[str, Any]) -> bool:
    """Whether the model's own options are to be used, by argument or else by environment."""
    if "read_config_from_model" in kwargs:
        return int(kwargs["read_config_from_model"]) == 1
    return os.environ.get(_VARIABLE) == "1"


def with_config_of(given: ModelBytes, options: SessionOptions) -> SessionOptions:
    """The options with those that the model carries put over them."""
    if given.model is not None:
        return options
    text = dict(read_record(given).metadata).get(_KEY)
    if text is None:
        return options
    made = options.__copy__()
    for name, value in _parsed(text).items():
        if name not in _NAMES:
            logger.warning("the model's %s names the option %s, which is ignored", _KEY, name)
            continue
        try:
            setattr(made, name, bool(value) if name == "enable_profiling" else value)
        except (TypeError, ValueError):
            raise InvalidArgument(f"the model's {_KEY} sets {name} to {value!r}") from None
    return made


def described(given: ModelBytes) -> dict[str, str]:
    """What a delegate that chooses devices is told of the model."""
    if given.model is not None:
        return {}
    record = read_record(given)
    assert record.graph is not None
    return {
        "producer_name": record.producer_name,
        "producer_version": record.producer_version,
        "domain": record.domain,
        "model_version": str(record.model_version),
        "doc_string": record.doc_string,
        "graph_name": record.graph.name,
        "graph_description": record.graph.doc_string,
        **dict(record.metadata),
    }


def _parsed(text: str) -> dict[str, Any]:
    import json  # few models carry options

    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgument(f"the model's {_KEY} is not JSON: {text[:80]!r}") from None
    found = parts.get(_PART, {}) if isinstance(parts, dict) else None
    if not isinstance(found, dict):
        raise InvalidArgument(f"the model's {_KEY} has no object under {_PART!r}")
    return found
