"""Tensors as JSON: lists of elements, flat or nested as the shape is."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import prod
from typing import Any, Final

import numpy as np

from sardonyx.serve.protocol.datatypes import Array, Datatype
from sardonyx.serve.protocol.tensors import string_array
from sardonyx.serve.refusals import BadRequest

# The types of elements that a kind of datatype takes. They are checked before numpy sees the list:
# of one long string among numbers it makes an array of that many characters per element.
_ACCEPTED: Final[Mapping[str, set[type]]] = {"b": {bool}, "i": {int}, "u": {int}, "O": {str}}
_NUMBERS: Final[set[type]] = {int, float}


def from_json(name: str, datatype: Datatype, shape: tuple[int, ...], data: Any) -> Array:
    """Return a tensor from a list of its elements, flat or nested."""
    if not isinstance(data, list):
        raise BadRequest(f"{name} has neither a list `data` nor the parameter binary_data_size")
    elements, kinds = _flattened(name, data)
    kind = datatype.dtype.kind
    if not kinds <= _ACCEPTED.get(kind, _NUMBERS):
        what = "strings" if datatype.is_bytes else f"numbers of the datatype {datatype.name}"
        raise BadRequest(f"the data of {name} are not {what}")
    if len(elements) != prod(shape):
        raise BadRequest(f"{name} has {len(elements)} elements, but the shape {list(shape)}")
    if datatype.is_bytes:
        return string_array(elements, shape)
    try:
        # 16-bit floats are rounded from doubles, of which too large ones become infinity.
        with np.errstate(over="ignore"):
            exact = datatype.dtype if kind in "biu" else np.dtype(np.float64)
            return np.array(elements, exact).astype(datatype.dtype, copy=False).reshape(shape)
    except OverflowError:
        raise BadRequest(
            f"an element of {name} is outside of the range of {datatype.name}"
        ) from None


def _flattened(name: str, data: list[Any]) -> tuple[list[Any], set[type]]:
    """Return the elements of nested lists in order, and their types; without recursion."""
    while list in (kinds := set(map(type, data))):
        if len(kinds) > 1 or len(set(map(len, data))) > 1:
            raise BadRequest(f"the data of {name} are ragged")
        data = list(chain.from_iterable(data))
    return data, kinds


def to_json(array: Array) -> list[Any]:
    """Return the elements of a tensor as a flat list."""
    if array.dtype.itemsize == 2 and array.dtype.kind not in "iu":
        array = array.astype(np.float32)  # bfloat16 has no Python number of its own
    flat: list[Any] = array.ravel().tolist()
    return flat
