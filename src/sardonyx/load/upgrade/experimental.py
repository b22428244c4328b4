"""Ops of the first opsets that were never more than experiments; models still have them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.load.upgrade import ANY, OldNode, upgrade
from sardonyx.ops.builder import Builder

_END: Final = np.iinfo(np.int64).max


def _times(b: Builder, x: Any, factor: float) -> Value:
    made: Value = b.Mul(x, b.CastLike(b.const(np.float32(factor)), x))
    return made


def _needed(node: OldNode, *names: str) -> list[Any]:
    missing = [n for n in names if n not in node.attrs]
    if missing:
        raise InvalidGraph(f"{node.op_type} needs the attribute {missing[0]}")
    return [node.attrs[n] for n in names]


@upgrade("Affine", below=ANY)
def affine(b: Builder, node: OldNode) -> Any:
    x = node.input(0)
    beta = b.CastLike(b.const(np.float32(node.attr("beta", 0.0))), x)
    return b.Add(_times(b, x, node.attr("alpha", 1.0)), beta)


@upgrade("Scale", below=ANY)
def scale(b: Builder, node: OldNode) -> Any:
    return _times(b, node.input(0), node.attr("scale", 1.0))


@upgrade("ScaledTanh", below=ANY)
def scaled_tanh(b: Builder, node: OldNode) -> Any:
    alpha, beta = _needed(node, "alpha", "beta")
    return _times(b, b.Tanh(_times(b, node.input(0), beta)), alpha)


@upgrade("ParametricSoftplus", below=ANY)
def parametric_softplus(b: Builder, node: OldNode) -> Any:
    alpha, beta = _needed(node, "alpha", "beta")
    return _times(b, b.Softplus(_times(b, node.input(0), beta)), alpha)


@upgrade("ImageScaler", below=ANY)
def image_scaler(b: Builder, node: OldNode) -> Any:
    """One factor for an image, and a number to add to each of its channels."""
    x, (bias,) = node.input(0), _needed(node, "bias")
    rows = b.CastLike(b.const(np.asarray(bias, np.float32).reshape(-1, 1, 1)), x)
    return b.Add(_times(b, x, node.attr("scale", 1.0)), rows)


@upgrade("Crop", below=ANY)
def crop(b: Builder, node: OldNode) -> Any:
    """Cuts borders off, or a piece of given size out, of images with the channels second."""
    (border,) = _needed(node, "border")
    size = node.attr("scale")
    if len(border) != 4 or (size is not None and len(size) != 2):
        raise InvalidGraph(f"border {border} has 4 numbers and scale {size} 2: height and width")
    left, top, right, bottom = border
    ends = [-e or _END for e in (bottom, right)]
    if size is not None:
        ends = [top + size[0], left + size[1]]
    return b.Slice(node.input(0), b.ints(top, left), b.ints(*ends), b.ints(2, 3))


@upgrade("DynamicSlice", below=ANY)
def dynamic_slice(b: Builder, node: OldNode) -> Any:
    """What Slice became in opset 10."""
    return b.Slice(*node.inputs)


UPGRADES: Final = (
    *affine, *scale, *scaled_tanh, *parametric_softplus, *image_scaler, *crop, *dynamic_slice,
)  # fmt: skip
