"""Signals on the CPU: Fourier transforms, windows and mel bands."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.inference import axis_of
from sardonyx.ops.signal import FACTORS, scalar_size
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering
from sardonyx.providers.cpu.move import follows

_REAL: Final = (F32, F64)
_OPEN: Final = 0  # a length that an input gives when it runs


def _known(value: Value | None) -> Size | None:
    """The number in an input, where it is known before it runs."""
    return None if value is None else scalar_size(value.tensor, "it")


def dft(node: Node) -> Call | No:
    x, length, axis = input_of(node, 0), optional_input(node, 1), optional_input(node, 2)
    attrs, out = node.attrs, node.outputs[0].tensor
    if x.tensor.dtype not in _REAL:
        return No(f"no kernel for {x.tensor.dtype}")
    where = -2 if axis is None else _known(axis)
    if not isinstance(where, int):
        return No("the axis is known only when it runs")
    where = axis_of(where, x.tensor.rank)
    ints = (where, attrs["inverse"], attrs["onesided"])
    if length is None:
        size = x.tensor.dims[where]
        size = 2 * (size - 1) if attrs["inverse"] and attrs["onesided"] else size
        return Call("dft", (x, None), (*ints, size))
    known = _known(length)
    if known is not None and follows(out.dims, x.tensor.dims, (known,)):
        return Call("dft", (x, None), (*ints, known))
    return Call("dft_at_run", (x, length), (*ints, _OPEN))


def stft(node: Node) -> Call | No:
    x, step, window, length = (
        input_of(node, 0),
        input_of(node, 1),
        optional_input(node, 2),
        optional_input(node, 3),
    )
    if x.tensor.dtype not in _REAL:
        return No(f"no kernel for {x.tensor.dtype}")
    hop, frame = _known(step), _known(length)
    is_checked = frame is None and length is not None  # against the window, when it runs
    if frame is None and window is not None:
        frame = window.tensor.dims[0]
    elif length is None:
        frame = x.tensor.dims[1]
    is_known = hop is not None and frame is not None
    return Call(
        "stft" if is_known else "stft_at_run",
        (x, step if hop is None else None, window, length if is_checked else None),
        (node.attrs["onesided"], _OPEN if hop is None else hop, _OPEN if frame is None else frame),
    )


def window(node: Node) -> Call | No:
    size, out = input_of(node, 0), node.outputs[0].tensor
    if out.dtype not in _REAL:
        return No(f"no kernel for {out.dtype}")
    is_known = _known(size) is not None
    return Call(
        "cosine_window" if is_known else "cosine_window_at_run",
        (size,),
        (node.attrs["periodic"],),
        (*FACTORS[node.op.name], 0.0)[:3],
    )


def mel_weights(node: Node) -> Call | No:
    out, inputs = node.outputs[0].tensor, tuple(input_of(node, slot) for slot in range(5))
    edges = {v.tensor.dtype for v in inputs[3:]}
    if out.dtype not in _REAL or len(edges) > 1 or not edges <= set(_REAL):
        return No(f"no kernel for {out.dtype}")
    is_known = all(_known(v) is not None for v in inputs[:2])
    return Call("mel_weights" if is_known else "mel_weights_at_run", inputs)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    ("", "DFT"): dft,
    ("", "STFT"): stft,
    **{("", name): window for name in FACTORS},
    ("", "MelWeightMatrix"): mel_weights,
}
