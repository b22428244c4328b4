"""Normalizations on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Final

from sardonyx.graph.dtype import BF16, F16, F32, F64
from sardonyx.graph.graph import Node, optional_input
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

_FLOATS: Final = frozenset((F32, F64, F16, BF16))
_NONE: Final = 9  # an output that no node has
_IN_PLACE: Final = ((0, 0),)  # statistics are taken before anything is written over what they cover


def _refusal(node: Node) -> No | None:
    """Why no kernel takes these types."""
    used = (*node.inputs, *node.outputs)
    for dtype in (v.tensor.dtype for v in used if v is not None):
        if dtype not in _FLOATS:
            return No(f"no kernel for {dtype}")
    kinds = {v.tensor.dtype is F64 for v in node.inputs if v is not None}
    return No("no kernel that mixes float64 with narrower types") if len(kinds) > 1 else None


def _layer(node: Node, row: str, saved: tuple[int, int]) -> Call | No:
    """Over the last axes; `saved` are the outputs of the mean and of the reciprocal deviation."""
    if refusal := _refusal(node):
        return refusal
    x = node.inputs[0]
    assert x is not None
    if any(v.tensor.dtype not in (F32, BF16) for v in node.outputs[1:]):
        return No("no kernel saves statistics in these types")
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    inputs = (x, node.inputs[1], optional_input(node, 2))
    shares = _IN_PLACE if node.outputs[0].tensor.dtype is x.tensor.dtype else ()
    return Call(row, inputs, (axis, *saved, _NONE), (node.attrs["epsilon"],), shares=shares)


def _skip(node: Node, row: str, order: tuple[int, int, int]) -> Call | No:
    """Of a sum; `order` are the inputs of the scale, the bias and the bias of the sum."""
    if refusal := _refusal(node):
        return refusal
    x, skip = node.inputs[:2]
    assert x is not None
    scale, bias, sum_bias = (optional_input(node, slot) if slot else None for slot in order)
    operands = (x, scale, bias, skip, sum_bias)
    ints, floats = (x.tensor.rank - 1, 1, 2, 3), (node.attrs["epsilon"],)
    # A row is added up in memory of its own before the outputs get theirs.
    shares = tuple((taken, made) for made in (0, 3) if made < len(node.outputs) for taken in (0, 3))
    return Call(row, operands, ints, floats, shares=shares)


def _batch(node: Node) -> Call | No:
    x = node.inputs[0]
    assert x is not None
    if node.attrs["training_mode"]:
        return No("no kernel for training")
    if refusal := _refusal(node):
        return refusal
    axis = 1 if x.tensor.rank > 1 else -1
    epsilon = (node.attrs["epsilon"],)
    return Call("batch_norm", node.inputs, (axis,), epsilon, shares=_IN_PLACE)


def _group(node: Node) -> Call | No:
    if refusal := _refusal(node):
        return refusal
    groups = node.attrs.get("num_groups", 0)
    epsilon = (node.attrs["epsilon"],)
    return Call("group_norm", node.inputs, (groups,), epsilon, shares=_IN_PLACE)


def _lp(node: Node) -> Call | No:
    x = node.inputs[0]
    assert x is not None
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    return _refusal(node) or Call("lp_norm", (x,), (axis, node.attrs["p"]), shares=_IN_PLACE)


def _mean_variance(node: Node) -> Call | No:
    x = node.inputs[0]
    assert x is not None
    axes = axes_of(node.attrs["axes"], x.tensor.rank)
    chosen = (sum(1 << a for a in axes),)
    return _refusal(node) or Call("mean_variance", (x,), chosen, shares=_IN_PLACE)


def _local_response(node: Node) -> Call | No:
    a = node.attrs
    call = Call("local_response", node.inputs, (a["size"],), (a["alpha"], a["beta"], a["bias"]))
    return _refusal(node) or call


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "BatchNormalization"): _batch,
    ("", "GroupNormalization"): _group,
    ("", "InstanceNormalization"): _group,
    ("", "LayerNormalization"): partial(_layer, row="layer_norm", saved=(1, 2)),
    ("", "LpNormalization"): _lp,
    ("", "LRN"): _local_response,
    ("", "MeanVarianceNormalization"): _mean_variance,
    ("", "RMSNormalization"): partial(_layer, row="rms_norm", saved=(_NONE, _NONE)),
    ("", "SimplifiedLayerNormalization"): partial(_layer, row="rms_norm", saved=(_NONE, 1)),
    ("com.microsoft", "SkipLayerNormalization"): partial(_skip, row="layer_norm", order=(2, 3, 4)),
    ("com.microsoft", "SkipSimplifiedLayerNormalization"): partial(
        _skip, row="rms_norm", order=(2, 0, 3)
    ),
}
