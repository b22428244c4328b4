"""Random numbers, choices and masks on the CPU."""

from __future__ import annotations

from typing import Final

import numpy as np

from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.graph.op import GRADIENT
from sardonyx.ops.elementwise.cast import convert
from sardonyx.ops.random.mask import RUN, threshold
from sardonyx.ops.random.streams import key_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering, Lowerings

_NO_RUN: Final = -1
_MAX_BITS: Final = 64  # of an element that the kernel of Bernoulli writes


def mask(node: Node) -> Call:
    attrs = node.attrs
    return Call("dropout_mask", node.inputs, (attrs["seed"], threshold(attrs["ratio"]), RUN))


def _split(node: Node) -> tuple[tuple[int, ...], Value | None, tuple[Value | None, ...]]:
    """Return a node's source of random numbers as kernels take it, and its other inputs.

    Nodes of training steps have the step's settings as the first input.
    """
    seed = node.attrs["seed"]
    if node.op.domain == GRADIENT:
        return (0, _signed(seed), RUN), node.inputs[0], node.inputs[1:]
    if seed is None:
        return (1, 0, _NO_RUN), None, node.inputs
    return (0, _signed(key_of(seed)), _NO_RUN), None, node.inputs


def _signed(key: int) -> int:
    return int(np.uint64(key % 2**64).view(np.int64))


def numbers(kernel: str, scale: str, shift: str) -> Lowering:
    """Lower an op that fills its output; uniform numbers are scaled to [low, high)."""

    def call(node: Node) -> Call | No:
        dtype, attrs = node.outputs[0].tensor.dtype, node.attrs
        if dtype not in FLOATS:
            return No(f"no kernel for {dtype}")
        source, settings, _ = _split(node)
        high, low = float(attrs[scale]), float(attrs[shift])
        if kernel == "random_normal":
            return Call(kernel, (settings,), source, (high, low))
        wide = np.float64 if dtype.bits == 64 else np.float32  # as the reference subtracts
        with np.errstate(all="ignore"):
            return Call(kernel, (settings,), source, (float(wide(high) - wide(low)), low))

    return call


def bernoulli(node: Node) -> Call | No:
    source, settings, (x,) = _split(node)
    assert x is not None
    dtype = node.outputs[0].tensor.dtype
    if dtype.bits % 8 or dtype.bits > _MAX_BITS or x.tensor.dtype not in FLOATS:
        return No(f"no kernel draws {dtype} by {x.tensor.dtype}")
    one = convert(np.ones(1, np.float32), dtype).tobytes()
    return Call("bernoulli", (settings, x), (*source, int.from_bytes(one, "little")))


def multinomial(node: Node) -> Call:
    source, settings, inputs = _split(node)
    return Call("multinomial", (settings, *inputs), source)


def dropout(node: Node) -> Call | No:
    """Dropout in training mode; otherwise passes remove it if the mode is constant."""
    source, settings, _ = _split(node)
    operands = tuple(optional_input(node, slot) for slot in range(3))
    types = [v.tensor.dtype for v in operands[:2] if v is not None]
    if not FLOATS.issuperset(types):
        return No(f"no kernel for {' and '.join(map(str, types))}")
    return Call("dropout", (settings, *operands), source)


_NORMAL: Final = numbers("random_normal", "scale", "mean")
_UNIFORM: Final = numbers("random_uniform", "high", "low")
_DRAWN: Final[dict[str, Lowering]] = {
    "Bernoulli": bernoulli,
    "Multinomial": multinomial,
    "RandomNormal": _NORMAL,
    "RandomNormalLike": _NORMAL,
    "RandomUniform": _UNIFORM,
    "RandomUniformLike": _UNIFORM,
}
LOWERINGS: Final[Lowerings] = {
    (GRADIENT, "DropoutMask"): mask,
    ("", "Dropout"): dropout,
    **{(domain, name): lower for domain in ("", GRADIENT) for name, lower in _DRAWN.items()},
}
