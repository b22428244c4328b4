"""Symbolic dimensions: integer polynomials over names, in a normal form.

A size is an `int` or a `Dim`. A name stands for a non-negative integer. Equal polynomials have
equal normal forms, so `==` proves equality. What a polynomial cannot express (division, remainder,
minimum, maximum, broadcast) is an atom: an opaque factor whose arguments are in normal form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sardonyx.errors import InternalError, ShapeError

Monomial = tuple["Atom", ...]
Terms = dict[Monomial, int]

_ONE: Final[Monomial] = ()
_MAX_DIVISION_STEPS: Final = 32
# Limits against hostile models, which can square a size at every node; real models stay far below.
_MAX_TERMS: Final = 4096
_MAX_DEGREE: Final = 64
_MAX_TEXT: Final = 10_000
_MAX_FACTOR: Final = 2**128
_MAX_DEPTH: Final = 100  # depth of nested atoms, which are evaluated recursively


class FormulaTooLong(ShapeError):
    """A symbolic size exceeds the limits on its formula; inference then leaves it open."""


class Atom:
    """A name, or div, mod, min, max or broadcast of two sizes. Atoms of equal text are equal."""

    __slots__ = ("args", "depth", "kind", "least", "text")

    def __init__(self, kind: str, text: str, args: tuple[Size, ...] = ()) -> None:
        self.kind: Final = kind
        self.text: Final = text
        self.args: Final = args
        self.depth: Final[int] = 1 + max(
            (a.depth for x in args for m in _terms(x) for a in m), default=0
        )
        self.least: float | None = None  # lower bound, computed on demand

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Atom) and self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Atom) -> bool:
        return self.text < other.text


class Dim:
    """A polynomial with at least one name. Immutable."""

    __slots__ = ("_hash", "names", "terms")

    def __init__(self, terms: Terms) -> None:
        self.terms: Final = terms
        self._hash = 0
        self.names: frozenset[str] | None = None  # computed on demand

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        if len(terms) > _MAX_TERMS:
            raise FormulaTooLong(f"a size is too long a formula: a sum of {len(terms)} terms")
        return _normal(terms)

    def __mul__(self, other: Size) -> Size:
        if isinstance(other, int):
            return _normal({m: f * other for m, f in self.terms.items()})
        _check_product(self.terms, other.terms)
        terms: Terms = {}
        for left, f in self.terms.items():
            for right, g in other.terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + f * g
        return _normal(terms)

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + (other * -1)

    def __rsub__(self, other: Size) -> Size:
        return (self * -1) + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        return floor_div(self, other)

    def __rfloordiv__(self, other: Size) -> Size:
        return floor_div(other, self)

    def __mod__(self, other: Size) -> Size:
        return modulo(self, other)

    def __rmod__(self, other: Size) -> Size:
        return modulo(other, self)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self.terms == other.terms)

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __str__(self) -> str:
        # Highest degree first, the plain number last, as people write polynomials.
        text = ""
        for monomial, factor in sorted(self.terms.items(), key=lambda t: (-len(t[0]), t[0])):
            factors = [] if monomial and abs(factor) == 1 else [str(abs(factor))]
            term = "*".join([*factors, *(a.text for a in monomial)])
            sign = (" - " if text else "-") if factor < 0 else (" + " if text else "")
            text += sign + term
        return text

    __repr__ = __str__


Size = int | Dim
Shape = tuple[Size, ...]


def symbol(name: str) -> Dim:
    """Return the dimension with a name."""
    # A name that is not an identifier is quoted, so that it does not read as a formula.
    return Dim({(Atom("name", name if name.isidentifier() else repr(name)),): 1})


def _terms(size: Size) -> Terms:
    return size.terms if isinstance(size, Dim) else {_ONE: size}


def _normal(terms: Terms) -> Size:
    terms = {m: f for m, f in terms.items() if f}
    if not terms:
        return 0
    if max(terms.values()) > _MAX_FACTOR or min(terms.values()) < -_MAX_FACTOR:
        raise FormulaTooLong("a size is too large a number: it has more than 128 bits")
    if len(terms) == 1 and _ONE in terms:
        return terms[_ONE]
    return Dim(terms)


def _check_product(left: Terms, right: Terms) -> None:
    terms = len(left) * len(right)
    degree = max(map(len, left)) + max(map(len, right))
    if terms > _MAX_TERMS or degree > _MAX_DEGREE:
        raise FormulaTooLong(f"a size is too long a formula: {terms} terms of degree {degree}")


def _call(kind: str, a: Size, b: Size) -> Dim:
    length = sum(len(atom.text) for x in (a, b) for m in _terms(x) for atom in m)
    if length > _MAX_TEXT:
        raise FormulaTooLong(f"a size is too long a formula: {length} characters inside {kind}")
    atom = Atom(kind, f"{kind}({a}, {b})", (a, b))
    if atom.depth > _MAX_DEPTH:
        raise FormulaTooLong(f"a size is too long a formula: {atom.depth} calls inside each other")
    return Dim({(atom,): 1})


def floor_div(a: Size, b: Size) -> Size:
    """Return a // b, exact where the polynomials divide."""
    if b == 0:
        raise ShapeError(f"the size {a} is divided by 0")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    exact = _divide(a, b)
    if exact is not None:
        return exact
    if isinstance(b, int) and b > 0 and isinstance(a, Dim):
        # Multiples of b are taken out of the division: (2*n + 1) // 2 is n,
        # and (n + 3) // 2 is (n + 1) // 2 + 1.
        whole = _normal({m: f // b for m, f in a.terms.items()})
        rest = _normal({m: f % b for m, f in a.terms.items()})
        if isinstance(rest, int):
            return whole + rest // b
        return whole + _call("div", rest, b)
    return _call("div", a, b)


def _divide(a: Size, b: Size) -> Size | None:
    """Return a / b if it is a polynomial with integer factors, by polynomial long division."""
    rest, divisor = dict(_terms(a)), _terms(b)
    lead = max(divisor, key=_degree)
    quotient: Terms = {}
    for _ in range(_MAX_DIVISION_STEPS):
        if not rest:
            return _normal(quotient)
        top = max(rest, key=_degree)
        monomial = _remove(top, lead)
        factor, odd = divmod(rest[top], divisor[lead])
        if monomial is None or odd:
            return None
        quotient[monomial] = quotient.get(monomial, 0) + factor
        for m, f in divisor.items():
            product = tuple(sorted(m + monomial))
            left = rest.get(product, 0) - f * factor
            if left:
                rest[product] = left
            else:
                rest.pop(product, None)
    return None


def _degree(monomial: Monomial) -> tuple[int, Monomial]:
    return len(monomial), monomial


def _remove(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """Return monomial / factor, or None if it is not a monomial."""
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def modulo(a: Size, b: Size) -> Size:
    """Return a % b, 0 where the polynomials divide."""
    if b == 0:
        raise ShapeError(f"the size {a} is divided by 0")
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if _divide(a, b) is not None:
        return 0
    return _call("mod", a, b)


def maximum(a: Size, b: Size) -> Size:
    """Return the larger of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if least(a - b) >= 0:
        return a
    return b if least(b - a) >= 0 else _call("max", a, b)


def minimum(a: Size, b: Size) -> Size:
    """Return the smaller of two sizes."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if least(a - b) >= 0:
        return b
    return a if least(b - a) >= 0 else _call("min", a, b)


def broadcast(a: Size, b: Size) -> Size:
    """Return the broadcast of two sizes: the one that is not 1."""
    if a == b or b == 1:
        return a
    if a == 1 or isinstance(b, int):
        return b
    if isinstance(a, int):
        return a
    if _is_min_of(a, b):
        return b
    if _is_min_of(b, a):
        return a
    a, b = sorted((a, b), key=str)
    return _call("broadcast", a, b)


def _is_min_of(a: Dim, b: Dim) -> bool:
    """Return whether a is min(b, n) with n >= 1: if the two broadcast, the result is b."""
    (monomial, factor), *more = a.terms.items()
    if more or factor != 1 or len(monomial) != 1 or monomial[0].kind != "min":
        return False
    args = monomial[0].args
    return b in args and any(isinstance(n, int) and n >= 1 for n in args)


def least(size: Size) -> float:
    """Return a lower bound of a size; -inf if none is known."""
    if isinstance(size, int):
        return size
    total: float = 0  # an int unless a bound is infinite: a float sum might round up
    for monomial, factor in size.terms.items():
        if not monomial:
            total += factor
        elif factor < 0 or any(_least_atom(a) < 0 for a in monomial):
            return float("-inf")
        else:
            product: float = 1
            for atom in monomial:
                product *= _least_atom(atom)
            total += factor * product
    return total


def _least_atom(atom: Atom) -> float:
    if atom.least is None:
        atom.least = 0 if atom.kind == "name" else _least_call(atom)
    return atom.least


def _least_call(atom: Atom) -> float:
    a, b = (least(x) for x in atom.args)
    if atom.kind == "div":
        if isinstance(atom.args[1], int) and b > 0 and a > float("-inf"):
            return a // b
        return 0 if a >= 0 and b > 0 else float("-inf")
    if atom.kind == "mod":
        return 0 if b > 0 else float("-inf")
    return max(a, b) if atom.kind == "max" else min(a, b)  # a broadcast is one of its arguments


def same(a: Size, b: Size) -> bool | None:
    """Return whether two sizes are equal, if that can be proven; else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if a == b:
        return True
    gap = a - b
    if least(gap) > 0 or least(gap * -1) > 0:
        return False
    return None


def is_at_least(a: Size, b: Size) -> Size:
    """Return the size that is 1 where a >= b, else 0."""
    gap = a - b
    if least(gap) >= 0:
        return 1
    return 0 if least(gap * -1) > 0 else minimum(maximum(gap + 1, 0), 1)


def is_equal(a: Size, b: Size) -> Size:
    """Return the size that is 1 where a == b, else 0."""
    answer = same(a, b)
    return is_at_least(a, b) * is_at_least(b, a) if answer is None else int(answer)


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of sizes; 1 for none."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


_NO_NAMES: Final[frozenset[str]] = frozenset()


def is_polynomial(size: Size) -> bool:
    """Return whether a size has names as its only atoms."""
    return not isinstance(size, Dim) or all(
        atom.kind == "name" for monomial in size.terms for atom in monomial
    )


def symbols(size: Size) -> frozenset[str]:
    """Return the names in a size."""
    if not isinstance(size, Dim):
        return _NO_NAMES
    if size.names is None:
        found: set[str] = set()
        for monomial in size.terms:
            for atom in monomial:
                if atom.kind == "name":
                    found.add(atom.text)
                for arg in atom.args:
                    found |= symbols(arg)
        size.names = frozenset(found)
    return size.names


def lone_name(size: Size) -> str | None:
    """Return the name that a size consists of; None for other sizes."""
    if isinstance(size, int) or len(size.terms) != 1:
        return None
    ((monomial, factor),) = size.terms.items()
    is_name = factor == 1 and len(monomial) == 1 and monomial[0].kind == "name"
    return monomial[0].text if is_name else None


# Functions of two sizes by the kind of the atom that they make.
CALLS: Final = {
    "div": floor_div, "mod": modulo, "min": minimum, "max": maximum, "broadcast": broadcast,
}  # fmt: skip


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """Return the size with names replaced by values; names without a value stay."""
    if isinstance(size, int):
        return size
    total: Size = 0
    for monomial, factor in size.terms.items():
        term: Size = factor
        for atom in monomial:
            if atom.kind == "name":
                term = term * values.get(atom.text, Dim({(atom,): 1}))
            else:
                a, b = (substitute(x, values) for x in atom.args)
                term = term * CALLS[atom.kind](a, b)
        total = total + term
    return total


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """Return the value of a size; every name in it must have one."""
    result = substitute(size, values)
    if not isinstance(result, int):
        unbound = sorted(symbols(result))
        raise InternalError(f"the size {size} has no value: {unbound} are not bound")
    return result
