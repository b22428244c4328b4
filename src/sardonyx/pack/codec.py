"""Sizes, types and attributes as JSON and back. What is read may be anybody's: all is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InternalError
from sardonyx.graph.const import Const, Held
from sardonyx.graph.dim import (
    Atom,
    Dim,
    Size,
    broadcast,
    floor_div,
    maximum,
    minimum,
    modulo,
)
from sardonyx.graph.dtype import DType, by_name
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.graph.graph import Graph
from sardonyx.ops.elementwise.chain import CONVERSIONS, ELEMENTWISE, Instruction
from sardonyx.pack.errors import Broken

MAX_RANK: Final = 64
MANY: Final = 64  # strings, from which they are listed once and numbered
_CALLS: Final = {
    "div": floor_div, "mod": modulo, "min": minimum, "max": maximum, "broadcast": broadcast,
}  # fmt: skip
_FAR: Final = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def need(condition: object, what: str) -> None:
    """Says what is wrong with a pack unless the condition holds."""
    if not condition:
        raise Broken(what)


def number(item: Any, least: int = 0, end: int = 1 << 62) -> int:
    """A whole number from `least` to before `end`."""
    if type(item) is not int or not least <= item < end:
        raise Broken(f"{item!r:.40} is no number from {least} to {end}")
    return item


def text(item: Any) -> str:
    """A string."""
    if type(item) is not str:
        raise Broken(f"{item!r:.40} is no text")
    return item


def items(item: Any, length: int | None = None) -> list[Any]:
    """A list, perhaps of a certain length."""
    if type(item) is not list or (length is not None and len(item) != length):
        raise Broken(f"{item!r:.40} is no list" + (f" of {length}" if length is not None else ""))
    return item


def write_size(size: Size) -> Any:
    """A number, a name, or a sum of products."""
    if isinstance(size, int):
        return size
    terms = []
    for monomial, factor in size.terms.items():
        atoms = [
            a.text if a.kind == "name" else [a.kind, *map(write_size, a.args)] for a in monomial
        ]
        terms.append([factor, *atoms])
    if len(terms) == 1 and terms[0][0] == 1 and len(terms[0]) == 2 and type(terms[0][1]) is str:
        return terms[0][1]
    return terms


def read_size(item: Any, depth: int = 0) -> Size:
    """The size in normal form, whatever form it was written in."""
    if type(item) is int:
        return number(item, -(1 << 62))
    if type(item) is str:
        return Dim({(Atom("name", item),): 1})
    need(depth < MAX_RANK, "a size nests too deep")
    total: Size = 0
    for term in items(item):
        product: Size = number(items(term)[0] if term else None, -(1 << 62))
        for atom in term[1:]:
            if type(atom) is str:
                product = product * Dim({(Atom("name", atom),): 1})
                continue
            kind, *args = items(atom, 3)
            need(type(kind) is str and kind in _CALLS, f"{kind!r:.40} is no function of sizes")
            product = product * _CALLS[kind](*(read_size(a, depth + 1) for a in args))
        total = total + product
    return total


def write_fact(fact: AnyFact | None) -> Any:
    """A type; of a tensor also the elements that are sizes. What is constant is left out."""
    match fact:
        case None:
            return None
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
    match items(item):
        case ["tensor", name, dims, known]:
            sym = None if known is None else tuple(map(read_size, items(known)))
            return Fact(read_dtype(name), read_shape(dims), None, sym)
        case ["sequence", elem]:
            return SequenceFact(read_fact(elem))
        case ["optional", elem]:
            return OptionalFact(read_fact(elem))
        case ["map", key, value]:
            return MapFact(read_dtype(key), read_fact(value))
        case ["sparse", name, dims]:
            return SparseFact(read_dtype(name), read_shape(dims))
    raise Broken(f"{item!r:.40} is no type")


def read_shape(dims: Any) -> tuple[Size, ...] | None:
    """A shape, or None for one that is not known."""
    if dims is None:
        return None
    need(len(items(dims)) <= MAX_RANK, f"a rank of {len(dims)}")
    return tuple(map(read_size, dims))


def read_dtype(name: Any) -> DType:
    """The element type of this name."""
    try:
        return by_name(text(name))
    except KeyError:
        raise Broken(f"{name!r:.40} is no element type") from None


class AttrWriter:
    """Attributes as JSON. Constants and arrays go to the table of constants, graphs to `body`."""

    def __init__(self, const: Callable[[Const], int], body: Callable[[Graph], Any]) -> None:
        self._const = const
        self._body = body

    def write(self, value: Any) -> Any:
        """Numbers, texts and nothing are themselves; all else is a list with its kind in front."""
        if isinstance(value, np.generic):
            value = value.item()
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else ["far", repr(value)]
            case bytes():
                return ["bytes", value.decode("latin-1")]
            case tuple():
                return ["tuple", *map(self.write, value)]
            case list() if len(value) > MANY and all(type(v) is bytes for v in value):
                return self._words(value)
            case list():
                return ["list", *map(self.write, value)]
            case np.ndarray():
                return ["array", self._const(Held(value))]
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
        """A long list of few words, as trees have them: the words, and which one is where."""
        numbers: dict[bytes, int] = {}
        where = np.array([numbers.setdefault(w, len(numbers)) for w in words], np.int32)
        return ["words", self._const(Held(where)), *(w.decode("latin-1") for w in numbers)]


class Unwritable(Exception):
    """A value that packs have no form for."""


class AttrReader:
    """The inverse of `AttrWriter`."""

    def __init__(self, consts: Sequence[Const], body: Callable[[Any], Graph]) -> None:
        self._consts = consts
        self._body = body

    def read(self, item: Any) -> Any:
        """One attribute."""
        if type(item) is not list:
            need(
                item is None or type(item) in (bool, int, float, str), f"an attribute {item!r:.40}"
            )
            return item
        match item:
            case ["far", str(name)] if name in _FAR:
                return _FAR[name]
            case ["bytes", str(characters)]:
                return self._bytes(characters)
            case ["tuple", *parts]:
                return tuple(map(self.read, parts))
            case ["list", *parts]:
                return list(map(self.read, parts))
            case ["words", index, *words]:
                return self._words(self._const(index).read(), [self._bytes(text(w)) for w in words])
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
                return self._instruction((text(domain), text(name)), items(args), dtype, attrs)
            case ["fact", fact]:
                return read_fact(fact)
        raise Broken(f"{item!r:.40} is no attribute")

    def _words(self, where: Array, words: list[bytes]) -> list[bytes]:
        need(where.ndim == 1 and where.dtype == np.int32, "a list of words has no numbers")
        inside = where.size == 0 or (where.min() >= 0 and where.max() < len(words))
        need(inside, "a list of words has numbers beyond them")
        return [words[i] for i in where.tolist()]

    def _bytes(self, characters: str) -> bytes:
        try:
            return characters.encode("latin-1")
        except UnicodeEncodeError:
            raise Broken(f"{characters!r:.40} are no bytes") from None

    def _const(self, index: Any) -> Const:
        return self._consts[number(index, 0, len(self._consts))]

    def _instruction(
        self, op: tuple[str, str], args: list[Any], dtype: Any, attrs: Any
    ) -> Instruction:
        need(op in ELEMENTWISE or op in CONVERSIONS, f"{op[1]!r:.40} is no elementwise op")
        pairs = self.read(attrs)
        is_paired = isinstance(pairs, tuple) and all(
            isinstance(p, tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs
        )
        need(is_paired, f"{attrs!r:.40} are no attributes")
        numbers = tuple(number(a, -1, 1 << 16) for a in args)
        return Instruction(op, numbers, read_dtype(dtype), pairs)
