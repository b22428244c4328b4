"""Older forms of the conversions."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dtype import by_ort_name
from sardonyx.load.upgrade import OldNode, upgrade
from sardonyx.ops.builder import Builder


@upgrade("Cast", below=6)
def type_by_name(b: Builder, node: OldNode) -> Any:
    """Before opset 6 the type was named: FLOAT, INT64."""
    name = node.attr("to", b"")
    dtype = by_ort_name(name.decode(errors="replace").lower()) if isinstance(name, bytes) else None
    if dtype is None:
        raise InvalidGraph(f"to is {name!r}, which names no type that Cast converts to")
    return b.Cast(*node.inputs, to=dtype.onnx)


UPGRADES: Final = type_by_name
