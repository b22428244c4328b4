"""Chains from bytes to bytes become tables of 256 entries."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.dtype import I8, U8
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import CONVERSIONS, run_code

_BYTES: Final = (U8, I8)
_ENTRIES: Final = 256


def tabulate(graph: Graph, chain: Node) -> bool:
    """Puts a table in the place of a chain that maps each byte to a byte; True if it does."""
    y = chain.outputs[0]
    if y.tensor.dtype not in _BYTES or not any(i.op in CONVERSIONS for i in chain.attrs["code"]):
        return False
    inputs = [v for v in chain.inputs if v is not None]
    many = [v for v in inputs if any(d != 1 for d in v.tensor.dims)]
    if len(many) != 1 or many[0].tensor.dtype not in _BYTES or many[0].tensor.dims != y.tensor.dims:
        return False
    x, static = many[0], y.tensor.static
    if x.is_const or (static is not None and np.prod(static, dtype=np.int64) < _ENTRIES):
        return False
    builder = Builder(graph, graph.scope)
    made = builder.QLookup(x, _table(builder, chain, x), domain=INTERNAL, like=y)
    for node in builder.made:
        node.marks, node.name = chain.marks, chain.name
    made.name, y.name = y.name, ""
    graph.replace(y, made)
    graph.remove(chain)
    return True


def _table(builder: Builder, chain: Node, x: Value) -> Value:
    """What the chain makes of every byte; known now, if all else that it reads is."""
    code, all_bytes = chain.attrs["code"], np.arange(_ENTRIES, dtype=np.uint8)
    ramp = builder.const(all_bytes.view(x.tensor.dtype.np))
    operands = [ramp if v is x else v for v in chain.inputs]
    consts = [None if v is None else v.const for v in operands]
    if all(c is not None for c in consts):
        arrays = [c.read().reshape(c.shape[-1:]) for c in consts if c is not None]
        return builder.const(run_code(code, arrays))
    made: Value = builder.Chain(*operands, domain=INTERNAL, code=code)
    return made
