"""Constants are references: a place in a file or buffer, a small array, or a recipe over others."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import ref

import numpy as np

import sardonyx._native as native
from sardonyx.base.digest import blake2b
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import STORE, Array, on_pages
from sardonyx.errors import InternalError, as_sardonyx_error
from sardonyx.graph.dtype import STRING, DType, by_numpy

if TYPE_CHECKING:
    from sardonyx.graph.op import Op

COPY_BELOW: Final = 64 * 1024  # bytes; smaller constants are copied, so that they are aligned


@frozen
class ContentId:
    """What constants of the same bytes have in common, as long as any of them lives."""

    key: Hashable
    is_fixed: bool  # else the bytes are a user's, who may change them


class Const:
    """A constant tensor whose bytes are read only when asked for."""

    __slots__ = (
        "_array",
        "_content_id",
        "_read",
        "count",
        "dtype",
        "is_small",
        "shape",
        "size_bytes",
    )

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype: Final = dtype
        self.shape: Final = shape
        self.count: Final = math.prod(shape)  # of elements
        self.size_bytes: Final = self.count * dtype.itemsize  # in memory
        self.is_small: Final = self.size_bytes < COPY_BELOW  # reading it costs next to nothing
        self._array: Array | None = None  # of a small one
        self._read: ref[Array] | None = None  # of others: whoever reads them keeps them
        self._content_id: ContentId | Literal[False] | None = False  # not asked for yet

    @property
    def content_id(self) -> ContentId | None:
        """Equal for constants of the same bytes, in this process; None where it is not known."""
        if self._content_id is False:
            self._content_id = self._find_content_id()
        return self._content_id

    @property
    def identity(self) -> Hashable | None:
        """Equal for constants of equal bytes, in this process; None where that cannot be known."""
        content_id = self.content_id
        return content_id.key if content_id is not None and content_id.is_fixed else None

    def _find_content_id(self) -> ContentId | None:
        raise InternalError(f"{type(self).__name__} has no content id")

    @property
    def is_read(self) -> bool:
        """Whether its bytes are held in memory of our own."""
        return self._array is not None or (self._read is not None and self._read() is not None)

    def read(self) -> Array:
        """The tensor as a read-only array, aligned; made once as long as somebody keeps it."""
        if self._array is not None:
            return self._array
        array = None if self._read is None else self._read()
        if array is None:
            if self.is_small:
                array = self._array = self._load()
            else:
                array = STORE.share(self.identity, self._load, self)
                self._read = ref(array)
            array.setflags(write=False)
        return array

    def view(self) -> Array:
        """The tensor for one look: not kept, and perhaps not aligned."""
        return self.read() if self.is_small or self.is_read else self._look()

    def stored(self) -> Array:
        """The bytes in ONNX's own encoding: those of the file, if the constant is in one.

        Narrow types are packed bytes; others have their type and shape, and may be unaligned.
        """
        array = self.read()
        return array if self.dtype.bits >= 8 else np.frombuffer(pack(array, self.dtype), np.uint8)

    def _load(self) -> Array:
        """The tensor in memory of its own."""
        array = self._look()
        if self.is_small or array.dtype.hasobject:
            return array.copy()
        return on_pages(array)

    def _look(self) -> Array:
        raise InternalError(f"{type(self).__name__} cannot be read")

    def describe(self) -> str:
        """Where the bytes come from, for people."""
        raise InternalError(f"{type(self).__name__} has no description")


class Held(Const):
    """A constant that lives in memory, as the array that it is given as."""

    __slots__ = ()

    def __init__(self, array: Array) -> None:
        dtype = by_numpy(array.dtype)
        assert dtype is not None
        super().__init__(dtype, array.shape)
        view = (array if array.flags.c_contiguous else np.array(array, order="C")).view()
        view.flags.writeable = False
        self._array = view

    def _find_content_id(self) -> ContentId | None:
        array = self.read()
        if array.dtype.hasobject:
            return None
        return ContentId(content_key(array, self.dtype), True)

    def describe(self) -> str:
        return "held"


class Words(Const):
    """Strings in the layout that kernels read: records, followed by their bytes."""

    __slots__ = ("block",)

    def __init__(self, block: Array, count: int) -> None:
        super().__init__(STRING, (count,))
        self.block: Final = block

    def _look(self) -> Array:
        return native.read_strings(native.address(self.block), list(self.shape))

    def _find_content_id(self) -> ContentId | None:
        return None

    def describe(self) -> str:
        return "held"


# By what a file is known again without reading it: device, inode, size, mtime and ctime, in ns.
Stamp = tuple[int, int, int, int, int]


def stamp_now(status: os.stat_result) -> Stamp:
    """The stamp of a file."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


@frozen
class File:
    """A file as it was when it was mapped, for those who read it by a descriptor."""

    path: str
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int  # of the last change to anything: nobody can set it back

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> File:
        """An open file that was found at a path."""
        return cls(os.path.abspath(path), *stamp_now(status))


class Source:
    """Bytes that constants point into: a mapped file or a buffer that the user gave."""

    __slots__ = ("__weakref__", "address", "data", "file", "identity", "is_fixed", "name", "stamp")

    def __init__(
        self,
        data: memoryview,
        name: str,
        identity: Hashable | None = None,
        is_fixed: bool | None = None,
        file: File | None = None,
        stamp: Stamp | None = None,
    ) -> None:
        """`identity` is equal for sources of equal bytes; None: they are known by their address.

        `stamp` is that of the file which has the bytes, or had them when they were copied.
        """
        self.data: Final = data
        self.address: Final = native.address(np.frombuffer(data, np.uint8))  # of the bytes
        self.file: Final = file  # that is mapped
        self.name: Final = name
        self.identity: Final = identity
        self.stamp: Final = stamp
        self.is_fixed: Final = identity is not None if is_fixed is None else is_fixed

    def advise(self, advice: int, offset: int = 0, length: int | None = None) -> None:
        """Tells the system how these bytes, or all, will be read. Users' mappings are theirs."""
        mapping = self.data.obj
        size = self.data.nbytes - offset if length is None else length
        if self.file is not None and isinstance(mapping, mmap.mmap) and size:
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            with contextlib.suppress(OSError, ValueError):
                mapping.madvise(advice, start, offset + size - start)

    def fetch(self, offset: int, length: int) -> None:
        """Says that these bytes are read next, in order: those of a cold file come ahead."""
        if length >= COPY_BELOW:
            # Of a long stretch the system fetches the beginning alone; the rest comes as it is
            # read, page by page unless the mapping is read ahead.
            self.advise(mmap.MADV_NORMAL, offset, length)
            self.advise(mmap.MADV_WILLNEED, offset, length)

    def at(self, offset: int) -> tuple[Hashable, int]:
        """What places in sources have in common that show the same byte."""
        if self.identity is None:
            return "memory", self.address + offset
        return self.identity, offset


class Ref(Const):
    """A tensor stored in a source, in ONNX's own encoding."""

    __slots__ = ("length", "offset", "source")

    def __init__(
        self, source: Source, offset: int, length: int, dtype: DType, shape: tuple[int, ...]
    ) -> None:
        super().__init__(dtype, shape)
        self.source: Final = source
        self.offset: Final = offset
        self.length: Final = length

    @property
    def is_readable_in_place(self) -> bool:
        """Whether `read` gives the bytes of the source themselves."""
        return not self.is_small and self.is_aligned

    @property
    def is_aligned(self) -> bool:
        """Whether the bytes are aligned as numpy and kernels require."""
        where = self.source.address + self.offset
        return self.dtype.bits >= 8 and where % self.dtype.np.alignment == 0

    def read(self) -> Array:
        if self._array is None and self.is_readable_in_place:
            return self._look()
        return super().read()

    def _raw(self) -> Array:
        return np.frombuffer(self.source.data, np.uint8, self.length, self.offset)

    def _look(self) -> Array:
        if self.dtype.bits < 8:
            return unpack(self._raw(), self.dtype, self.count).reshape(self.shape)
        array: Array = np.ndarray(self.shape, self.dtype.np, self.source.data, self.offset)
        array.setflags(write=False)
        return array

    def stored(self) -> Array:
        return self._raw() if self.dtype.bits < 8 else self._look()

    def _find_content_id(self) -> ContentId | None:
        where = self.source.at(self.offset)
        return ContentId((*where, self.length, self.dtype.name, self.shape), self.source.is_fixed)

    def fetch(self) -> None:
        """Says that all of its bytes are read next."""
        self.source.fetch(self.offset, self.length)

    def describe(self) -> str:
        return f"{self.source.name} at {self.offset}"


class Recipe(Const):
    """An op over other constants, evaluated when its bytes are needed."""

    __slots__ = ("attrs", "inputs", "op", "output")

    def __init__(
        self,
        op: Op,
        inputs: tuple[Const | None, ...],
        attrs: dict[str, Any],
        output: int,
        type_: tuple[DType, tuple[int, ...]],
    ) -> None:
        super().__init__(*type_)
        self.op: Final = op
        self.inputs: Final = inputs
        self.attrs: Final = attrs
        self.output: Final = output

    def _look(self) -> Array:
        kept = self._load_inputs()
        arrays = [None if c is None else c.view() for c in self.inputs]
        del kept  # they were needed for this one look
        try:
            result = self.op.run(arrays, self.attrs)[self.output]
        except Exception as error:
            shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in arrays)
            raise as_sardonyx_error(
                error, f"computing {self.op} of constants", inputs=shapes
            ) from error
        if not isinstance(result, np.ndarray) or result.shape != self.shape:
            raise InternalError(f"folding {self.op.name} gave {result!r:.80}, not {self.shape}")
        return np.asarray(result, self.dtype.np, order="C")

    def _load_inputs(self) -> list[Array]:
        """Evaluates what this is made of, deepest first: chains may be longer than calls nest."""
        made: list[Array] = []
        waiting = self._unread()
        while waiting:
            unread = waiting[-1]._unread()
            waiting.extend(unread)
            if not unread:
                made.append(waiting.pop()._made())
        return made

    def _made(self) -> Array:
        """The tensor in whatever memory it was made in: no copy for those who look at it once."""
        if self.is_small or self.is_read:
            return self.read()
        array = self._look()
        array.flags.writeable = False
        self._read = ref(array)
        return array

    def _unread(self) -> list[Recipe]:
        return [c for c in self.inputs if isinstance(c, Recipe) and not c.is_read]

    def _find_content_id(self) -> ContentId | None:
        waiting: list[Recipe] = [self]
        while waiting:
            unplaced = [
                c for c in waiting[-1].inputs if isinstance(c, Recipe) and c._content_id is False
            ]
            waiting.extend(unplaced)
            if not unplaced:
                recipe = waiting.pop()
                recipe._content_id = recipe._recipe_id()
        assert self._content_id is not False
        return self._content_id

    def _recipe_id(self) -> ContentId | None:
        """The place by those of the inputs, in a few bytes: parts may be shared many times over."""
        ids = [None if c is None else c.content_id for c in self.inputs]
        if any(p is None and c is not None for p, c in zip(ids, self.inputs, strict=True)):
            return None
        if not all(map(_is_plain, self.attrs.values())):
            return None  # an attribute that is a tensor or a graph
        of = [None if p is None else p.key for p in ids]
        said = repr((self.op.key, sorted(self.attrs.items()), self.output, of))
        fixed = all(p is None or p.is_fixed for p in ids)
        return ContentId(("recipe", blake2b(said.encode(), digest_size=24).digest()), fixed)

    def describe(self) -> str:
        # One level: shared parts would make the text grow without bound.
        inner = (
            "-" if c is None else "..." if isinstance(c, Recipe) else c.describe()
            for c in self.inputs
        )
        return f"{self.op.name}({', '.join(inner)})"


def _is_plain(value: object) -> bool:
    """Whether an attribute's text says all of it."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def content_key(array: Array, dtype: DType) -> Hashable:
    """What is equal for arrays of equal contents."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    digest = blake2b(flat.data if flat.size else b"", digest_size=24).digest()
    return ("held", dtype.name, array.shape, digest)


def held(array: Array) -> Held:
    """A constant that was decoded rather than found: sessions that decode the same share one."""
    if array.nbytes < COPY_BELOW or array.dtype.hasobject:
        return Held(array)
    made = Held(array)
    made._array = STORE.share(made.identity, made.read)
    return made


def reshaped(const: Const, shape: tuple[int, ...]) -> Const | None:
    """The same bytes as a tensor of another shape; None where they are yet to be computed."""
    if isinstance(const, Ref):
        return Ref(const.source, const.offset, const.length, const.dtype, shape)
    return Held(const.read().reshape(shape)) if isinstance(const, Held) or const.is_small else None


def unpack(raw: Array, dtype: DType, count: int) -> Array:
    """Elements of a type under 8 bits, one to a byte, from ONNX's packed form (low bits first)."""
    if dtype.bits == 6:  # a little-endian stream of 6-bit fields
        bits = np.unpackbits(raw, bitorder="little")[: count * 6].reshape(count, 6)
        return np.packbits(bits, axis=1, bitorder="little")[:, 0].view(dtype.np)
    per_byte = 8 // dtype.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(dtype.bits)
    fields = (raw[:, None] >> shifts) & np.uint8((1 << dtype.bits) - 1)
    fields = fields.reshape(-1)[:count]
    if dtype.kind == "int":  # sign bit of the field to sign bit of the byte and back
        spare = np.int8(8 - dtype.bits)
        fields = np.left_shift(fields.view(np.int8), spare) >> spare
    made: Array = fields.view(dtype.np) if dtype.is_float else fields.astype(dtype.np)
    return made


def pack(array: Array, dtype: DType) -> bytes:
    """The bytes of a tensor in ONNX's form, the inverse of what `Ref` reads."""
    if dtype is STRING:
        raise InternalError("strings have no packed form")
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.bits >= 8:
        return flat.tobytes()
    codes = flat.astype(np.int8).view(np.uint8) if dtype.is_integer else flat.view(np.uint8)
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : dtype.bits]
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()
