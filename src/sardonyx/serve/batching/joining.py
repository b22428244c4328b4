"""Concatenates the tensors of requests to one feed, and splits the outputs (scatter/gather)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.serve.models.signature import Signature
from sardonyx.serve.protocol.datatypes import Array


@frozen(eq=False)
class Padding:
    """The axis that shorter requests are padded along: inputs and outputs that have it."""

    dim: str
    input_axes: Mapping[str, int]
    output_axes: Mapping[int, int]  # by the position of the output
    fill: Mapping[str, float]  # 0 unless an input is named


@frozen(eq=False)
class BatchLayout:
    """How requests are batched: concatenated along axis 0, padded along another."""

    padding: Padding | None = None

    def key(self, feed: Mapping[str, Array]) -> Hashable:
        """Return a key; only requests of equal keys can be batched."""
        axes = self.padding.input_axes if self.padding is not None else {}
        parts = []
        for name, array in feed.items():
            axis = axes.get(name)
            shape = array.shape
            rest = shape[1:] if axis is None else (*shape[1:axis], *shape[axis + 1 :])
            parts.append((name, rest))
        return tuple(sorted(parts)) if len(parts) > 1 else tuple(parts)

    def length(self, feed: Mapping[str, Array]) -> int:
        """Return the size of the padded axis; without one, that of a row of all inputs."""
        if self.padding is not None:
            for name, axis in self.padding.input_axes.items():
                if name in feed:
                    return max(1, int(feed[name].shape[axis]))
        return max(1, sum(int(prod(array.shape[1:])) for array in feed.values()))

    def join(self, feeds: Sequence[Mapping[str, Array]], length: int) -> dict[str, Array]:
        """Return the inputs of all requests in one feed."""
        if len(feeds) == 1:
            return dict(feeds[0])
        return {
            name: self._joined(name, [feed[name] for feed in feeds], length) for name in feeds[0]
        }

    def _joined(self, name: str, arrays: Sequence[Array], length: int) -> Array:
        padding = self.padding
        axis = None if padding is None else padding.input_axes.get(name)
        if padding is None or axis is None or all(a.shape[axis] == length for a in arrays):
            joined: Array = np.concatenate(arrays)
            return joined
        first = arrays[0]
        shape = [sum(a.shape[0] for a in arrays), *first.shape[1:]]
        shape[axis] = length
        joined = np.full(shape, padding.fill.get(name, 0), first.dtype)
        begin = 0
        for array in arrays:
            place = [slice(None)] * array.ndim
            place[0], place[axis] = slice(begin, begin + len(array)), slice(array.shape[axis])
            joined[tuple(place)] = array
            begin += len(array)
        return joined

    def split(
        self, outputs: Sequence[Array], rows: Sequence[int], lengths: Sequence[int]
    ) -> list[list[Array]]:
        """Return the outputs of each request: views, cut to the length of the request."""
        if len(rows) == 1:
            return [list(outputs)]
        axes = self.padding.output_axes if self.padding is not None else {}
        results: list[list[Array]] = []
        begin = 0
        for count, length in zip(rows, lengths, strict=True):
            own = []
            for position, output in enumerate(outputs):
                part = output[begin : begin + count]
                axis = axes.get(position)
                if axis is not None:
                    part = part[(*(slice(None),) * axis, slice(length))]
                own.append(part)
            results.append(own)
            begin += count
        return results


def element_count(feed: Mapping[str, Array]) -> int:
    """Return the size of all inputs, at least 1."""
    return max(1, sum(array.size for array in feed.values()))


def batch_layout(signature: Signature) -> BatchLayout | None:
    """Return the layout of a model whose declared first dims are all dynamic."""
    names = set()
    for spec in (*signature.inputs, *signature.outputs):
        if not spec.shape or isinstance(spec.shape[0], int):
            return None
        names.add(spec.shape[0])
    return BatchLayout() if signature.inputs and len(names - {None}) <= 1 else None


def padding_of(signature: Signature, fill: Mapping[str, float]) -> Padding | None:
    """Return the padding for the only other named dim that inputs have on one axis each."""
    input_axes: dict[str, int] = {}
    found: set[str] = set()
    for spec in signature.inputs:
        for axis, dim in enumerate(spec.shape[1:], 1):
            if isinstance(dim, int):
                continue
            if dim is None or spec.name in input_axes or spec.datatype.is_bytes:
                return None
            input_axes[spec.name] = axis
            found.add(dim)
    if len(found) != 1:
        return None
    (dim,) = found
    output_axes: dict[int, int] = {}
    for position, spec in enumerate(signature.outputs):
        axes = [axis for axis, each in enumerate(spec.shape) if each == dim]
        is_open = any(not isinstance(each, int) and each != dim for each in spec.shape[1:])
        if is_open or len(axes) > 1:
            return None
        if axes:
            output_axes[position] = axes[0]
    return Padding(dim, input_axes, output_axes, dict(fill))
