"""Gradients of Fourier transforms, which are linear: the adjoint of a DFT is an inverse DFT."""

from __future__ import annotations

from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.ops.gradient_rules import GradientBuilder, decompose, gradient, ranked
from sardonyx.ops.inference import axis_of
from sardonyx.ops.normalize.standard import widened


@gradient("DFT")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x, attrs = input_of(node, 0), node.attrs
    rank, axis = ranked(x).rank, optional_input(node, 2)
    where = (-2,) if axis is None else axis.tensor.ints
    if where is None:
        raise NotImplemented(
            "the axis of a DFT is known only when it runs, and its gradient needs it",
            hint="make the axis a constant of the model",
        )
    along = axis_of(where[0], rank)
    length = _length(b, node, along)
    scalar, place = b.Squeeze(length, b.ints(0)), b.const(along, I64)
    count = b.cast(scalar, x.tensor.dtype)
    if not attrs["inverse"]:
        # DFT itself pads the frequencies that a one-sided transform leaves out with zeros.
        grad = b.Mul(b.DFT(dy, scalar, place, inverse=1), count)
    elif not attrs["onesided"]:
        grad = b.Div(b.DFT(dy, scalar, place), count)
    else:
        bins = b.DFT(dy, scalar, place, onesided=1)
        weights = _bin_weights(b, bins, length, along)
        grad = b.Mul(bins, b.Div(b.cast(weights, x.tensor.dtype), count))
    # The signal was cropped or padded to the length; a real one has no imaginary part.
    over = b.ints(along, rank - 1)
    sizes, own = (b.Gather(b.shape(v), over) for v in (x, grad))
    return b.reshape(b.Pad(grad, b.Concat(b.ints(0, 0), b.Sub(sizes, own), axis=0), None, over), x)


def _length(b: GradientBuilder, node: Node, axis: int) -> Value:
    """Return the length of a transform, as a vector of length 1."""
    x, length = input_of(node, 0), optional_input(node, 1)
    if length is not None:
        return b.Reshape(b.cast(length, I64), b.ints(1))
    size = b.element(b.shape(x), axis)
    if node.attrs["inverse"] and node.attrs["onesided"]:
        return b.Mul(b.Sub(size, 1), 2)
    return size


def _bin_weights(b: GradientBuilder, bins: Value, length: Value, axis: int) -> Value:
    """Return how often each frequency of a one-sided spectrum occurs in the whole one.

    Once for 0 and for half the sampling rate, twice for the others.
    """
    rank = ranked(bins).rank
    k = b.arange(b.length(bins, axis))
    is_single = b.Or(b.Equal(k, b.const(0, I64)), b.Equal(b.Mul(k, 2), length))
    counts = b.Where(is_single, b.const(1, I64), b.const(2, I64))
    return b.along(counts, axis, rank)


@decompose("STFT")
def _(b: GradientBuilder, node: Node) -> Value:
    """The DFT of overlapping frames, each times the window."""
    x, step = input_of(node, 0), b.Reshape(b.cast(input_of(node, 1), I64), b.ints(1))
    window, length = optional_input(node, 2), optional_input(node, 3)
    signal = widened(b, x)
    signal = b.Unsqueeze(signal, b.ints(2)) if ranked(x).rank == 2 else signal
    total = b.element(b.shape(x), 1)
    frame = total if window is None else b.shape(window)
    if length is not None:
        frame = b.Reshape(b.cast(length, I64), b.ints(1))
    count = b.Add(b.Div(b.Sub(total, frame), step), 1)
    starts, samples = (b.arange(b.Squeeze(v, b.ints(0))) for v in (count, frame))
    index = b.Add(b.Unsqueeze(b.Mul(starts, step), b.ints(1)), samples)
    frames = b.Gather(signal, index, axis=1)  # [batch, frames, samples, 1 or 2]
    if window is not None:
        frames = b.Mul(frames, b.Unsqueeze(widened(b, window), b.ints(1)))
    spectrum = b.DFT(frames, None, b.const(2, I64))
    if node.attrs["onesided"]:
        n_bins = b.Add(b.Div(frame, 2), 1)
        spectrum = b.Slice(spectrum, b.ints(0), n_bins, b.ints(2))
    return b.cast(b.reshape(spectrum, node.outputs[0]), x.tensor.dtype)
