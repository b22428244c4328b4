"""Sliding windows of convolution and pooling: pads, output sizes, and the inputs each tap reads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Dim, Shape, Size, maximum, minimum
from sardonyx.graph.guard import Scope
from sardonyx.ops.inference import check_choice

MAX_SPAN: Final = 1 << 24  # bound of kernels, pads, strides and dilations: products fit int64

Ints = tuple[int, ...]
Slices = tuple[slice, ...]


@frozen
class Window:
    """Kernel size, strides, dilations and pads over the spatial axes."""

    kernel: Shape
    strides: Ints
    dilations: Ints
    pads: Ints  # all begins, then all ends
    auto_pad: bytes
    ceil_mode: bool
    extents: Shape  # elements from the first tap to the last, along each axis

    @property
    def begins(self) -> Ints:
        return self.pads[: len(self.kernel)]

    @property
    def ends(self) -> Ints:
        return self.pads[len(self.kernel) :]

    @property
    def is_same(self) -> bool:
        """Whether the pads follow from the output size (SAME), and not the other way round."""
        return self.auto_pad in (b"SAME_UPPER", b"SAME_LOWER")

    def check(self, g: Scope, spatial: Shape) -> None:
        """Require the kernel to fit into the padded input, plus stride - 1 in ceil mode."""
        if self.is_same:
            return
        for i, (size, extent) in enumerate(zip(spatial, self.extents, strict=True)):
            what = f"the kernel does not fit into the padded input along spatial axis {i}"
            spare = self.strides[i] - 1 if self.ceil_mode else 0
            g.at_least(size + self.begins[i] + self.ends[i] + spare, extent, what)

    def outs(self, spatial: Shape) -> Shape:
        """Return the output's spatial sizes."""
        return tuple(self._out(i, size) for i, size in enumerate(spatial))

    def _out(self, i: int, size: Size) -> Size:
        stride, begin, end = self.strides[i], self.begins[i], self.ends[i]
        if self.is_same:
            return (size + (stride - 1)) // stride
        span = size + (begin + end) - self.extents[i]
        if not self.ceil_mode:
            return span // stride + 1
        # As the spec says, a last window that starts in the end padding is dropped.
        out = (span + (stride - 1)) // stride + 1
        inside = (size + (begin - 1)) // stride + 1
        return maximum(out - 1, minimum(out, inside))

    def front(self, spatial: Ints) -> Ints:
        """Return the padding before the first element of each axis, for an input of these sizes."""
        if not self.is_same:
            return self.begins
        extents = numbers(self.extents)
        totals = (
            max(0, (-(-size // stride) - 1) * stride + extent - size)
            for size, stride, extent in zip(spatial, self.strides, extents, strict=True)
        )
        return tuple(t // 2 if self.auto_pad == b"SAME_UPPER" else t - t // 2 for t in totals)


def window_of(kernel: Shape, attrs: Mapping[str, Any]) -> Window:
    """Return a window from a kernel shape and the attributes that convolution and pooling share."""
    n = len(kernel)
    auto_pad = attrs.get("auto_pad") or b"NOTSET"
    check_choice("auto_pad", auto_pad, (b"NOTSET", b"VALID", b"SAME_UPPER", b"SAME_LOWER"))
    pads = attrs.get("pads") if auto_pad == b"NOTSET" else None
    for size in kernel:
        if isinstance(size, int) and not 0 < size <= MAX_SPAN:
            raise ShapeError(f"the kernel {kernel} has a size outside [1, {MAX_SPAN}]")
    dilations = _numbers("dilations", attrs.get("dilations"), n, 1)
    return Window(
        kernel,
        _numbers("strides", attrs.get("strides"), n, 1),
        dilations,
        _numbers("pads", pads, 2 * n, 0),
        auto_pad,
        bool(attrs.get("ceil_mode")) and auto_pad == b"NOTSET",
        tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)),
    )


def _numbers(name: str, values: Sequence[int] | None, count: int, low: int) -> Ints:
    """Return one number per axis (pads: two), or `low` for all when the attribute is absent."""
    if not values:
        return (low,) * count
    if len(values) != count:
        what = f"has {len(values)} numbers, and the input needs {count}"
        raise ShapeError(f"{name} {tuple(values)} {what}")
    if any(not low <= v <= MAX_SPAN for v in values):
        raise ShapeError(f"{name} {tuple(values)} has a number outside [{low}, {MAX_SPAN}]")
    return tuple(values)


@frozen
class WindowGeometry:
    """A window on an input of known size: the inputs that each tap reads, and its outputs."""

    kernel: Ints
    strides: Ints
    dilations: Ints
    front: Ints
    ins: Ints
    outs: Ints

    @property
    def n_taps(self) -> int:
        return math.prod(self.kernel)

    def axis(self, i: int, part: slice | None = None) -> list[tuple[int, slice, slice]]:
        """Return the taps of one axis that meet the input: number, output slice, input slice.

        Output slices count from the start of `part`.
        """
        lo, hi = (0, self.outs[i]) if part is None else (part.start, part.stop)
        stride, dilation, size = self.strides[i], self.dilations[i], self.ins[i]
        slices = []
        # Taps that meet the input for the last and for the first output bound the range: input
        # position = output * stride - front + tap * dilation must be within [0, size).
        first_tap = max(0, -(((hi - 1) * stride - self.front[i]) // dilation))
        last_tap = min(self.kernel[i], (size - 1 + self.front[i] - lo * stride) // dilation + 1)
        taps: Iterable[int] = range(first_tap, last_tap)
        if last_tap - first_tap > size * (hi - lo):  # most taps of a huge kernel read only padding
            taps = self._meeting(i, range(lo, hi))
        for tap in taps:
            shift = tap * dilation - self.front[i]  # the input that output 0 reads
            first = max(lo, -(shift // stride))
            last = min(hi, (size - 1 - shift) // stride + 1)
            if first < last:
                start, stop = first * stride + shift, (last - 1) * stride + shift + 1
                slices.append((tap, slice(first - lo, last - lo), slice(start, stop, stride)))
        return slices

    def _meeting(self, i: int, outs: range) -> list[int]:
        """Return the taps along one axis that read an input for at least one output."""
        taps = set()
        for out, position in itertools.product(outs, range(self.ins[i])):
            tap, odd = divmod(position + self.front[i] - out * self.strides[i], self.dilations[i])
            if not odd and 0 <= tap < self.kernel[i]:
                taps.add(tap)
        return sorted(taps)

    def taps(self, parts: Slices | None = None) -> Iterator[tuple[int, Slices, Slices]]:
        """Yield the taps that meet the input: number in the kernel, output and input slices."""
        n = len(self.kernel)
        axes = [self.axis(i, None if parts is None else parts[i]) for i in range(n)]
        for combination in itertools.product(*axes):
            number = 0
            for i in range(n):
                number = number * self.kernel[i] + combination[i][0]
            yield number, tuple(c[1] for c in combination), tuple(c[2] for c in combination)


def window_geometry(w: Window, spatial: Ints) -> WindowGeometry:
    """Return the geometry of a window on an input of these sizes."""
    outs, kernel = numbers(w.outs(spatial)), numbers(w.kernel)
    return WindowGeometry(kernel, w.strides, w.dilations, w.front(spatial), spatial, outs)


def numbers(sizes: Shape) -> Ints:
    """Return sizes that are known to be numbers, with the type of integers."""
    assert not any(isinstance(s, Dim) for s in sizes)
    return sizes  # type: ignore[return-value]  # checked just above


def blocks(sizes: Ints, limit: int) -> Iterator[Slices]:
    """Yield boxes that tile all sizes, each of at most `limit` elements (and at least one)."""
    # Keep as many inner axes whole as fit, split one axis, and iterate over the outer ones.
    inner, axis = 1, len(sizes)
    while axis and inner * sizes[axis - 1] <= limit:
        axis -= 1
        inner *= sizes[axis]
    whole = tuple(slice(0, s) for s in sizes[axis:])
    if axis == 0:
        yield whole
        return
    step = max(1, limit // inner)
    split = sizes[axis - 1]
    for lead in itertools.product(*(range(s) for s in sizes[: axis - 1])):
        fixed = tuple(slice(i, i + 1) for i in lead)
        for lo in range(0, split, step):
            yield (*fixed, slice(lo, min(split, lo + step)), *whole)
