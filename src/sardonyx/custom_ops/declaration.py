"""Attributes and types of custom op declarations, converted to and from those of `Op`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import ALL, STRING, DType, by_ort_name
from sardonyx.graph.op import Attr, required

_KINDS: Final = {int: "int", float: "float", str: "bytes", list[int]: "ints",
                 list[float]: "floats", list[str]: "strings"}  # fmt: skip


def attribute(default: Any) -> Any:
    """Return an attribute as `Op` declares it: its default, or a required one of a kind."""
    kind = next((text for type_, text in _KINDS.items() if type_ == default), None)
    if kind is not None:
        return required(kind)
    if isinstance(default, Attr):
        return default
    if isinstance(default, bool) or not isinstance(default, (int, float, str, tuple, list)):
        raise InvalidArgument(
            f"an attribute is a number, a text, or a list of them, not {default!r}",
            hint="bools are 0 or 1 in ONNX",
        )
    return encoded(tuple(default) if isinstance(default, list) else default)


def encoded(value: Any) -> Any:
    """Return an attribute value as models store it: strings are bytes."""
    if isinstance(value, tuple):
        return tuple(encoded(v) for v in value)
    return value.encode() if isinstance(value, str) else value


def decoded(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as user functions get them: strings as str, tuples as lists."""
    return {k: _decoded(v) for k, v in attrs.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_decoded(v) for v in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def type_constraints(slots: str, explained: Mapping[str, str]) -> dict[str, frozenset[DType]]:
    """Return the element types that each type name in a declaration allows.

    A name of one or two capital letters that `explained` does not have allows any type.
    """
    constraints: dict[str, frozenset[DType]] = {}
    for word in slots.split():
        name = word.rstrip("?*").partition(":")[2]
        if not name:
            raise InvalidArgument(f"{word!r} has no type", hint="write it as x:float or x:T")
        if name in explained:
            constraints[name] = frozenset(_dtype(n) for n in explained[name].split())
        elif len(name) < 3 and name.isupper():
            constraints[name] = ALL
        else:
            constraints[name] = frozenset((_dtype(name),))
    return constraints


def _dtype(name: str) -> DType:
    dtype = by_ort_name(name)
    if dtype is None:
        raise InvalidArgument(
            f"{name!r} is not an element type of ONNX",
            hint=f"as in {', '.join(sorted(d.ort_name for d in ALL if d is not STRING)[:8])}, ...",
        )
    return dtype
