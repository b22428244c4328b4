"""Lookup tables: an elementwise chain from 8-bit to 8-bit tensors becomes 256 entries.

Quantized activations (dequantize, Sigmoid, quantize) are such chains: one load per element then
replaces the arithmetic.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.dtype import I8, U8
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import CONVERSIONS, run_code
from sardonyx.passes.replace import attribute_to, replace_value

_BYTES: Final = (U8, I8)
_ENTRIES: Final = 256


def tabulate(graph: Graph, chain: Node) -> bool:
    """Replace a chain that maps each 8-bit element to another; return whether it could."""
    y = chain.outputs[0]
    if y.tensor.dtype not in _BYTES or not any(i.op in CONVERSIONS for i in chain.attrs["code"]):
        return False
    inputs = [v for v in chain.inputs if v is not None]
    # All operands but one must be scalars: else an entry would depend on the position.
    tensors = [v for v in inputs if any(d != 1 for d in v.tensor.dims)]
    if len(tensors) != 1:
        return False
    x, static = tensors[0], y.tensor.static
    if x.tensor.dtype not in _BYTES or x.tensor.dims != y.tensor.dims:
        return False
    # A smaller tensor costs less than computing the table.
    if x.is_const or (static is not None and np.prod(static, dtype=np.int64) < _ENTRIES):
        return False
    builder = Builder(graph, graph.scope)
    looked_up = builder.QLookup(x, _table(builder, chain, x), domain=INTERNAL, like=y)
    attribute_to(builder.made, chain)
    replace_value(graph, y, looked_up)
    graph.remove(chain)
    return True


def _table(builder: Builder, chain: Node, x: Value) -> Value:
    """The table: the chain applied to all 256 inputs, now if its other operands are constant."""
    code, all_bytes = chain.attrs["code"], np.arange(_ENTRIES, dtype=np.uint8)
    # Entry i is for the byte i: a signed input indexes with its bits as unsigned.
    ramp = builder.const(all_bytes.view(x.tensor.dtype.np))
    operands = [ramp if v is x else v for v in chain.inputs]
    consts = [c for v in operands if v is not None and (c := v.const) is not None]
    if len(consts) == len(operands):
        return builder.const(run_code(code, [c.read().reshape(c.shape[-1:]) for c in consts]))
    return builder.Chain(*operands, domain=INTERNAL, code=code)
