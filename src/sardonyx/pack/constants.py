"""The constants of a pack as JSON entries, written and validated.

| entry | constant |
|---|---|
| file | bytes in the model file or its external data |
| blob | bytes in the pack |
| recipe | computed from other constants when it is needed |
| texts | strings |
| elsewhere | in a standalone pack: there only in packed layouts |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import RuntimeException, SardonyxError
from sardonyx.graph.const import ArrayConst, Const, Recipe, Source, SourceConst, pack
from sardonyx.graph.constant_values import constant
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
    read_dtype,
    read_int,
    read_list,
    read_str,
    require,
)
from sardonyx.pack.errors import InvalidPack
from sardonyx.pack.file import Blob, PackFile

_MAX_COUNT: Final = 1 << 60  # elements: their bytes fit 64 bits


class PackConst(SourceConst):
    """A constant in a blob of a pack: aligned, so kernels read it in place, however small."""

    __slots__ = ()

    @property
    def is_readable_in_place(self) -> bool:
        return self.is_aligned


class PackedOnlyConst(Const):
    """A constant of a standalone pack, which has it only in packed layouts."""

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        super().__init__(dtype, shape)
        self.name: Final = name  # of the pack

    def _find_content_id(self) -> None:
        return None

    def _compute(self) -> Array:
        raise RuntimeException(
            f"a weight of {self.dtype}{list(self.shape)} is needed plain, "
            f"and {self.name} has it only packed",
            hint="run the model that it was made of, or pack that again",
        )

    def describe(self) -> str:
        return f"packed in {self.name}"


def stored(const: Const) -> Iterator[Any]:
    """Yield the bytes of a constant in ONNX's encoding, without keeping a copy."""
    if isinstance(const, SourceConst):
        yield const.source.data[const.offset : const.offset + const.length]
        return
    array = const.view()
    if const.dtype.bits < 8:
        yield pack(array, const.dtype)
    elif array.size:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def is_in_place(const: Const) -> bool:
    """Whether a copy in the pack gains nothing: kernels read the file's bytes, or unpack them."""
    if not isinstance(const, SourceConst):
        return False
    # Sub-byte types are unpacked while they are read; others must be aligned for vector loads.
    return const.dtype.bits < 8 or const.offset % const.dtype.itemsize == 0


def write_texts(const: Const) -> list[Any]:
    """Return the entry of a tensor of strings."""
    cells = const.read().reshape(-1).tolist()  # str, or bytes that are not UTF-8
    # Any bytes survive the round trip through JSON.
    strings = [
        c.decode("utf-8", "surrogateescape") if isinstance(c, bytes) else str(c) for c in cells
    ]
    return ["texts", list(const.shape), strings]


def write_source_const(const: SourceConst, files: Sequence[Source]) -> list[Any]:
    """Return the entry of a constant that stays in a file of the model."""
    at = next(i for i, source in enumerate(files) if source is const.source)
    return ["file", const.dtype.name, list(const.shape), at, const.offset, const.length]


def can_write(recipe: Recipe) -> bool:
    """Whether a recipe can be written: not if its attributes have constants or bodies."""
    try:
        _RECIPES.write(tuple(recipe.attrs.values()))
        _check_type(recipe)
    except (Unwritable, InvalidPack, SardonyxError):
        return False
    return True


def _check_type(recipe: Recipe) -> None:
    """Raise unless inference gives the recipe's type and shape; nothing is evaluated."""
    inputs = [None if c is None else constant(c) for c in recipe.inputs]
    node = Graph().add(recipe.op, inputs, recipe.attrs, recipe.output + 1)
    infer_node(Scope(), node)
    fact = node.outputs[recipe.output].fact
    is_same = isinstance(fact, Fact) and (fact.dtype, fact.shape) == (recipe.dtype, recipe.shape)
    require(is_same, f"a constant {recipe.dtype}{list(recipe.shape)} made by {recipe.op} is {fact}")


def _refuse(value: Any) -> Any:
    raise Unwritable(f"{type(value).__name__} in a recipe")


# Attributes of recipes hold neither constants nor bodies: a recipe depends on its inputs alone.
_RECIPES: Final = AttrWriter(_refuse, _refuse)


def write_recipe(recipe: Recipe, index: Callable[[Const], int]) -> list[Any]:
    """Return the entry of a recipe; `index` returns the number of a constant."""
    inputs = [-1 if c is None else index(c) for c in recipe.inputs]
    attrs = {k: _RECIPES.write(v) for k, v in recipe.attrs.items()}
    type_ = [recipe.dtype.name, list(recipe.shape)]
    return ["recipe", *type_, *recipe.op.key, inputs, attrs, recipe.output]


class ConstReader:
    """Reads the entries; every offset, length and index is validated."""

    def __init__(self, file: PackFile, files: Sequence[Source]) -> None:
        self._file = file
        self._files = files
        self.consts: list[Const] = []
        self._attrs = AttrReader(self.consts, _no_body)

    def table(self, listed: Any) -> list[Const]:
        """Return all constants; a recipe reads only those before it, so there is no cycle."""
        for entry in read_list(listed):
            try:
                self.consts.append(self._read(read_list(entry)))
            except (TypeError, ValueError) as error:
                raise InvalidPack(f"a constant: {error}") from None
        return self.consts

    def _read(self, entry: list[Any]) -> Const:
        match entry:
            case ["file", dtype, shape, at, offset, length]:
                source = self._files[read_int(at, 0, len(self._files))]
                # The range is inside of the file, without overflow: length first.
                read_int(length, 0, source.data.nbytes + 1)
                read_int(offset, 0, source.data.nbytes - length + 1)
                return SourceConst(source, offset, length, *_type(dtype, shape, length))
            case ["blob", dtype, shape, index]:
                blob = self._file.blob(index)
                return PackConst(
                    self._file.source, blob.offset, blob.length, *_type(dtype, shape, blob.length)
                )
            case ["texts", shape, cells]:
                return _texts(_dims(shape), cells)
            case ["recipe", dtype, shape, domain, name, inputs, attrs, output]:
                return self._recipe((domain, name), inputs, attrs, output, _type(dtype, shape))
            # No bytes: only its packed layouts are read, which the index lists.
            case ["elsewhere", dtype, shape]:
                return PackedOnlyConst(self._file.source.name, *_type(dtype, shape))
        raise InvalidPack(f"{entry!r:.60} is not a constant")

    def _recipe(
        self,
        key: tuple[Any, Any],
        inputs: Any,
        attrs: Any,
        output: Any,
        type_: tuple[DType, tuple[int, ...]],
    ) -> Recipe:
        op = lookup(read_str(key[0]), read_str(key[1]))
        if op is None or op.has_bodies:  # bodies could run for ever
            raise InvalidPack(f"a constant made by {key[1]!r:.40}")
        read_int(output, 0, 64 if op.outputs[-1].variadic else len(op.outputs))
        before = len(self.consts)
        sources = [
            None if n == -1 else self.consts[read_int(n, 0, before)] for n in read_list(inputs)
        ]
        # All attributes are written, with the defaults of the version that wrote the pack.
        require(type(attrs) is dict, "a recipe without attributes")
        values = {k: self._attrs.read(v) for k, v in attrs.items()}
        require(values.keys() == op.attrs.keys(), f"the attributes of a constant made by {op}")
        recipe = Recipe(op, tuple(sources), values, output, type_)
        _check_type(recipe)  # kernels read as many bytes as the type says
        return recipe


def _no_body(item: Any) -> Any:
    raise InvalidPack("a constant with a body")


def _dims(shape: Any) -> tuple[int, ...]:
    dims = tuple(read_int(d) for d in read_list(shape))
    require(len(dims) <= MAX_RANK and math.prod(dims) <= _MAX_COUNT, f"a shape {shape!r:.40}")
    return dims


def _type(dtype: Any, shape: Any, length: int | None = None) -> tuple[DType, tuple[int, ...]]:
    kind, dims = read_dtype(dtype), _dims(shape)
    require(kind is not STRING, "strings as bytes")  # their elements are pointers
    if length is not None:
        expected = kind.packed_bytes(math.prod(dims))
        require(length == expected, f"a constant of {expected} bytes has {length}")
    return kind, dims


def _texts(shape: tuple[int, ...], cells: Any) -> ArrayConst:
    require(len(read_list(cells)) == math.prod(shape), "a tensor of strings")  # one per element
    array = np.empty(len(cells), object)
    array[:] = [read_str(c) for c in cells]
    return ArrayConst(array.reshape(shape))


def blob_array(file: PackFile, blob: Blob) -> Array:
    """Return the bytes of a blob, as a view of the mapping."""
    return np.frombuffer(file.source.data, np.uint8, blob.length, blob.offset)
