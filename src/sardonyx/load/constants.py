"""Constant nodes: whichever of their attributes is set becomes a constant."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx._native import AttributeRecord
from sardonyx.errors import InvalidGraph
from sardonyx.graph.const import Const, Held
from sardonyx.load.attributes import Attributes

_KINDS: Final = {
    "value": 4, "sparse_value": 11, "value_float": 1, "value_floats": 6, "value_int": 2,
    "value_ints": 7, "value_string": 3, "value_strings": 8,
}  # fmt: skip


def constant_node(attributes: Attributes, records: dict[str, AttributeRecord]) -> Const:
    """The constant that a Constant node stands for."""
    # Other tools leave marks beside the value, and onnxruntime does not refuse them.
    given = [name for name in records if name in _KINDS]
    if len(given) != 1:
        raise InvalidGraph(
            f"a Constant has one of {', '.join(_KINDS)}, and here is {list(records)}"
        )
    name, record = given[0], records[given[0]]
    if record.type != _KINDS[name]:
        raise InvalidGraph(f"the attribute {name} of Constant has the wrong type")
    value: Any = attributes.raw(record)
    if isinstance(value, Const):
        return value
    if name.startswith("value_string"):
        texts = value if isinstance(value, tuple) else (value,)
        cells = np.empty(len(texts), object)
        cells[:] = [t.decode("utf-8", "replace") for t in texts]
        return Held(cells.reshape(() if name == "value_string" else (-1,)))
    return Held(np.array(value, np.float32 if "float" in name else np.int64))
