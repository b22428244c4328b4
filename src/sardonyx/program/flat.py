"""Flattens nodes into the arrays of a native segment: registers of sizes, values, steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final

import sardonyx._native as native
from sardonyx._native import GuardKind, SizeKind, Storage
from sardonyx.base.records import field, frozen, mutable
from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Dim, Shape, Size, lone_name, symbol
from sardonyx.graph.dtype import U8
from sardonyx.graph.graph import Node, Value
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
from sardonyx.schedule import Search
from sardonyx.weights.layouts import STORED, Want, read_form

ABSENT: Final = -1
_SIZE_KINDS: Final = {
    "add": SizeKind.ADD, "mul": SizeKind.MUL, "div": SizeKind.DIV, "mod": SizeKind.MOD,
    "min": SizeKind.MIN, "max": SizeKind.MAX, "broadcast": SizeKind.BROADCAST,
}  # fmt: skip
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
IN_OTHERS: Final = VIEWS | {Storage.CONCAT_SLICE}  # values whose bytes are those of another


class Form(IntEnum):
    """How a value lies in memory; a kernel row accepts a form and those before it."""

    CONTIGUOUS = 0
    ROWS = 1  # the last axis has no gaps
    ANY = 2


class Sizes:
    """A register program for sizes; equal sizes share a register."""

    def __init__(self, names: dict[str, int]) -> None:
        self._names = names  # of the whole sequence
        self._found: dict[Size, int] = {}
        self._pairs: dict[tuple[SizeKind, int, int], int] = {}
        self.ops: list[tuple[SizeKind, int, int, int]] = []
        self.used: set[str] = set()

    def register(self, size: Size) -> int:
        """The register that holds a size."""
        found = self._found.get(size)
        if found is None:
            found = self._found[size] = (
                self._sum(size) if isinstance(size, Dim) else self._number(size)
            )
        return found

    def registers(self, sizes: Iterable[Size]) -> list[int]:
        return [self.register(s) for s in sizes]

    def _number(self, value: int) -> int:
        if not -(2**63) <= value < 2**63:
            raise ShapeError(f"the size {value} does not fit 64 bits")
        return self._add(SizeKind.NUMBER, 0, 0, value)

    def _sum(self, size: Dim) -> int:
        total = ABSENT
        for monomial, factor in size.terms.items():
            term = ABSENT
            for atom in monomial:
                if atom.kind == "name":
                    self.used.add(atom.text)
                    number = self._names.setdefault(atom.text, len(self._names))
                    part = self._pair(SizeKind.NAME, number, 0)
                else:
                    left, right = (self.register(a) for a in atom.args)
                    part = self._pair(_SIZE_KINDS[atom.kind], left, right)
                term = part if term == ABSENT else self._pair(SizeKind.MUL, term, part)
            if factor != 1 or term == ABSENT:
                number = self.register(factor)
                term = number if term == ABSENT else self._pair(SizeKind.MUL, term, number)
            total = term if total == ABSENT else self._pair(SizeKind.ADD, total, term)
        return total

    def _pair(self, kind: SizeKind, a: int, b: int) -> int:
        key = (kind, a, b)
        found = self._pairs.get(key)
        if found is None:
            found = self._pairs[key] = self._add(kind, a, b, 0)
        return found

    def _add(self, kind: SizeKind, a: int, b: int, value: int) -> int:
        self.ops.append((kind, a, b, value))
        return len(self.ops) - 1


@mutable
class Flat:
    """A value of a segment under construction."""

    storage: Storage
    dtype: int
    dims: list[int]
    form: Form = Form.CONTIGUOUS
    at: int = 0  # a slot, or the value that this is a view of
    want: Want | None = None
    numbers: list[int] = field(default_factory=list)


@frozen
class Growth:
    """A value that leaves the segment as one that came in, with more rows along an axis."""

    past: Value
    axis: int


@mutable
class FlatStep:
    """A step of a segment: a kernel and the numbers of its values; its node, for messages."""

    node: Node
    kernel: str
    inputs: list[int]
    outputs: list[int]
    ints: list[int]
    floats: list[float]
    shares: tuple[tuple[int, int], ...] = ()
    permutation: tuple[int, ...] = ()
    is_concat: bool = False


class SegmentBuilder:
    """One segment: nodes go in in the order they run; values of other segments are slots."""

    def __init__(
        self,
        names: dict[str, int],
        slot: Any,
        exports: frozenset[Value],
        growths: dict[Value, Growth],
        order: Search,
    ) -> None:
        """`slot` numbers the values between segments; `exports` are those that others read.

        `growths` are those among them that may be made in the block of an input, by value.
        `order` is how native code orders the steps when sizes are bound.
        """
        self.order = order
        self.names = names
        self.sizes = Sizes(names)
        self.values: list[Flat] = []
        self.steps: list[FlatStep] = []
        self.guards: list[Guard] = []
        self.resolved: list[tuple[int, int, int, str]] = []
        self.aliases: list[tuple[int, int]] = []
        self.exported: list[Value] = []
        self.grown: list[tuple[int, int, int, int, int, int]] = []
        self._slot = slot
        self._exports = exports
        self._growths = growths
        self._roomy = {g.past for g in growths.values()}
        self._numbers: dict[Value, int] = {}
        self._constants: dict[Packed | Stored, int] = {}
        self._copies: dict[int, int] = {}
        self._rows: set[int] = set()  # values whose rows may lie apart

    def add(self, node: Node, lowered: Lowered) -> None:
        """A node that was lowered."""
        try:
            self._add(node, lowered)
        except ShapeError as error:
            raise error.at(node=node) from None

    def _add(self, node: Node, lowered: Lowered) -> None:
        match lowered:
            case Call():
                self._call(node, lowered)
            case Sliced():
                for value, starts in zip(node.outputs, lowered.starts, strict=True):
                    self._slice(node, value, lowered, starts)
            case Reshaped(source):
                self._view(node, node.outputs[0], Storage.RESHAPED, self._plain(node, source))
            case Permuted(source, perm):
                number = self._number(source)
                form = _permuted_form(perm, self.values[number].form)
                self._view(node, node.outputs[0], Storage.PERMUTED, number, form, list(perm))
            case Zipped(source):
                self._zip(node, source)
            case Expanded(source):
                self._view(node, node.outputs[0], Storage.EXPANDED, self._number(source), Form.ANY)

    def resolve(self, node: Node, news: set[str]) -> None:
        """Notes which sizes of the last step's outputs are known only from its data."""
        waiting, step = set(news), len(self.steps) - 1
        for position, value in enumerate(node.outputs):
            for axis, size in enumerate(value.tensor.dims):
                name = lone_name(size)
                if name in waiting:
                    waiting.remove(name)
                    self.resolved.append((step, position, axis, name))

    def _call(self, node: Node, call: Call) -> None:
        accepts = Form(native.kernels[call.kernel].accepts)
        inputs = [ABSENT if v is None else self._operand(node, v, accepts) for v in call.inputs]
        outputs = [self._made(v) for v in node.outputs]
        if call.is_concat and call.ints[0] == node.outputs[0].tensor.rank - 1 > 0:
            self._join(node, inputs, outputs[0])
        if call.writes_rows:
            self._rows.add(outputs[0])
        ints = self.sizes.registers(call.ints)
        step = FlatStep(node, call.kernel, inputs, outputs, ints, list(call.floats))
        step.shares, step.permutation, step.is_concat = (
            call.shares,
            call.permutation,
            call.is_concat,
        )
        self.steps.append(step)

    def _join(self, node: Node, inputs: list[int], whole: int) -> None:
        """Has rows of inputs that nobody else reads written where they are joined."""
        start: Size = 0
        for value, number in zip(node.inputs, inputs, strict=True):
            assert value is not None
            views = self._rows_of(value, number)
            if views:
                made = self.values[views[-1]]
                made.storage, made.at, made.numbers = (
                    Storage.CONCAT_SLICE, whole, [self.sizes.register(start)],
                )  # fmt: skip
            for view in views:
                self.values[view].form = Form.ROWS
            start = start + value.tensor.dims[-1]

    def _rows_of(self, value: Value, number: int) -> list[int]:
        """A value that one node reads, and what its rows are views of; the last may be a part.

        Nothing where it may not, or where somebody else reads its rows.
        """
        found, last = [number], value.tensor.dims[-1]
        while len(value.uses) == 1 and self.values[number].form is Form.CONTIGUOUS:
            flat = self.values[number]
            if flat.storage is Storage.ARENA:
                return found if number in self._rows else []
            source = value.node.inputs[0] if value.node is not None else None
            if flat.storage is not Storage.RESHAPED or source is None:
                return []
            dims = source.tensor.dims
            if len(dims) < 2 or dims[-1] != last or self._numbers.get(source) != flat.at:
                return []
            value, number = source, flat.at
            found.append(number)
        return []

    def _operand(self, node: Node, operand: Value | Packed | Stored, accepts: Form) -> int:
        if not isinstance(operand, Value):
            return self._constant(operand)
        number = self._number(operand)
        return number if self.values[number].form <= accepts else self._copy(node, number)

    def _plain(self, node: Node, value: Value) -> int:
        """The number of a value, without gaps."""
        number = self._number(value)
        return number if self.values[number].form is Form.CONTIGUOUS else self._copy(node, number)

    def _copy(self, node: Node, number: int, into: int = ABSENT) -> int:
        """A copy of a value without gaps, made once."""
        if into == ABSENT and number in self._copies:
            return self._copies[number]
        value = self.values[number]
        if into == ABSENT:
            into = self._new(Flat(Storage.ARENA, value.dtype, value.dims))
            self._copies[number] = into
        self.steps.append(FlatStep(node, "copy", [number], [into], [], []))
        return into

    def _number(self, value: Value) -> int:
        found = self._numbers.get(value)
        if found is None:
            fact = value.tensor
            dims = self.sizes.registers(fact.dims)
            if value.const is not None:
                flat = Flat(Storage.CONSTANT, fact.dtype.onnx, dims, want=read_form(value.const))
            else:
                form = Form.ROWS if value in self._roomy else Form.CONTIGUOUS
                flat = Flat(Storage.SLOT, fact.dtype.onnx, dims, form, self._slot(value))
            found = self._numbers[value] = self._new(flat)
        return found

    def _constant(self, operand: Packed | Stored) -> int:
        """The number of a constant in a form of its own."""
        found = self._constants.get(operand)
        if found is None:
            const = operand.value.const
            assert const is not None
            dtype, shape = U8, const.shape
            if isinstance(operand, Packed):
                want = Want(const, operand.kernel, operand.size_bytes, operand.ints)
                shape = (operand.size_bytes,)
            elif const.dtype.bits < 8:
                want, shape = Want(const, STORED), (const.dtype.packed_bytes(const.count),)
            else:
                want, dtype = Want(const, STORED), const.dtype
            dims = self.sizes.registers(shape)
            flat = Flat(Storage.CONSTANT, dtype.onnx, dims, want=want)
            found = self._constants[operand] = self._new(flat)
        return found

    def _made(self, value: Value) -> int:
        """A value that a step fills."""
        fact = value.tensor
        dims = self.sizes.registers(fact.dims)
        flat = Flat(Storage.ARENA, fact.dtype.onnx, dims)
        if value in self._exports:
            flat.storage, flat.at = Storage.EXPORTED, self._slot(value)
            self.exported.append(value)
        if value in self._growths:
            self._make_room(value, flat, self._growths[value])
        self._numbers[value] = self._new(flat)
        return self._numbers[value]

    def _make_room(self, value: Value, flat: Flat, growth: Growth) -> None:
        rooms = [symbol(f"room#{v.name}") for v in (growth.past, value)]
        _, made = self.sizes.registers(rooms)
        flat.form, flat.numbers = Form.ROWS, [growth.axis, made]
        slots = self._slot(growth.past), flat.at
        had, has = (self.names[str(room)] for room in rooms)
        self.grown.append((*slots, growth.axis, flat.dims[growth.axis], had, has))

    def _view(
        self,
        node: Node,
        value: Value,
        storage: Storage,
        source: int,
        form: Form = Form.CONTIGUOUS,
        numbers: list[int] | None = None,
    ) -> None:
        """A value whose bytes are those of another."""
        fact = value.tensor
        dims = self.sizes.registers(fact.dims)
        flat = Flat(storage, fact.dtype.onnx, dims, form, source, numbers=numbers or [])
        number = self._numbers[value] = self._new(flat)
        if value in self._exports:
            self._export_view(node, value, number)

    def _zip(self, node: Node, source: Value) -> None:
        """The rows of a value as one that leaves in another form."""
        at = self._plain(node, source)
        flat = Flat(Storage.RESHAPED, self.values[at].dtype, self.values[at].dims, at=at)
        self._export_view(node, node.outputs[0], self._new(flat))

    def _export_view(self, node: Node, value: Value, number: int) -> None:
        self.exported.append(value)
        root = self.values[number]
        while root.storage is Storage.RESHAPED:
            root = self.values[root.at]
        if root.storage is Storage.ARENA and root.form is Form.CONTIGUOUS:
            root.storage, root.at = Storage.EXPORTED, self._slot(None)
        if root.storage is Storage.EXPORTED:
            self.aliases.append((self._slot(value), number))
            return
        flat = self.values[number]
        made = self._new(Flat(Storage.EXPORTED, flat.dtype, flat.dims, at=self._slot(value)))
        self._numbers[value] = self._copy(node, number, made)

    def _slice(self, node: Node, value: Value, how: Sliced, starts: Shape) -> None:
        number = self._number(how.value)
        whole, part = how.value.tensor.dims, value.tensor.dims
        form = max(self.values[number].form, _sliced_form(whole, part, how.steps))
        numbers = [*self.sizes.registers(starts), *how.steps]
        self._view(node, value, Storage.SLICED, number, form, numbers)

    def _new(self, flat: Flat) -> int:
        self.values.append(flat)
        return len(self.values) - 1

    @property
    def names_of_values(self) -> dict[int, Value]:
        """The values of the graph by their numbers here; copies and packed forms have none."""
        return {number: value for value, number in self._numbers.items()}

    def guard(self, guards: Iterable[Guard]) -> None:
        """Conditions to hold before the segment runs."""
        for guard in guards:
            self.guards.append(guard)
            # Now: a body asks what is around it for the sizes that it has registers of.
            try:
                self.sizes.registers((guard.left, guard.right))
            except ShapeError as error:
                raise error.at(node=guard.node) from None

    def spec(
        self, number: int, names: dict[str, int], address: Callable[[Want], int]
    ) -> native.SegmentSpec:
        """What native code is given; `address` says where the bytes of a constant lie."""
        guards = [
            (_GUARD_KINDS[g.kind], self.sizes.register(g.left), self.sizes.register(g.right))
            for g in self.guards
        ]
        key = sorted(names[n] for n in self.sizes.used)
        made = native.SegmentSpec(number, key, self.order.effort, self.order.branches)
        for op in self.sizes.ops:
            made.add_size(*op)
        for guard in guards:
            made.add_guard(*guard)
        for v in self.values:
            at = 0 if v.want is None else address(v.want)
            made.add_value(v.storage, v.dtype, v.at, at, v.dims, v.numbers)
        for s in self.steps:
            made.add_step(
                s.kernel,
                s.inputs,
                s.outputs,
                s.ints,
                s.floats,
                s.shares,
                s.permutation,
                s.is_concat,
            )
        for step, output, axis, name in self.resolved:
            made.add_resolved(step, output, axis, names[name])
        for slot, value in self.aliases:
            made.add_alias(slot, value)
        for growth in self.grown:
            made.add_growth(*growth)
        return made


def _permuted_form(perm: tuple[int, ...], form: Form) -> Form:
    if perm == tuple(range(len(perm))):
        return form
    return max(form, Form.ROWS) if perm[-1] == len(perm) - 1 else Form.ANY


def _sliced_form(whole: Shape, part: Shape, steps: tuple[int, ...]) -> Form:
    """How a part of a tensor without gaps lies."""
    changed = [
        i for i, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b or steps[i] != 1
    ]
    if not changed:
        return Form.CONTIGUOUS
    if all(d == 1 for d in part[: changed[-1]]) and steps[changed[-1]] == 1:
        return Form.CONTIGUOUS
    return Form.ROWS if steps[-1] == 1 else Form.ANY
