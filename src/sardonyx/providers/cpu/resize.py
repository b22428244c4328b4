"""Resizing on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, given, optional
from sardonyx.ops.rules import axes_of
from sardonyx.place.provider import No
from sardonyx.program.call import Call, Lowered, Reshaped
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.move import fact_of, follows

_MODES: Final = {b"nearest": 0, b"linear": 1, b"cubic": 2}
_TRANSFORMS: Final = {
    b"half_pixel": 0,
    b"half_pixel_symmetric": 1,
    b"pytorch_half_pixel": 2,
    b"align_corners": 3,
    b"asymmetric": 4,
    b"tf_half_pixel_for_nn": 5,
}
_ROUNDINGS: Final = {b"round_prefer_floor": 0, b"round_prefer_ceil": 1, b"floor": 2, b"ceil": 3}
_MAX_AXES: Final = 3  # that are mixed
_AS_SIZES_SAY: Final = 0.0  # a scale that the kernel works out


def resize(node: Node) -> Lowered | No:
    x, attrs = given(node, 0), node.attrs
    if why := _unknown(node):
        return No(why)
    scales, sizes = (_present(fact_of(optional(node, slot))) for slot in (2, 3))
    rank = x.tensor.rank
    axes = tuple(range(rank)) if attrs["axes"] is None else axes_of(attrs["axes"], rank)
    factors = [1.0] * rank
    if scales is not None and scales.const is not None:
        for axis, factor in zip(axes, scales.const.read().tolist(), strict=True):
            factors[axis] = factor
    else:
        for axis in axes:
            factors[axis] = _AS_SIZES_SAY
    mixed = [
        a for a in axes if factors[a] != 1 and x.tensor.dims[a] != node.outputs[0].tensor.dims[a]
    ]
    if attrs["mode"] != b"nearest" and len(mixed) > _MAX_AXES:
        return No(f"no kernel mixes along {len(mixed)} axes")
    if sizes is None and scales is None:
        return No("neither scales nor sizes are known")
    if x.tensor.dims == node.outputs[0].tensor.dims and not any(f > 0 and f != 1 for f in factors):
        return Reshaped(x)
    ints = (
        _MODES[attrs["mode"]],
        _TRANSFORMS[attrs["coordinate_transformation_mode"]],
        _ROUNDINGS[attrs["nearest_mode"]],
        attrs["exclude_outside"],
    )
    return Call("resize", (x,), ints, (attrs["cubic_coeff_a"], *factors), writes_rows=True)


def _present(fact: Fact | None) -> Fact | None:
    return None if fact is None or fact.dims == (0,) else fact


def _unknown(node: Node) -> str:
    """What the kernel lacks for this node; empty if nothing."""
    x, out, attrs = given(node, 0).tensor, node.outputs[0].tensor, node.attrs
    scales, sizes = (_present(fact_of(optional(node, slot))) for slot in (2, 3))
    if attrs["mode"] != b"nearest" and x.dtype is not F32:
        return f"no kernel mixes {x.dtype}"
    if attrs["antialias"]:
        return "no kernel with antialias"
    if attrs["coordinate_transformation_mode"] not in _TRANSFORMS:
        return "no kernel crops"
    if attrs["keep_aspect_ratio_policy"] != b"stretch" and scales is None:
        return "no kernel keeps the aspect ratio"
    if scales is not None and scales.const is None:
        return "the scales are known only when it runs"
    if not follows(out.dims, x.dims, None if sizes is None else sizes.sym):
        return "the sizes are known only when it runs"
    return ""


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {("", "Resize"): resize}
