"""Builds native segments: lowered nodes become flat lists of size registers, values and steps.

`SegmentBuilder.spec` passes the lists to native code (`native.SegmentSpec`). Steps are in an order
that the schedule proposes; native code searches for a better one when sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final

import sardonyx._native as native
from sardonyx._native import GuardKind, Storage
from sardonyx.base.records import field, frozen, mutable
from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Shape, Size, lone_name, symbol
from sardonyx.graph.dtype import U8
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.graph.guard import Guard
from sardonyx.place.lowered import (
    Call,
    Expanded,
    Lowered,
    Packed,
    Permuted,
    Reshaped,
    Sliced,
    Stored,
    Zipped,
)
from sardonyx.program.size_registers import SizeRegisters
from sardonyx.schedule import Search
from sardonyx.weights.layouts import STORED, WeightLayout, default_layout

ABSENT: Final = -1
_GUARD_KINDS: Final = {
    "equal": GuardKind.EQUAL,
    "assumed": GuardKind.EQUAL,
    "chosen": GuardKind.EQUAL,
    "equal_or_one": GuardKind.EQUAL_OR_ONE,
    "broadcasts": GuardKind.BROADCASTS,
    "divides": GuardKind.DIVIDES,
    "at_least": GuardKind.AT_LEAST,
    "assumed_at_least": GuardKind.AT_LEAST,
}
VIEWS: Final = frozenset((Storage.RESHAPED, Storage.PERMUTED, Storage.SLICED, Storage.EXPANDED))
ALIASING: Final = VIEWS | {
    Storage.CONCAT_SLICE,
    Storage.UPDATED,
}  # values in the bytes of another value


class Contiguity(IntEnum):
    """The strides of a value. A kernel that accepts a class accepts those before it too.

    The numbers are those of `Accepts` in kernels/kernel.h.
    """

    CONTIGUOUS = 0
    ROWS = 1  # stride 1 along the last axis; others are any
    STRIDED = 2  # any strides


@mutable
class SegmentValue:
    """A value of a segment under construction."""

    storage: Storage
    dtype: int  # ONNX's number
    dims: list[int]  # registers
    contiguity: Contiguity = Contiguity.CONTIGUOUS
    at: int = 0  # a slot (SLOT, EXPORTED), or the value whose bytes these are (ALIASING)
    layout: WeightLayout | None = None  # of a constant
    # By storage: permutation; starts and steps of a slice; column in a Concat's output; axis and
    # capacity of a cache.
    numbers: list[int] = field(default_factory=list)


@frozen
class CacheGrowth:
    """An output that is an input with rows appended along an axis, as KV caches are."""

    past: Value
    axis: int


@mutable
class SegmentStep:
    """A kernel call of a segment; operands are numbers of values. The node is for messages."""

    node: Node
    kernel: str
    inputs: list[int]
    outputs: list[int]
    ints: list[int]  # registers
    floats: list[float]
    shares: tuple[tuple[int, int], ...] = ()  # (input, output) that may alias
    permutation: tuple[int, ...] = ()  # of the axes of aliasing inputs
    is_concat: bool = False


class SegmentBuilder:
    """A segment under construction; nodes are added in topological order.

    Values of other items of the native program are slots.
    """

    def __init__(
        self,
        names: dict[str, int],
        slot: Any,
        exports: frozenset[Value],
        growths: dict[Value, CacheGrowth],
        order: Search,
    ) -> None:
        """`slot` returns the slot of a value; `exports` are the values that other items read.

        `growths` has the exports that may be computed in the block of an input.
        `order` configures native code's search for an execution order.
        """
        self.order = order
        self.names = names
        self.sizes = SizeRegisters(names)
        self.values: list[SegmentValue] = []
        self.steps: list[SegmentStep] = []
        self.guards: list[Guard] = []
        self.resolved: list[tuple[int, int, int, str]] = []  # step, output, axis, named dim
        self.aliases: list[tuple[int, int]] = []  # (slot, value) of exported views
        self.exported: list[Value] = []
        # Input and output slot, axis, rows, names of their capacities, whether new blocks reserve
        # rows: see `add_growth`.
        self.growths: list[tuple[int, int, int, int, int, int, bool]] = []
        self._slot = slot
        self._exports = exports
        self._cache_growths = growths
        self._has_capacity = {g.past for g in growths.values()}
        self._numbers: dict[Value, int] = {}
        self._constants: dict[Packed | Stored, int] = {}
        self._copies: dict[int, int] = {}  # contiguous copies, by value
        self._row_strided: set[int] = set()  # values that kernels can write with a row stride
        self._draws = False  # some node draws from the random streams of the process

    def add(self, node: Node, lowered: Lowered) -> None:
        """Add a lowered node."""
        try:
            self._add(node, lowered)
        except ShapeError as error:
            raise error.add_context(node=node) from None

    def _add(self, node: Node, lowered: Lowered) -> None:
        self._draws |= not node.op.is_pure and node.attrs.get("seed", 0) is None
        match lowered:
            case Call():
                self._call(node, lowered)
            case Sliced():
                for value, starts in zip(node.outputs, lowered.starts, strict=True):
                    self._slice(node, value, lowered, starts)
            case Reshaped(source):
                self._view(node, node.outputs[0], Storage.RESHAPED, self._operand(node, source))
            case Permuted(source, perm):
                number = self._number(source)
                contiguity = _permuted_contiguity(perm, self.values[number].contiguity)
                self._view(node, node.outputs[0], Storage.PERMUTED, number, contiguity, list(perm))
            case Zipped(source):
                self._export_dict_rows(node, source)
            case Expanded(source):
                number = self._number(source)
                self._view(node, node.outputs[0], Storage.EXPANDED, number, Contiguity.STRIDED)

    def resolve(self, node: Node, new_dims: set[str]) -> None:
        """Record the named dims in `new_dims` as resolved by the outputs of the last step."""
        missing, step = set(new_dims), len(self.steps) - 1
        for position, value in enumerate(node.outputs):
            for axis, size in enumerate(value.tensor.dims):
                name = lone_name(size)
                if name in missing:
                    missing.remove(name)
                    self.resolved.append((step, position, axis, name))

    def _call(self, node: Node, call: Call) -> None:
        accepts = Contiguity(native.kernels[call.kernel].accepts)
        inputs = [ABSENT if v is None else self._operand(node, v, accepts) for v in call.inputs]
        updates = {output: inputs[source] for source, output in call.updates}
        outputs = [
            self._next_version(v, updates[i]) if i in updates else self._output(v)
            for i, v in enumerate(node.outputs)
        ]
        if call.is_concat and call.ints[0] == node.outputs[0].tensor.rank - 1 > 0:
            self._write_through(node, inputs, outputs[0])
        if call.writes_rows:
            self._row_strided.add(outputs[0])
        ints = self.sizes.registers(call.ints)
        step = SegmentStep(node, call.kernel, inputs, outputs, ints, list(call.floats))
        step.shares, step.permutation = call.shares, call.permutation
        step.is_concat = call.is_concat
        self.steps.append(step)
        for position in updates:
            if node.outputs[position] in self._exports:
                self._export_view(node, node.outputs[position], outputs[position])

    def _write_through(self, node: Node, inputs: list[int], whole: int) -> None:
        """Make Concat inputs write-through: they are written directly into its output.

        This is for a Concat along the last axis, whose inputs become slices with a row stride.
        Along other axes native code does the same when it plans memory, as contiguous ranges.
        """
        start: Size = 0
        for value, number in zip(node.inputs, inputs, strict=True):
            assert value is not None
            views = self._row_views(value, number)
            if views:
                root = self.values[views[-1]]
                root.storage, root.at = Storage.CONCAT_SLICE, whole
                root.numbers = [self.sizes.register(start)]
            for view in views:
                self.values[view].contiguity = Contiguity.ROWS
            start = start + value.tensor.dims[-1]

    def _row_views(self, value: Value, number: int) -> list[int]:
        """Return a value and the values that it reshapes, down to one that can have a row stride.

        The list is empty if there is none, or if another node reads any of them: its kernel may
        require contiguous rows. Reshapes must keep the last axis, so that rows stay rows.
        """
        views, last = [number], value.tensor.dims[-1]
        while len(value.uses) == 1 and self.values[number].contiguity is Contiguity.CONTIGUOUS:
            current = self.values[number]
            if current.storage is Storage.ARENA:
                return views if number in self._row_strided else []
            source = optional_input(value.node, 0) if value.node is not None else None
            if current.storage is not Storage.RESHAPED or source is None:
                return []
            dims = source.tensor.dims
            if len(dims) < 2 or dims[-1] != last or self._numbers.get(source) != current.at:
                return []
            value, number = source, current.at
            views.append(number)
        return []

    def _operand(
        self,
        node: Node,
        operand: Value | Packed | Stored,
        accepts: Contiguity = Contiguity.CONTIGUOUS,
    ) -> int:
        """Return the number of an operand, or of its contiguous copy if need be."""
        if not isinstance(operand, Value):
            return self._constant(operand)
        number = self._number(operand)
        return number if self.values[number].contiguity <= accepts else self._copy(node, number)

    def _copy(self, node: Node, number: int, into: int = ABSENT) -> int:
        """Add a copy of a value into `into`, or into a new contiguous value, which is made once."""
        if into == ABSENT and number in self._copies:
            return self._copies[number]
        value = self.values[number]
        if into == ABSENT:
            into = self._append(SegmentValue(Storage.ARENA, value.dtype, value.dims))
            self._copies[number] = into
        self.steps.append(SegmentStep(node, "copy", [number], [into], [], []))
        return into

    def _number(self, value: Value) -> int:
        number = self._numbers.get(value)
        if number is None:
            fact = value.tensor
            new = SegmentValue(Storage.SLOT, fact.dtype.onnx, self.sizes.registers(fact.dims))
            if value.const is not None:
                new.storage, new.layout = Storage.CONSTANT, default_layout(value.const)
            else:
                new.at = self._slot(value)
                if value in self._has_capacity:
                    new.contiguity = Contiguity.ROWS
            number = self._numbers[value] = self._append(new)
        return number

    def _constant(self, operand: Packed | Stored) -> int:
        """Return the number of a constant that is prepacked or read as stored."""
        number = self._constants.get(operand)
        if number is None:
            const = operand.value.const
            assert const is not None
            dtype, shape = U8, const.shape
            if isinstance(operand, Packed):
                layout = WeightLayout(const, operand.kernel, operand.size_bytes, operand.ints)
                shape = (operand.size_bytes,)
            elif const.dtype.bits < 8:
                layout = WeightLayout(const, STORED)
                shape = (const.dtype.packed_bytes(const.count),)
            else:
                layout, dtype = WeightLayout(const, STORED), const.dtype
            dims = self.sizes.registers(shape)
            new = SegmentValue(Storage.CONSTANT, dtype.onnx, dims, layout=layout)
            number = self._constants[operand] = self._append(new)
        return number

    def _output(self, value: Value) -> int:
        """Add an output of a step and return its number."""
        fact = value.tensor
        dims = self.sizes.registers(fact.dims)
        new = SegmentValue(Storage.ARENA, fact.dtype.onnx, dims)
        if value in self._exports:
            new.storage, new.at = Storage.EXPORTED, self._slot(value)
            self.exported.append(value)
        if value in self._cache_growths:
            self._reserve_capacity(value, new, self._cache_growths[value])
        self._numbers[value] = self._append(new)
        return self._numbers[value]

    def _next_version(self, value: Value, source: int) -> int:
        """Add an output that is written over an input of the model, and return its number."""
        fact = value.tensor
        dims = self.sizes.registers(fact.dims)
        new = SegmentValue(Storage.UPDATED, fact.dtype.onnx, dims, at=source)
        self._numbers[value] = self._append(new)
        return self._numbers[value]

    def _reserve_capacity(self, value: Value, new: SegmentValue, growth: CacheGrowth) -> None:
        """Give a cache the strides of its block, which has capacity for more rows along an axis.

        The capacities of the input's and of the output's block are named dims like others: native
        code sets them when it allocates.
        """
        capacities = [symbol(f"capacity#{v.name}") for v in (growth.past, value)]
        _, register = self.sizes.registers(capacities)
        new.contiguity, new.numbers = Contiguity.ROWS, [growth.axis, register]
        slots = self._slot(growth.past), new.at
        before, after = (self.names[str(capacity)] for capacity in capacities)
        rows = new.dims[growth.axis]
        has_spare = not isinstance(growth.past.tensor.dims[growth.axis], int)
        self.growths.append((*slots, growth.axis, rows, before, after, has_spare))

    def _view(
        self,
        node: Node,
        value: Value,
        storage: Storage,
        source: int,
        contiguity: Contiguity = Contiguity.CONTIGUOUS,
        numbers: list[int] | None = None,
    ) -> None:
        """Add a value that is a view of another."""
        fact = value.tensor
        dims = self.sizes.registers(fact.dims)
        new = SegmentValue(
            storage, fact.dtype.onnx, dims, contiguity, source, numbers=numbers or []
        )
        number = self._numbers[value] = self._append(new)
        if value in self._exports:
            self._export_view(node, value, number)

    def _export_dict_rows(self, node: Node, source: Value) -> None:
        """Export the rows of a value, which native code returns as dicts."""
        at = self._operand(node, source)
        new = SegmentValue(Storage.RESHAPED, self.values[at].dtype, self.values[at].dims, at=at)
        self._export_view(node, node.outputs[0], self._append(new))

    def _export_view(self, node: Node, value: Value, number: int) -> None:
        """Export a view: as an alias if it reshapes an exported value, else as a copy."""
        self.exported.append(value)
        root = self.values[number]
        while root.storage is Storage.RESHAPED:
            root = self.values[root.at]
        # A value of the arena is exported itself, to a slot that no value of the graph has.
        if root.storage is Storage.ARENA and root.contiguity is Contiguity.CONTIGUOUS:
            root.storage, root.at = Storage.EXPORTED, self._slot(None)
        if root.storage is Storage.EXPORTED:
            self.aliases.append((self._slot(value), number))
            return
        current = self.values[number]
        copy = self._append(
            SegmentValue(Storage.EXPORTED, current.dtype, current.dims, at=self._slot(value))
        )
        self._numbers[value] = self._copy(node, number, copy)

    def _slice(self, node: Node, value: Value, how: Sliced, starts: Shape) -> None:
        number = self._number(how.value)
        whole, part = how.value.tensor.dims, value.tensor.dims
        contiguity = max(self.values[number].contiguity, _sliced_contiguity(whole, part, how.steps))
        numbers = [*self.sizes.registers(starts), *how.steps]
        self._view(node, value, Storage.SLICED, number, contiguity, numbers)

    def _append(self, new: SegmentValue) -> int:
        self.values.append(new)
        return len(self.values) - 1

    @property
    def values_by_number(self) -> dict[int, Value]:
        """The values of the graph, by number; copies and prepacked constants are not among them."""
        return {number: value for value, number in self._numbers.items()}

    def guard(self, guards: Iterable[Guard]) -> None:
        """Add conditions that must hold before the segment runs."""
        for guard in guards:
            self.guards.append(guard)
            # Registers are made now, not in `spec`: the names in them are those that a body
            # needs from its outer program.
            try:
                self.sizes.registers((guard.left, guard.right))
            except ShapeError as error:
                raise error.add_context(node=guard.node) from None

    def spec(
        self, number: int, names: dict[str, int], address: Callable[[WeightLayout], int]
    ) -> native.SegmentSpec:
        """Return the native segment; `address` returns where the bytes of a constant are."""
        key = sorted(names[n] for n in self.sizes.used)
        search = self.order
        # Nodes that draw concurrently would take the streams in any order, even after `set_seed`.
        branches = search.branches and not self._draws
        spec = native.SegmentSpec(number, key, search.effort, branches, search.consumes_inputs)
        for op in self.sizes.ops:
            spec.add_size(*op)
        for g in self.guards:  # `guard` has added their registers
            operands = self.sizes.registers((g.left, g.right))
            spec.add_guard(_GUARD_KINDS[g.kind], *operands)
        for v in self.values:
            bytes_at = 0 if v.layout is None else address(v.layout)
            spec.add_value(v.storage, v.dtype, v.at, bytes_at, v.dims, v.numbers)
        for s in self.steps:
            arguments = (s.inputs, s.outputs, s.ints, s.floats)
            spec.add_step(s.kernel, *arguments, s.shares, s.permutation, s.is_concat)
        for step, output, axis, name in self.resolved:
            spec.add_resolved(step, output, axis, names[name])
        for slot, value in self.aliases:
            spec.add_alias(slot, value)
        for growth in self.growths:
            spec.add_growth(*growth)
        for at, named in self.values_by_number.items():
            if named.name in search.held_inputs and self.values[at].storage is native.Storage.SLOT:
                spec.hold_input(at)
        return spec


def _permuted_contiguity(perm: tuple[int, ...], contiguity: Contiguity) -> Contiguity:
    if perm == tuple(range(len(perm))):
        return contiguity
    return max(contiguity, Contiguity.ROWS) if perm[-1] == len(perm) - 1 else Contiguity.STRIDED


def _sliced_contiguity(whole: Shape, part: Shape, steps: tuple[int, ...]) -> Contiguity:
    """Return the contiguity of a slice of a contiguous tensor."""
    changed = [
        i for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b or steps[i] != 1
    ]
    if not changed:
        return Contiguity.CONTIGUOUS
    if all(d == 1 for d in part[: changed[-1]]) and steps[changed[-1]] == 1:
        return Contiguity.CONTIGUOUS
    return Contiguity.ROWS if steps[-1] == 1 else Contiguity.STRIDED
