"""Symbolic sizes of a native segment as ops over registers, which native code evaluates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sardonyx._native import SizeKind
from sardonyx.errors import ShapeError
from sardonyx.graph.dim import Dim, Size

_NONE: Final = -1  # no register yet
_SIZE_KINDS: Final = {
    "add": SizeKind.ADD, "mul": SizeKind.MUL, "div": SizeKind.DIV, "mod": SizeKind.MOD,
    "min": SizeKind.MIN, "max": SizeKind.MAX, "broadcast": SizeKind.BROADCAST,
}  # fmt: skip


class SizeRegisters:
    """The sizes of a segment as a straight-line program: each op writes the next register.

    Equal sizes and equal subexpressions share a register (value numbering).
    """

    def __init__(self, names: dict[str, int]) -> None:
        self._names = names  # named dims of the whole native program
        self._by_size: dict[Size, int] = {}
        self._by_op: dict[tuple[SizeKind, int, int], int] = {}
        self.ops: list[tuple[SizeKind, int, int, int]] = []  # kind, operands, number
        self.used: set[str] = set()  # named dims

    def register(self, size: Size) -> int:
        """Return the register of a size."""
        register = self._by_size.get(size)
        if register is None:
            register = self._by_size[size] = (
                self._sum(size) if isinstance(size, Dim) else self._number(size)
            )
        return register

    def registers(self, sizes: Iterable[Size]) -> list[int]:
        """Return the registers of several sizes."""
        known = self._by_size
        return [known[s] if s in known else self.register(s) for s in sizes]

    def _number(self, value: int) -> int:
        if not -(2**63) <= value < 2**63:
            raise ShapeError(f"the size {value} does not fit 64 bits")
        return self._add(SizeKind.NUMBER, 0, 0, value)

    def _sum(self, size: Dim) -> int:
        """Add a size in normal form: a sum of monomials, each with an integer factor."""
        total = _NONE
        for monomial, factor in size.terms.items():
            term = _NONE
            for atom in monomial:
                if atom.kind == "name":
                    self.used.add(atom.text)
                    number = self._names.setdefault(atom.text, len(self._names))
                    atom_register = self._op(SizeKind.NAME, number, 0)
                else:
                    left, right = (self.register(a) for a in atom.args)
                    atom_register = self._op(_SIZE_KINDS[atom.kind], left, right)
                is_first = term == _NONE
                term = atom_register if is_first else self._op(SizeKind.MUL, term, atom_register)
            if factor != 1 or term == _NONE:
                number = self.register(factor)
                term = number if term == _NONE else self._op(SizeKind.MUL, term, number)
            total = term if total == _NONE else self._op(SizeKind.ADD, total, term)
        return total

    def _op(self, kind: SizeKind, a: int, b: int) -> int:
        key = (kind, a, b)
        register = self._by_op.get(key)
        if register is None:
            register = self._by_op[key] = self._add(kind, a, b, 0)
        return register

    def _add(self, kind: SizeKind, a: int, b: int, value: int) -> int:
        self.ops.append((kind, a, b, value))
        return len(self.ops) - 1
