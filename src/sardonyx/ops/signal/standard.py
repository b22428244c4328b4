"""Signal ops: DFT, STFT, window functions and MelWeightMatrix."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import FLOATS, INDEX, NUMBERS, DType, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array, in_wide, one_int
from sardonyx.ops.inference import axis_of
from sardonyx.ops.sizes import SIZES, allocatable

_TYPES: Final = {"T1": FLOATS, "T2": INDEX}

dft: Final = Op(
    "DFT",
    20,
    "input:T1 dft_length:T2? axis:I?",
    "output:T1",
    attrs={"inverse": 0, "onesided": 0},
    types={**_TYPES, "I": SIZES},
    singles="dft_length axis",
)
stft: Final = Op(
    "STFT",
    17,
    "signal:T1 frame_step:T2 window:T1? frame_length:T2?",
    "output:T1",
    attrs={"onesided": 1},
    types=_TYPES,
    singles="frame_step frame_length",
)


def scalar_size(fact: Fact, what: str) -> Size | None:
    """Return the value of a scalar input, or None if unknown."""
    if fact.shape is not None:
        for d in fact.shape:
            if isinstance(d, int) and d != 1:
                raise ShapeError(f"{what} must be one number, got {fact}")
    return None if fact.sym is None or len(fact.sym) != 1 else fact.sym[0]


def _value_or_new_dim(g: Scope, fact: Fact, what: str, low: int = 1) -> Size:
    """Return the value of a scalar input, which is `low` or more; a new dim if unknown."""
    size = scalar_size(fact, what)
    if size is None:
        return g.new_dim(what)
    g.at_least(size, low, f"{what} is negative" if low == 0 else f"{what} must be {low} or more")
    return size


def _check_components(x: Fact, n_components: Size) -> None:
    if n_components not in (1, 2) and isinstance(n_components, int):
        raise ShapeError(f"the last dim must be 1 (real) or 2 (complex), got {x}")


@dft.infer
def _(g: Scope, x: Fact, length: Fact | None, axis: Fact | None, **attrs: int) -> Fact:
    if x.rank < 2:
        raise ShapeError(f"the input must have rank 2 or more, got {x}")
    n_components = x.dims[-1]
    is_inverse, is_onesided = bool(attrs["inverse"]), bool(attrs["onesided"])
    _check_components(x, n_components)
    if n_components == 2 and is_onesided and not is_inverse:
        raise ShapeError(f"a one-sided transform needs real numbers, got {x}")
    where = -2 if axis is None else scalar_size(axis, "axis")
    last = 1 if is_inverse and is_onesided else 2
    if not isinstance(where, int):
        return x.shaped((*(g.new_dim("dft") for _ in x.dims[:-1]), last))
    where = _signal_axis(where, x.rank)
    size = x.dims[where]
    if length is not None and scalar_size(length, "dft_length") is None:
        return x.shaped((*x.dims[:where], g.new_dim("dft"), *x.dims[where + 1 : -1], last))
    if length is not None:
        size = _value_or_new_dim(g, length, "dft_length")
    elif is_inverse and is_onesided:
        size = (size - 1) * 2
        g.at_least(size, 1, "an inverse one-sided transform needs 2 or more frequencies")
    else:
        g.at_least(size, 1, "dft_length must be at least 1, and the signal is empty")
    if is_onesided and not is_inverse:
        size = size // 2 + 1
    return x.shaped((*x.dims[:where], size, *x.dims[where + 1 : -1], last))


def _signal_axis(axis: int, rank: int) -> int:
    result = axis_of(axis, rank)
    if result == rank - 1:
        raise ShapeError(f"axis {axis} is the last, which holds real and imaginary parts")
    return result


@dft.reference
@in_wide
def _(x: Array, length: Array | None = None, axis: Array | None = None, **attrs: int) -> Array:
    is_inverse, is_onesided = attrs["inverse"], attrs["onesided"]
    if not is_inverse and is_onesided and x.shape[-1] != 1:
        raise InvalidArgument("a one-sided transform needs real numbers, got complex ones")
    where = _signal_axis(-2 if axis is None else one_int(axis, "axis"), x.ndim)
    size = dft_size(x.shape[where], length, is_half=bool(is_inverse and is_onesided))
    z = _as_complex(x)
    if is_onesided:
        if is_inverse:
            return np.fft.irfft(z, size, where)[..., None].astype(x.dtype)
        return _as_pairs(np.fft.rfft(z.real, size, where), x.dtype)
    return _as_pairs((np.fft.ifft if is_inverse else np.fft.fft)(z, size, where), x.dtype)


def dft_size(samples: int, length: Array | None, *, is_half: bool) -> int:
    """Return the size of a transform: dft_length, or that of the signal.

    The one-sided spectrum that an inverse reads (`is_half`) is that of a real signal of
    2 (n - 1) samples by default.
    """
    size = 2 * (samples - 1) if is_half else samples
    if length is not None:
        size = one_int(length, "dft_length")
    if size < 1:
        raise InvalidArgument(f"dft_length must be at least 1, got {size}")
    return size


def _as_complex(x: Array) -> Array:
    """Return float64 or complex128 numbers without the last axis; float32 loses too much."""
    if x.shape[-1] == 1:
        return x[..., 0].astype(np.float64)
    if x.shape[-1] != 2:
        raise InvalidArgument(f"the last dim must be 1 (real) or 2 (complex), got {x.shape[-1]}")
    return np.ascontiguousarray(x, np.float64).view(np.complex128)[..., 0]


def _as_pairs(z: Array, dtype: Any) -> Array:
    """Return complex numbers as (real, imaginary) pairs in a last axis."""
    return np.stack((z.real, z.imag), axis=-1).astype(dtype)


@stft.infer
def _(
    g: Scope, x: Fact, step: Fact, window: Fact | None, length: Fact | None, **attrs: int
) -> Fact:
    # Exporters omit the last dim of real signals, and other runtimes accept that.
    if x.rank not in (2, 3):
        raise ShapeError(f"the signal must be [batch, length, 1 or 2] or [batch, length], got {x}")
    batch, total, n_components = x.dims if x.rank == 3 else (*x.dims, 1)
    _check_components(x, n_components)
    if window is not None and window.rank != 1:
        raise ShapeError(f"the window must have one dim, got {window}")
    frame: Size | None = total
    if length is not None:
        static_length = scalar_size(length, "frame_length")
        frame = None if static_length is None else _value_or_new_dim(g, length, "frame_length")
    if window is not None:
        frame = window.dims[0] if length is None or frame is None else frame
        g.equal(window.dims[0], frame, "the window is not as long as a frame")
    if frame is None:
        return x.shaped((batch, g.new_dim("frames"), g.new_dim("bins"), 2))
    g.at_least(frame, 1, "a frame must hold 1 sample or more")
    g.at_least(total, frame, "the signal is shorter than a frame")
    is_open = scalar_size(step, "frame_step") is None
    hop = _value_or_new_dim(g, step, "frames" if is_open else "frame_step")
    frames = hop if is_open else (total - frame) // hop + 1
    bins = frame // 2 + 1 if attrs["onesided"] else frame
    return x.shaped((batch, frames, bins, 2))


def frame_sizes(
    total: int, step: Array, window: int | None, length: Array | None
) -> tuple[int, int]:
    """Return step and length of the frames of a signal, given the size of a window."""
    hop, frame = one_int(step, "frame_step"), total if window is None else window
    if length is not None:
        frame = one_int(length, "frame_length")
    if hop < 1 or not 1 <= frame <= total or (window is not None and window != frame):
        raise InvalidArgument(
            f"frames of {frame} samples every {hop} do not fit a signal of {total}"
            + ("" if window is None else f" and a window of {window}")
        )
    return hop, frame


@stft.reference
@in_wide
def _(x: Array, step: Array, window: Array | None, length: Array | None, *, onesided: int) -> Array:
    hop, frame = frame_sizes(x.shape[1], step, None if window is None else len(window), length)
    z = _as_complex(x if x.ndim == 3 else x[..., None])
    # Frames are views of the signal, every `hop` samples, without copies.
    frames = np.lib.stride_tricks.sliding_window_view(z, frame, axis=1)[:, ::hop]
    if window is not None:
        frames = frames * window.astype(np.float64)
    if onesided and not np.iscomplexobj(z):
        return _as_pairs(np.fft.rfft(frames, axis=-1), x.dtype)
    # Of a complex signal, onesided keeps the non-negative frequencies.
    bins = frame // 2 + 1 if onesided else frame
    return _as_pairs(np.fft.fft(frames, axis=-1)[..., :bins], x.dtype)


def _type_of(number: int) -> DType:
    result = by_onnx(number)
    if result is None or result not in NUMBERS:
        raise InvalidGraph(f"output_datatype {number} is not a real number type")
    return result


def window(name: str, *factors: float) -> Op:
    """Declare a cosine-sum window: the sum of factor_k * cos(k * angle)."""
    attrs, types = {"output_datatype": 1, "periodic": 1}, {"T1": INDEX, "T2": NUMBERS}
    op = Op(
        name, 17, "size:T1", "output:T2", attrs=attrs, types=types, unranked=True, singles="size"
    )

    @op.infer
    def _(g: Scope, size: Fact, *, output_datatype: int, periodic: int) -> Fact:
        return Fact(_type_of(output_datatype), (_value_or_new_dim(g, size, "size", 0),))

    @op.reference
    def _(size: Array, *, output_datatype: int, periodic: int) -> Array:
        count = one_int(size, "size")
        if count < 0:
            raise InvalidArgument(f"a window cannot have {count} samples")
        allocatable((count,), np.float64, "the window")
        with np.errstate(all="ignore"):
            # A periodic window is a symmetric one of count + 1 samples without its last.
            step = np.float64(2 * np.pi) / np.float64(count if periodic else count - 1)
            angle = np.arange(count) * step
            samples = sum(f * np.cos(k * angle) for k, f in enumerate(factors))
            return np.asarray(samples).astype(_type_of(output_datatype).np)

    return op


FACTORS: Final = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
windows: Final = tuple(window(name, *factors) for name, factors in FACTORS.items())

mel: Final = Op(
    "MelWeightMatrix",
    17,
    "num_mel_bins:T1 dft_length:T1 sample_rate:T1 lower_edge_hertz:T2 upper_edge_hertz:T2",
    "output:T3",
    attrs={"output_datatype": 1},
    types={"T1": INDEX, "T2": FLOATS, "T3": NUMBERS},
    unranked=True,
    singles="num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz",
)


@mel.infer
def _(g: Scope, bands: Fact, length: Fact, *_: Fact, output_datatype: int) -> Fact:
    is_open = scalar_size(length, "dft_length") is None
    size = _value_or_new_dim(g, length, "spectrum" if is_open else "dft_length", 0)
    bins = size if is_open else size // 2 + 1
    return Fact(_type_of(output_datatype), (bins, _value_or_new_dim(g, bands, "num_mel_bins", 0)))


@mel.reference
def _(*inputs: Array, output_datatype: int) -> Array:
    bands, length, rate = (one_int(x, "an input") for x in inputs[:3])
    if bands < 0 or length < 0 or rate < 1:
        raise InvalidArgument(
            f"{bands} mel bands of a transform of {length} samples at {rate} per second: "
            "none may be negative, and the rate must be at least 1"
        )
    bins = length // 2 + 1
    low_hertz, high_hertz = (float(np.asarray(x, np.float64).reshape(-1)[0]) for x in inputs[3:])
    edges = _mel_edges(bands, low_hertz, high_hertz)
    with np.errstate(all="ignore"):
        bin_edges = np.floor((length + 1) * edges / rate)
    if bands and not (bin_edges[0] >= 0 and bin_edges[-2] < bins and bin_edges[-1] <= bins):
        raise InvalidArgument(
            f"mel bands from {edges[0]:g} to {edges[-1]:g} hertz fall outside the spectrum, "
            f"which ends at {rate / 2:g}"
        )
    # Triangular filters: each rises from the previous band's center and falls to the next one's.
    low, center, high = bin_edges[:-2], bin_edges[1:-1], bin_edges[2:]
    at = np.arange(bins)[:, None]
    with np.errstate(all="ignore"):
        rising = np.where(low == center, at == center, (at - low) / (center - low))
        falling = (high - at) / (high - center)
    weights = np.where((at >= low) & (at <= center), rising, 0)
    weights = np.where((at >= center) & (at < high), falling, weights)
    return weights.astype(_type_of(output_datatype).np)


def _mel_edges(bands: int, low: float, high: float) -> Array:
    """Return the edges of the triangular filters in hertz: equidistant on the mel scale.

    mel = 2595 log10(1 + f / 700); the step is (last - first) / (bands + 2), as in ONNX's reference.
    """
    with np.errstate(all="ignore"):
        first, last = (2595 * np.log10(1 + np.float64(f) / 700) for f in (low, high))
        mels = first + np.arange(bands + 2) * ((last - first) / (bands + 2))
        return np.asarray(700 * (np.power(10.0, mels / 2595) - 1))


OPS: Final = (dft, stft, *windows, mel)
