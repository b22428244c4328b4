"""The table of constants in a pack: references into the model's files, blobs, recipes, strings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import RuntimeException, SardonyxError
from sardonyx.graph.const import Const, Held, Recipe, Ref, Source, pack
from sardonyx.graph.constant import constant
from sardonyx.graph.dtype import STRING, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import infer_node
from sardonyx.ops import lookup
from sardonyx.pack.codec import (
    MAX_RANK,
    AttrReader,
    AttrWriter,
    Unwritable,
    items,
    need,
    number,
    read_dtype,
    text,
)
from sardonyx.pack.errors import Broken
from sardonyx.pack.file import Blob, PackFile

_MAX_COUNT: Final = 1 << 60


class InPack(Ref):
    """A constant whose bytes lie in a pack, aligned: read there, however small."""

    __slots__ = ()

    @property
    def lies_ready(self) -> bool:
        return self.is_aligned


class Elsewhere(Const):
    """A constant of a standalone pack, which has it only as kernels read it."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape)
        self.name: Final = name

    def _find_place(self) -> None:
        return None

    def _look(self) -> Array:
        raise RuntimeException(
            f"a weight of {self.dtype}{list(self.shape)} is needed plain, "
            f"and {self.name} has it only packed",
            hint="run the model that it was made of, or pack that again",
        )

    def describe(self) -> str:
        return f"packed in {self.name}"


def stored(const: Const) -> Iterator[Any]:
    """The bytes of a constant in ONNX's form, for one look."""
    if isinstance(const, Ref):
        yield const.source.data[const.offset : const.offset + const.length]
        return
    array = const.view()
    if const.dtype.bits < 8:
        yield pack(array, const.dtype)
    elif array.size:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def is_in_place(const: Const) -> bool:
    """Whether nothing is gained by a copy: kernels read the file's own bytes, or unpack them."""
    if not isinstance(const, Ref):
        return False
    return const.dtype.bits < 8 or const.offset % const.dtype.itemsize == 0


def written_texts(const: Const) -> list[Any]:
    """The entry of a tensor of strings."""
    cells = const.read().reshape(-1).tolist()
    kept = [c.decode("utf-8", "surrogateescape") if isinstance(c, bytes) else str(c) for c in cells]
    return ["texts", list(const.shape), kept]


def written_ref(ref: Ref, files: Sequence[Source]) -> list[Any]:
    """The entry of a constant that stays in a file of the model."""
    at = next(i for i, source in enumerate(files) if source is ref.source)
    return ["file", ref.dtype.name, list(ref.shape), at, ref.offset, ref.length]


def can_write(recipe: Recipe) -> bool:
    """Whether a recipe has a form: one with constants or bodies for attributes has none."""
    try:
        _RECIPES.write(tuple(recipe.attrs.values()))
        _check_type(recipe)
    except (Unwritable, Broken, SardonyxError):
        return False
    return True


def _check_type(recipe: Recipe) -> None:
    """A recipe gives what its op gives for such inputs, by inference: nothing is evaluated."""
    inputs = [None if c is None else constant(c) for c in recipe.inputs]
    node = Graph().add(recipe.op, inputs, recipe.attrs, recipe.output + 1)
    infer_node(Scope(), node)
    fact = node.outputs[recipe.output].fact
    right = isinstance(fact, Fact) and (fact.dtype, fact.shape) == (recipe.dtype, recipe.shape)
    need(right, f"a constant {recipe.dtype}{list(recipe.shape)} made by {recipe.op} is {fact}")


def _refuse(value: Any) -> Any:
    raise Unwritable(f"{type(value).__name__} in a recipe")


_RECIPES: Final = AttrWriter(_refuse, _refuse)


def written_recipe(recipe: Recipe, number: Callable[[Const], int]) -> list[Any]:
    """The entry of a recipe that can be written."""
    inputs = [-1 if c is None else number(c) for c in recipe.inputs]
    given = {k: _RECIPES.write(v) for k, v in recipe.attrs.items()}
    type_ = [recipe.dtype.name, list(recipe.shape)]
    return ["recipe", *type_, *recipe.op.key, inputs, given, recipe.output]


class ConstReader:
    """Reads the table; every offset, length and number in it is checked."""

    def __init__(self, file: PackFile, files: Sequence[Source]) -> None:
        self._file = file
        self._files = files
        self.consts: list[Const] = []
        self._attrs = AttrReader(self.consts, _no_body)

    def table(self, listed: Any) -> list[Const]:
        """All constants, in order: a recipe reads only those before it."""
        for entry in items(listed):
            try:
                self.consts.append(self._read(items(entry)))
            except (TypeError, ValueError) as error:
                raise Broken(f"a constant: {error}") from None
        return self.consts

    def _read(self, entry: list[Any]) -> Const:
        match entry:
            case ["file", dtype, shape, at, offset, length]:
                source = self._files[number(at, 0, len(self._files))]
                number(length, 0, source.data.nbytes + 1)
                number(offset, 0, source.data.nbytes - length + 1)
                return Ref(source, offset, length, *_type(dtype, shape, length))
            case ["blob", dtype, shape, index]:
                blob = self._file.blob(index)
                return InPack(
                    self._file.source, blob.offset, blob.length, *_type(dtype, shape, blob.length)
                )
            case ["texts", shape, cells]:
                return _texts(_dims(shape), cells)
            case ["recipe", dtype, shape, domain, name, inputs, attrs, output]:
                return self._recipe((domain, name), inputs, attrs, output, _type(dtype, shape))
            case ["elsewhere", dtype, shape]:
                return Elsewhere(self._file.source.name, *_type(dtype, shape))
        raise Broken(f"{entry!r:.60} is no constant")

    def _recipe(
        self,
        key: tuple[Any, Any],
        inputs: Any,
        attrs: Any,
        output: Any,
        type_: tuple[DType, tuple[int, ...]],
    ) -> Recipe:
        op = lookup(text(key[0]), text(key[1]))
        if op is None or op.has_bodies:
            raise Broken(f"a constant made by {key[1]!r:.40}")
        number(output, 0, 64 if op.outputs[-1].variadic else len(op.outputs))
        known = len(self.consts)
        of = [None if n == -1 else self.consts[number(n, 0, known)] for n in items(inputs)]
        need(type(attrs) is dict, "a recipe without attributes")
        given = {k: self._attrs.read(v) for k, v in attrs.items()}
        need(given.keys() == op.attrs.keys(), f"the attributes of a constant made by {op}")
        recipe = Recipe(op, tuple(of), given, output, type_)
        _check_type(recipe)
        return recipe


def _no_body(item: Any) -> Any:
    raise Broken("a constant with a body")


def _dims(shape: Any) -> tuple[int, ...]:
    dims = tuple(number(d) for d in items(shape))
    need(len(dims) <= MAX_RANK and math.prod(dims) <= _MAX_COUNT, f"a shape {shape!r:.40}")
    return dims


def _type(dtype: Any, shape: Any, length: int | None = None) -> tuple[DType, tuple[int, ...]]:
    kind, dims = read_dtype(dtype), _dims(shape)
    need(kind is not STRING, "strings as bytes")
    if length is not None:
        wanted = kind.packed_bytes(math.prod(dims))
        need(length == wanted, f"a constant of {wanted} bytes has {length}")
    return kind, dims


def _texts(shape: tuple[int, ...], cells: Any) -> Held:
    need(len(items(cells)) == math.prod(shape), "a tensor of strings")
    array = np.empty(len(cells), object)
    array[:] = [text(c) for c in cells]
    return Held(array.reshape(shape))


def form(file: PackFile, blob: Blob) -> Array:
    """A blob's bytes, where they lie."""
    return np.frombuffer(file.source.data, np.uint8, blob.length, blob.offset)
