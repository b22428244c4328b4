"""JSON codec of sizes, types and attributes. Readers validate everything: input may be hostile.

The words in the lists ("far", "words", ...) are part of the file format.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InternalError
from sardonyx.graph.const import ArrayConst, Const
from sardonyx.graph.dim import Atom, Dim, Size, broadcast, floor_div, maximum, minimum, modulo
from sardonyx.graph.dtype import DType, by_name
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.graph.graph import Graph
from sardonyx.ops.elementwise.chain import CONVERSIONS, ELEMENTWISE, Instruction
from sardonyx.pack.errors import InvalidPack

MAX_RANK: Final = 64  # of a tensor, and depth of a nested size: far above those of real models
_MIN_DICTIONARY: Final = 64  # strings of a list, from which it is written as a dictionary
# Functions of sizes. They normalize and check their arguments, as in inference.
_CALLS: Final = {
    "div": floor_div, "mod": modulo, "min": minimum, "max": maximum, "broadcast": broadcast,
}  # fmt: skip
# JSON has no non-finite numbers.
_NON_FINITE: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def require(condition: object, what: str) -> None:
    """Raise InvalidPack unless the condition holds."""
    if not condition:
        raise InvalidPack(what)


def read_int(item: Any, least: int = 0, end: int = 1 << 62) -> int:
    """Return an integer in [least, end)."""
    # `type`, not isinstance: bool is a subclass of int.
    if type(item) is not int or not least <= item < end:
        raise InvalidPack(f"{item!r:.40} is not a number from {least} to {end}")
    return item


def read_str(item: Any) -> str:
    """Return a string."""
    if type(item) is not str:
        raise InvalidPack(f"{item!r:.40} is not a string")
    return item


def read_list(item: Any, length: int | None = None) -> list[Any]:
    """Return a list, of this length if there is one."""
    if type(item) is not list or (length is not None and len(item) != length):
        raise InvalidPack(
            f"{item!r:.40} is not a list" + (f" of {length}" if length is not None else "")
        )
    return item


def write_size(size: Size) -> Any:
    """Return a size: a number, a name, or a list of terms [factor, *atoms]."""
    if isinstance(size, int):
        return size
    terms = []
    for monomial, factor in size.terms.items():
        atoms = [
            a.text if a.kind == "name" else [a.kind, *map(write_size, a.args)] for a in monomial
        ]
        terms.append([factor, *atoms])
    # A single name is by far the most frequent size.
    if len(terms) == 1 and terms[0][0] == 1 and len(terms[0]) == 2 and type(terms[0][1]) is str:
        return terms[0][1]
    return terms


def read_size(item: Any, depth: int = 0) -> Size:
    """Return a size in normal form, whatever its written form."""
    if type(item) is int:
        return read_int(item, -(1 << 62))
    if type(item) is str:
        return Dim({(Atom("name", item),): 1})
    require(depth < MAX_RANK, "a size nests too deep")
    total: Size = 0
    # Built by arithmetic, not from the terms as listed: equal sizes must have equal normal forms.
    for term in read_list(item):
        product: Size = read_int(read_list(term)[0] if term else None, -(1 << 62))
        for atom in term[1:]:
            if type(atom) is str:
                product = product * Dim({(Atom("name", atom),): 1})
                continue
            kind, *args = read_list(atom, 3)
            require(
                type(kind) is str and kind in _CALLS, f"{kind!r:.40} is not a function of sizes"
            )
            product = product * _CALLS[kind](*(read_size(a, depth + 1) for a in args))
        total = total + product
    return total


def write_fact(fact: AnyFact | None) -> Any:
    """Return a fact as JSON, of a tensor with its symbolic elements; constants are left out."""
    match fact:
        case None:
            return None
        # The constant of a fact is left out: inference restores it.
        case Fact(dtype, shape, _, sym):
            dims = None if shape is None else [write_size(d) for d in shape]
            known = None if sym is None else [write_size(d) for d in sym]
            return ["tensor", dtype.name, dims, known]
        case SequenceFact(elem):
            return ["sequence", write_fact(elem)]
        case OptionalFact(elem):
            return ["optional", write_fact(elem)]
        case MapFact(key, value):
            return ["map", key.name, write_fact(value)]
        case SparseFact(dtype, shape):
            dims = None if shape is None else [write_size(d) for d in shape]
            return ["sparse", dtype.name, dims]
    raise InternalError(f"{fact!r} has no form in a pack")


def read_fact(item: Any) -> AnyFact | None:
    """The inverse of `write_fact`."""
    if item is None:
        return None
    match read_list(item):
        case ["tensor", name, dims, known]:
            sym = None if known is None else tuple(map(read_size, read_list(known)))
            return Fact(read_dtype(name), read_shape(dims), None, sym)
        case ["sequence", elem]:
            return SequenceFact(read_fact(elem))
        case ["optional", elem]:
            return OptionalFact(read_fact(elem))
        case ["map", key, value]:
            return MapFact(read_dtype(key), read_fact(value))
        case ["sparse", name, dims]:
            return SparseFact(read_dtype(name), read_shape(dims))
    raise InvalidPack(f"{item!r:.40} is not a type")


def read_shape(dims: Any) -> tuple[Size, ...] | None:
    """Return a shape, or None for an unknown one."""
    if dims is None:
        return None
    require(len(read_list(dims)) <= MAX_RANK, f"a rank of {len(dims)}")
    return tuple(map(read_size, dims))


def read_dtype(name: Any) -> DType:
    """Return the element type of a name."""
    try:
        return by_name(read_str(name))
    except KeyError:
        raise InvalidPack(f"{name!r:.40} is not an element type") from None


class AttrWriter:
    """Writes attributes as JSON; `const` numbers constants and arrays, `body` writes graphs."""

    def __init__(self, const: Callable[[Const], int], body: Callable[[Graph], Any]) -> None:
        self._const = const
        self._body = body

    def write(self, value: Any) -> Any:
        """Return numbers, strings and None as they are, all else as [kind, ...]."""
        if isinstance(value, np.generic):
            value = value.item()
        # bool before int, which it is too: both are written as they are.
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else ["far", repr(value)]
            case bytes():
                # Latin-1 maps each byte to one character, so any bytes survive.
                return ["bytes", value.decode("latin-1")]
            case tuple():
                return ["tuple", *map(self.write, value)]
            case list() if len(value) > _MIN_DICTIONARY and all(type(v) is bytes for v in value):
                return self._words(value)
            case list():
                return ["list", *map(self.write, value)]
            case np.ndarray():
                return ["array", self._const(ArrayConst(value))]
            case Const():
                return ["const", self._const(value)]
            case Graph():
                return ["graph", self._body(value)]
            case Dim():
                return ["size", write_size(value)]
            case DType():
                return ["dtype", value.name]
            case Instruction(op, args, dtype, attrs):
                return ["instruction", *op, list(args), dtype.name, self.write(attrs)]
            case _ if isinstance(value, AnyFact):
                return ["fact", write_fact(value)]
        raise Unwritable(f"an attribute of type {type(value).__name__}")

    def _words(self, words: list[bytes]) -> Any:
        """Encode a list with many equal strings (node modes of trees) by a dictionary."""
        codes: dict[bytes, int] = {}
        encoded = np.array([codes.setdefault(w, len(codes)) for w in words], np.int32)
        return ["words", self._const(ArrayConst(encoded)), *(w.decode("latin-1") for w in codes)]


class Unwritable(Exception):
    """A value that the format cannot express."""


class AttrReader:
    """Reads what `AttrWriter` wrote."""

    def __init__(self, consts: Sequence[Const], body: Callable[[Any], Graph]) -> None:
        self._consts = consts
        self._body = body

    def read(self, item: Any) -> Any:
        """Return the value of an attribute."""
        if type(item) is not list:
            require(
                item is None or type(item) in (bool, int, float, str), f"an attribute {item!r:.40}"
            )
            return item
        match item:
            case ["far", str(name)] if name in _NON_FINITE:
                return _NON_FINITE[name]
            case ["bytes", str(characters)]:
                return self._bytes(characters)
            case ["tuple", *elements]:
                return tuple(map(self.read, elements))
            case ["list", *elements]:
                return list(map(self.read, elements))
            case ["words", index, *words]:
                return self._words(
                    self._const(index).read(), [self._bytes(read_str(w)) for w in words]
                )
            case ["array", index]:
                return self._const(index).read()
            case ["const", index]:
                return self._const(index)
            case ["graph", body]:
                return self._body(body)
            case ["size", size]:
                return read_size(size)
            case ["dtype", name]:
                return read_dtype(name)
            case ["instruction", domain, name, args, dtype, attrs]:
                return self._instruction(
                    (read_str(domain), read_str(name)), read_list(args), dtype, attrs
                )
            case ["fact", fact]:
                return read_fact(fact)
        raise InvalidPack(f"{item!r:.40} is not an attribute")

    def _words(self, codes: Array, words: list[bytes]) -> list[bytes]:
        require(codes.ndim == 1 and codes.dtype == np.int32, "a list of words has no numbers")
        is_inside = codes.size == 0 or (codes.min() >= 0 and codes.max() < len(words))
        require(is_inside, "a list of words has numbers beyond them")
        return [words[i] for i in codes.tolist()]

    def _bytes(self, characters: str) -> bytes:
        try:
            return characters.encode("latin-1")
        except UnicodeEncodeError:
            raise InvalidPack(f"{characters!r:.40} are not bytes") from None

    def _const(self, index: Any) -> Const:
        return self._consts[read_int(index, 0, len(self._consts))]

    def _instruction(
        self, op: tuple[str, str], args: list[Any], dtype: Any, attrs: Any
    ) -> Instruction:
        # The interpreter of fused code has these ops alone, and does not check.
        require(op in ELEMENTWISE or op in CONVERSIONS, f"{op[1]!r:.40} is not an elementwise op")
        pairs = self.read(attrs)
        is_paired = isinstance(pairs, tuple) and all(
            isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs
        )
        require(is_paired, f"{attrs!r:.40} are not attributes")
        # `check` compares the arguments with the number of registers.
        numbers = tuple(read_int(a, -1, 1 << 16) for a in args)
        return Instruction(op, numbers, read_dtype(dtype), pairs)
