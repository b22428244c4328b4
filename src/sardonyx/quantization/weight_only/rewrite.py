"""Replaces MatMul and Gather of the graph by ops over quantized weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import InternalError
from sardonyx.graph.const import ArrayConst, Const
from sardonyx.graph.constant_values import constant
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops import lookup
from sardonyx.quantization.weight_only.stored import StoredLayout

_ACCURACY: Final = "accuracy_level"


@frozen
class NameSuffixes:
    """Suffixes that the names of a node and its weight get."""

    node: str
    tensors: tuple[str, str, str]  # of codes, scales and zero points
    matmul: str = ""  # of the MatMul after a DequantizeLinear


def matmul_weight(node: Node) -> Const | None:
    """Return the constant matrix [K, N], or [1, ..., K, N], that a MatMul multiplies by."""
    if node.op.name != "MatMul" or node.op.domain:
        return None
    const = input_of(node, 1).const
    if const is None or len(const.shape) < 2 or any(d != 1 for d in const.shape[:-2]):
        return None
    return const if const.count and const.dtype.name in ("f32", "f16", "bf16") else None


def replace_matmul(
    node: Node,
    layout: StoredLayout,
    consts: Sequence[Const],
    names: NameSuffixes,
    accuracy_level: int = 0,
) -> Node:
    """Replace a MatMul; return the node that reads the quantized weight."""
    weight = input_of(node, 1)
    values = [_value(c, weight.name + n) for c, n in zip(consts, names.tensors, strict=False)]
    x, y = input_of(node, 0), node.outputs[0]
    out = Value(y.name, y.fact)
    rank = len(weight.tensor.shape or ())
    needs_reshape = rank > 2 and _rank(x) < rank
    product = Value(f"{y.name}_pre_reshape" if needs_reshape else y.name)
    if not needs_reshape:
        product = out
    if layout.is_qdq:
        new = _dequantized_matmul(node, layout, (x, values), names, product)
    else:
        attrs = {"K": layout.rows, "N": layout.columns, "bits": layout.bits}
        attrs |= {"block_size": layout.block, _ACCURACY: accuracy_level}
        inputs = [x, *values]
        new = _add(node, "MatMulNBits", inputs, product, _suffixed(node, names.node), attrs)
    if needs_reshape:
        _restore_shape(node, (x, product), out, rank, layout.columns)
    _swap(node, out)
    return new


def _dequantized_matmul(
    node: Node,
    layout: StoredLayout,
    operands: tuple[Value, list[Value]],
    names: NameSuffixes,
    product: Value,
) -> Node:
    x, values = operands
    weight = Value(f"{values[0].name}_output")
    attrs = {"axis": 0, "block_size": layout.block}
    name = _suffixed(node, names.node)
    new = _add(node, "DequantizeLinear", values, weight, name, attrs)
    _add(node, "MatMul", [x, weight], product, _suffixed(node, names.matmul), {})
    return new


def replace_gather(
    node: Node, axis: int, block: int, consts: Sequence[Const], tensors: Sequence[str]
) -> Node:
    """Replace a Gather by a GatherBlockQuantized."""
    table = input_of(node, 0)
    values = [_value(c, table.name + n) for c, n in zip(consts, tensors, strict=False)]
    inputs = [values[0], input_of(node, 1), *values[1:]]
    y = node.outputs[0]
    out = Value(y.name, y.fact)
    gather_axis = node.attrs["axis"]
    attrs = {"gather_axis": gather_axis, "quantize_axis": axis, "block_size": block, "bits": 4}
    new = _add(node, "GatherBlockQuantized", inputs, out, _suffixed(node, "_Q4"), attrs)
    _swap(node, out)
    return new


def replace_bnb4(node: Node, consts: Sequence[Const], block: int, quant_type: int) -> Node:
    """Replace a MatMul by a MatMulBnb4."""
    weight = input_of(node, 1)
    k, n = weight.tensor.static or (0, 0)
    names = (f"{weight.name}_Bnb4", f"{weight.name}_absmax")
    values = [_value(c, name) for c, name in zip(consts, names, strict=True)]
    y = node.outputs[0]
    out = Value(y.name, y.fact)
    attrs = {"K": k, "N": n, "block_size": block, "quant_type": quant_type}
    inputs = [input_of(node, 0), *values]
    new = _add(node, "MatMulBnb4", inputs, out, _suffixed(node, "_Bnb4"), attrs)
    _swap(node, out)
    return new


def _value(const: Const, name: str) -> Value:
    return constant(const, name)


def _suffixed(node: Node, suffix: str) -> str:
    return node.name + suffix if node.name else ""


def _rank(value: Value) -> int:
    """Return the rank of a value; 0 if it is not known."""
    fact = value.fact
    return fact.rank if isinstance(fact, Fact) and fact.shape is not None else 0


def _add(
    node: Node, name: str, inputs: Sequence[Value], output: Value, title: str, attrs: dict[str, Any]
) -> Node:
    """Add a node to the graph of another one."""
    domain = MICROSOFT if name in ("MatMulNBits", "GatherBlockQuantized", "MatMulBnb4") else ""
    op = lookup(domain, name)
    if op is None:
        raise InternalError(f"no op {domain}.{name} to build")
    new = node.graph.add(op, inputs, {**op.defaults, **attrs}, [output], title)
    new.annotations = node.annotations
    return new


def _swap(node: Node, out: Value) -> None:
    """Make readers of a node's output read `out`, and remove the node."""
    node.graph.replace(node.outputs[0], out)
    node.graph.remove(node)


def _restore_shape(node: Node, ends: tuple[Value, Value], out: Value, rank: int, n: int) -> None:
    """Add the nodes that give a product the shape which a weight of higher rank broadcasts to.

    The shape is that of x but for its last size, which becomes n, after as many sizes of 1 as the
    weight has axes more than x. A vector x counts as a matrix.
    """
    x, product = ends
    base = f"{node.name}_{out.name}"

    def const(array: Any, name: str) -> Value:
        return constant(ArrayConst(np.array(array, np.int64)), f"{base}_{name}")

    def add(op: str, name: str, *inputs: Value, **attrs: Any) -> Value:
        result = Value(f"{base}_{name}")
        _add(node, op, inputs, result, f"{base}_{name}_node", attrs)
        return result

    zero, one, two = const(0, "zero"), const(1, "one"), const(2, "two")
    vector, zeros = const([1], "vector"), const([0], "zeros")
    shape = add("Shape", "shape", x)
    rank_x = add("Gather", "rank", add("Shape", "length", shape), zero, axis=0)
    matrix_rank = add("Max", "matrix_rank", rank_x, two)
    missing = add("Max", "missing", add("Sub", "less", const(rank, "of_weight"), matrix_rank), zero)
    count = add("Reshape", "count", missing, vector)
    ones = add("ConstantOfShape", "ones", count, value=ArrayConst(np.array([1], np.int64)))
    last = add("Reshape", "last", add("Sub", "before_last", rank_x, one), vector)
    rows = add("Slice", "rows", shape, zeros, last, zeros)
    target = add("Concat", "target", ones, rows, const([n], "columns"), axis=0)
    _add(node, "Reshape", [product, target], out, f"{base}_reshape", {})
