"""Session options embedded in a model: the JSON of its metadata entry `ort_config`."""

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
_SECTION: Final = "session_options"
_NAMES: Final = frozenset((
    "intra_op_num_threads", "inter_op_num_threads", "execution_mode", "graph_optimization_level",
    "enable_profiling",
))  # fmt: skip


def are_enabled(kwargs: dict[str, Any]) -> bool:
    """Return whether embedded options are used: by argument, else by environment variable."""
    if "read_config_from_model" in kwargs:
        return int(kwargs["read_config_from_model"]) == 1
    return os.environ.get(_VARIABLE) == "1"


def merged(source: ModelBytes, options: SessionOptions) -> SessionOptions:
    """Return the options, overridden by those embedded in the model."""
    if source.model is not None:
        return options
    text = dict(read_record(source).metadata).get(_KEY)
    if text is None:
        return options
    result = options.__copy__()
    for name, value in _parsed(text).items():
        if name not in _NAMES:
            logger.warning("the model's %s names the option %s, which is ignored", _KEY, name)
            continue
        try:
            setattr(result, name, bool(value) if name == "enable_profiling" else value)
        except (TypeError, ValueError):
            raise InvalidArgument(f"the model's {_KEY} sets {name} to {value!r}") from None
    return result


def metadata(source: ModelBytes) -> dict[str, str]:
    """Return the model's metadata for a provider selection delegate."""
    if source.model is not None:
        return {}
    record = read_record(source)
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
    import json  # few models embed options

    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidArgument(f"the model's {_KEY} is not JSON: {text[:80]!r}") from None
    section = config.get(_SECTION, {}) if isinstance(config, dict) else None
    if not isinstance(section, dict):
        raise InvalidArgument(f"the model's {_KEY} has no object under {_SECTION!r}")
    return section
