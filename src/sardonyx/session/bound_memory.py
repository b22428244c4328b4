"""Memory bound by an IOBinding: analysed for overlaps once, not in every run.

A run may write an output directly into its bound buffer only if that buffer overlaps no input and
no other output. These comparisons, and the slots they lead to, are cached per program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.base.records import frozen
from sardonyx.base.torch_tensor import borrowed, is_tensor
from sardonyx.ort.device import device_values
from sardonyx.program.program import Input, Program
from sardonyx.program.run import bind
from sardonyx.session.feeds import is_at, tensors
from sardonyx.session.results import memory_owners

AddressRange = tuple[str, int, int]  # device, first byte, one past the last byte


@frozen
class BoundSlots:
    """How one program uses the bound memory."""

    program: Program
    dims: dict[str, int]
    output_buffers: dict[int, Any]  # by slot, as in Run
    shared: dict[int, int]  # slots of outputs that alias an input, with the input's slot


class BoundMemory:
    """Inputs and output buffers (None: allocate) that stay the same from run to run.

    Immutable but for two caches. Threads may race to fill them: each computes equal values, and
    each assignment is atomic.
    """

    def __init__(
        self, feed: dict[str, Any], output_buffers: Sequence[Any], specs: Mapping[str, Input]
    ) -> None:
        """`feed` has been checked against `specs`."""
        self.feed = feed
        self.specs = specs
        inputs = {_alias_key(v): v for v in feed.values() if is_tensor(v)}
        # An output that aliases an input exactly is represented by the input's tensor.
        self.output_buffers = [
            inputs.get(_alias_key(b), b) if is_tensor(b) else b for b in output_buffers
        ]
        # Outputs that overlap each other are copied to their buffers in the order of binding.
        pairs = zip(self.output_buffers, _disjoint(self.output_buffers), strict=True)
        self.disjoint_output_buffers = [
            buffer if is_disjoint else None for buffer, is_disjoint in pairs
        ]
        borrows = (borrowed(v) for v in tensors((*feed.values(), *output_buffers)))
        self.borrows = [b for b in borrows if b is not None]  # checked in each run
        self._slots: BoundSlots | None = None
        self._owners: set[Any] | None = None

    def slots(self, program: Program) -> BoundSlots:
        """Return how a program uses the memory; cached for the last program."""
        slots = self._slots  # read once: another thread may store those of another program
        if slots is None or slots.program is not program:
            dims = bind(program, self.feed)
            slots = BoundSlots(program, dims, self._direct_buffers(program), self._shared(program))
            self._slots = slots
        return slots

    def owners(self) -> set[Any]:
        """Return the memory owners that results must not share, for `unshared`."""
        if self._owners is None:
            self._owners = memory_owners(self.feed.values(), self.output_buffers)
        return self._owners.copy()

    def _direct_buffers(self, program: Program) -> dict[int, Any]:
        """Return the buffers by slot that a run writes to directly.

        Only those that overlap neither an input nor another buffer: a later segment may read the
        input that the first one would overwrite. A single native segment knows what it reads, and
        extends caches in place.
        """
        buffers: list[Any] = self.disjoint_output_buffers
        inputs = [] if program.only_segment is not None else tensors(self.feed.values())
        is_disjoint = _disjoint([*buffers, *inputs])
        outputs = zip(program.outputs, self.disjoint_output_buffers, strict=True)
        return {
            output.slot: buffer
            for i, (output, buffer) in enumerate(outputs)
            if buffer is not None and is_disjoint[i] and is_at(buffer, output.device)
        }

    def _shared(self, program: Program) -> dict[int, int]:
        """Return the slots of outputs whose device buffer is an input's memory."""
        slots = {id(v): i.slot for i in program.inputs if is_tensor(v := self.feed.get(i.name))}
        return {
            output.slot: slots[id(buffer)]
            for output, buffer in zip(program.outputs, self.output_buffers, strict=True)
            if id(buffer) in slots
        }


def _alias_key(tensor: Any) -> tuple[Any, ...]:
    """Return a key that is equal for tensors of the same elements in the same memory."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _disjoint(values: Sequence[Any]) -> list[bool]:
    """Return for each value whether it shares no byte with another; a sweep over sorted ranges."""
    is_disjoint = [True] * len(values)
    # Of the ranges seen so far, the one with the highest end: device, end, index.
    last: tuple[str, int, int] = "", 0, 0
    for (device, begin, end), i in sorted(_address_ranges(values)):
        if begin < end and (device, begin) < last[:2]:
            is_disjoint[i] = is_disjoint[last[2]] = False
        last = max(last, (device, end, i))
    return is_disjoint


def _address_ranges(values: Sequence[Any]) -> Iterator[tuple[AddressRange, int]]:
    """Yield the memory of each array and tensor, with its index."""
    indexed = [(v, i) for i, v in enumerate(values) if v is not None]
    for value, i in indexed:
        if isinstance(value, np.ndarray) and value.flags.c_contiguous:
            begin = native.address(value)
            yield ("cpu:0", begin, begin + value.nbytes), i
        elif isinstance(value, np.ndarray):
            yield ("cpu:0", *np.lib.array_utils.byte_bounds(value)), i
    on_devices = [(v, i) for v, i in indexed if not isinstance(v, np.ndarray)]
    if on_devices:
        bounds = device_values("a device").bounds
        yield from ((bounds(v), i) for v, i in on_devices)
