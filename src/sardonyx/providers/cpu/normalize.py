"""Normalizations on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sardonyx.graph.dtype import BF16, F32, F64, FLOATS
from sardonyx.graph.graph import Node, input_of, optional_input
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.inference import axes_of, axis_of
from sardonyx.place.lowered import Call, Lowered
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import IN_PLACE, Lowering, Lowerings, direct

_NONE: Final = 9  # the number of an output that no node has

# Kernels may run in place: they compute the statistics of a group of elements before they write the
# first of them. LRN may not: it reads neighbouring channels.


def _typed(lower: Callable[..., Lowered | No], **options: object) -> Lowering:
    """Restrict a lowering to floats, and to float64 for all inputs or none."""

    def checked(node: Node) -> Lowered | No:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.tensor.dtype not in FLOATS:
                return No(f"no kernel for {value.tensor.dtype}")
        if len({v.tensor.dtype is F64 for v in node.inputs if v is not None}) > 1:
            return No("no kernel that mixes float64 with narrower types")
        return lower(node, **options)

    return checked


def _layer(node: Node, kernel: str, saved: tuple[int, int]) -> Call | No:
    """Normalize over the last axes; `saved` are the outputs of mean and reciprocal deviation."""
    x, y = input_of(node, 0), node.outputs[0]
    if any(v.tensor.dtype not in (F32, BF16) for v in node.outputs[1:]):
        return No("no kernel saves statistics in these types")
    axis = axis_of(node.attrs["axis"], x.tensor.rank)
    inputs = (x, node.inputs[1], optional_input(node, 2))
    shares = IN_PLACE if y.tensor.dtype is x.tensor.dtype else ()
    return Call(kernel, inputs, (axis, *saved, _NONE), (node.attrs["epsilon"],), shares=shares)


def _skip(node: Node, kernel: str, slots: tuple[int, int, int]) -> Call:
    """Normalize input + skip; `slots` are the inputs of scale, bias and the bias of the sum.

    A row of the sum is computed in scratch memory, so any output may alias input or skip.
    """
    x, skip = input_of(node, 0), node.inputs[1]
    scale, bias, sum_bias = (optional_input(node, slot) if slot else None for slot in slots)
    ints, floats = (x.tensor.rank - 1, 1, 2, 3), (node.attrs["epsilon"],)
    shares = tuple((i, out) for out in (0, 3) if out < len(node.outputs) for i in (0, 3))
    return Call(kernel, (x, scale, bias, skip, sum_bias), ints, floats, shares=shares)


def _batch(node: Node) -> Call | No:
    if node.attrs["training_mode"]:
        return No("no kernel for training")
    axis = 1 if input_of(node, 0).tensor.rank > 1 else -1
    return Call("batch_norm", node.inputs, (axis,), (node.attrs["epsilon"],), shares=IN_PLACE)


def _group(node: Node) -> Call:
    groups = node.attrs.get("num_groups", 0)  # InstanceNormalization: a group per channel
    return Call("group_norm", node.inputs, (groups,), (node.attrs["epsilon"],), shares=IN_PLACE)


def _lp(node: Node) -> Call:
    axis = axis_of(node.attrs["axis"], input_of(node, 0).tensor.rank)
    return Call("lp_norm", node.inputs, (axis, node.attrs["p"]), shares=IN_PLACE)


def _mean_variance(node: Node) -> Call:
    axes = axes_of(node.attrs["axes"], input_of(node, 0).tensor.rank)
    return Call("mean_variance", node.inputs, (sum(1 << a for a in axes),), shares=IN_PLACE)


_LRN: Final = direct("local_response", ("size",), ("alpha", "beta", "bias"))
_RMS: Final = partial(_typed, _layer, kernel="rms_norm")

LOWERINGS: Final[Lowerings] = {
    ("", "BatchNormalization"): _typed(_batch),
    ("", "GroupNormalization"): _typed(_group),
    ("", "InstanceNormalization"): _typed(_group),
    ("", "LayerNormalization"): _typed(_layer, kernel="layer_norm", saved=(1, 2)),
    ("", "LpNormalization"): _typed(_lp),
    ("", "LRN"): _typed(_LRN),
    ("", "MeanVarianceNormalization"): _typed(_mean_variance),
    ("", "RMSNormalization"): _RMS(saved=(_NONE, _NONE)),
    ("", "SimplifiedLayerNormalization"): _RMS(saved=(_NONE, 1)),
    (MICROSOFT, "SkipLayerNormalization"): _typed(_skip, kernel="layer_norm", slots=(2, 3, 4)),
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _typed(
        _skip, kernel="rms_norm", slots=(2, 0, 3)
    ),
}
