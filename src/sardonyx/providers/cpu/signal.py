"""Signal processing on the CPU: DFT, STFT, window functions and mel filter banks."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.inference import axis_of
from sardonyx.ops.signal.standard import FACTORS, scalar_size
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowerings, for_types, padded_inputs
from sardonyx.providers.cpu.move import follows

_REAL: Final = (F32, F64)
_OPEN: Final = 0  # a length that the kernel reads from an input


def _known(value: Value | None) -> Size | None:
    """Return the number in an input, if it is known before the node runs."""
    return None if value is None else scalar_size(value.tensor, "it")


def dft(node: Node) -> Call | No:
    x, length, axis = input_of(node, 0), optional_input(node, 1), optional_input(node, 2)
    attrs, out = node.attrs, node.outputs[0].tensor
    where = -2 if axis is None else _known(axis)
    if not isinstance(where, int):
        return No("the axis is known only at run time")
    where = axis_of(where, x.tensor.rank)
    ints = (where, attrs["inverse"], attrs["onesided"])
    if length is None:
        # An inverse one-sided DFT has n / 2 + 1 coefficients of n real values.
        size = x.tensor.dims[where]
        size = 2 * (size - 1) if attrs["inverse"] and attrs["onesided"] else size
        return Call("dft", (x, None), (*ints, size))
    known = _known(length)
    if known is not None and follows(out.dims, x.tensor.dims, (known,)):
        return Call("dft", (x, None), (*ints, known))
    return Call("dft_at_run", (x, length), (*ints, _OPEN))


def stft(node: Node) -> Call:
    x, (step, window, length) = input_of(node, 0), padded_inputs(node, 4)[1:]
    hop, frame = _known(step), _known(length)
    is_checked = frame is None and length is not None  # against the window, at run time
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
    kernel = "cosine_window_at_run" if _known(size) is None else "cosine_window"
    factors = (*FACTORS[node.op.name], 0.0)[:3]  # factors of cos(0), cos(t), cos(2t)
    return Call(kernel, (size,), (node.attrs["periodic"],), factors)


def mel_weights(node: Node) -> Call | No:
    out, inputs = node.outputs[0].tensor, tuple(input_of(node, slot) for slot in range(5))
    edges = {v.tensor.dtype for v in inputs[3:]}
    if out.dtype not in _REAL or len(edges) > 1 or not edges <= set(_REAL):
        return No(f"no kernel for {out.dtype}")
    is_known = all(_known(v) is not None for v in inputs[:2])
    return Call("mel_weights" if is_known else "mel_weights_at_run", inputs)


LOWERINGS: Final[Lowerings] = {
    ("", "DFT"): for_types(_REAL, dft),
    ("", "STFT"): for_types(_REAL, stft),
    **{("", name): window for name in FACTORS},
    ("", "MelWeightMatrix"): mel_weights,
}
