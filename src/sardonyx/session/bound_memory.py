"""What is bound for many runs: compared and measured once, not in each of them."""

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
from sardonyx.session.feeds import is_at, taken, tensors

Bounds = tuple[str, int, int]  # device, first byte, and the one behind the last


@frozen
class Plan:
    """What a program makes of bound memory."""

    program: Program
    dims: dict[str, int]
    into: dict[int, Any]  # as in a Run, as is the next
    shared: dict[int, int]


class Bound:
    """Inputs, and memory for outputs or None for each, that stay the same from run to run."""

    def __init__(
        self, feed: dict[str, Any], places: Sequence[Any], specs: Mapping[str, Input]
    ) -> None:
        """`feed` was checked against `specs`."""
        self.feed = feed
        self.specs = specs
        inputs = {_place_of(v): v for v in feed.values() if is_tensor(v)}
        # An output in the very memory of an input is known by that tensor.
        self.places = [inputs.get(_place_of(p), p) if is_tensor(p) else p for p in places]
        # Two outputs in one place are copied there, in the order in which they were bound.
        apart = zip(self.places, _apart(self.places), strict=True)
        self.alone = [place if is_alone else None for place, is_alone in apart]
        lenders = (borrowed(v) for v in tensors((*feed.values(), *places)))
        self.lenders = [lender for lender in lenders if lender is not None]  # checked in each run
        self._plan: Plan | None = None
        self._taken: set[Any] | None = None

    def plan(self, program: Program) -> Plan:
        """What a program makes of it."""
        plan = self._plan  # read once: another thread may have another program
        if plan is None or plan.program is not program:
            plan = Plan(
                program, bind(program, self.feed), self._into(program), self._shared(program)
            )
            self._plan = plan
        return plan

    def taken(self) -> set[Any]:
        """What `hand_out` is to share no memory with."""
        if self._taken is None:
            self._taken = taken(self.feed.values(), self.places)
        return self._taken.copy()

    def _into(self, program: Program) -> dict[int, Any]:
        """Places by slot: those that share memory with nothing fed and with no other.

        Another segment may read what the first one would write over.
        """
        is_apart = _apart([*self.alone, *tensors(self.feed.values())])
        return {
            output.slot: place
            for i, (output, place) in enumerate(zip(program.outputs, self.alone, strict=True))
            if place is not None and is_apart[i] and is_at(place, output.device)
        }

    def _shared(self, program: Program) -> dict[int, int]:
        """Slots of outputs whose place on a device is the memory of an input, with its slot."""
        slots = {id(v): i.slot for i in program.inputs if is_tensor(v := self.feed.get(i.name))}
        return {
            output.slot: slots[id(place)]
            for output, place in zip(program.outputs, self.places, strict=True)
            if id(place) in slots
        }


def _place_of(tensor: Any) -> tuple[Any, ...]:
    """Equal for tensors that are the same elements in the same memory."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _apart(values: Sequence[Any]) -> list[bool]:
    """For each value whether it has no byte in common with another."""
    found = [True] * len(values)
    last: tuple[str, int, int] = "", 0, 0  # of those seen, the one that reaches farthest
    for (space, begin, end), i in sorted(_all_bounds(values)):
        if begin < end and (space, begin) < last[:2]:
            found[i] = found[last[2]] = False
        last = max(last, (space, end, i))
    return found


def _all_bounds(values: Sequence[Any]) -> Iterator[tuple[Bounds, int]]:
    """The memory of arrays and tensors, with their numbers."""
    numbered = [(v, i) for i, v in enumerate(values) if v is not None]
    for value, i in numbered:
        if isinstance(value, np.ndarray) and value.flags.c_contiguous:
            begin = native.address(value)
            yield ("cpu:0", begin, begin + value.nbytes), i
        elif isinstance(value, np.ndarray):
            yield ("cpu:0", *np.lib.array_utils.byte_bounds(value)), i
    others = [(v, i) for v, i in numbered if not isinstance(v, np.ndarray)]
    if others:
        bounds = device_values("a device").bounds
        yield from ((bounds(v), i) for v, i in others)
