"""Constants: references to bytes in a file or buffer, arrays in memory, or ops over constants.

The bytes of a constant are read on demand; compiling a model touches few of them.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Callable, Hashable
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

COPY_BELOW: Final = 64 * 1024  # bytes; smaller constants are copied to aligned memory


@frozen
class ContentId:
    """Identifies the bytes of a constant, within this process and while the constant exists."""

    key: Hashable
    is_fixed: bool  # False: the bytes are in a user's buffer, and may change


class Const:
    """A constant tensor whose bytes are read on demand."""

    __slots__ = (
        "_array", "_content_id", "_read", "count", "dtype", "is_small", "shape", "size_bytes",
    )  # fmt: skip

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype: Final = dtype
        self.shape: Final = shape
        self.count: Final = math.prod(shape)  # number of elements
        self.size_bytes: Final = self.count * dtype.itemsize  # in memory
        self.is_small: Final = self.size_bytes < COPY_BELOW
        # Small constants keep their array. Large ones have a weak reference: their readers own it.
        self._array: Array | None = None
        self._read: ref[Array] | None = None
        self._content_id: ContentId | Literal[False] | None = False  # False: not computed yet

    @property
    def content_id(self) -> ContentId | None:
        """The id of the bytes, equal for constants that share them; None if unknown."""
        if self._content_id is False:
            self._content_id = self._find_content_id()
        return self._content_id

    @property
    def identity(self) -> Hashable | None:
        """The key of the bytes if they cannot change, else None."""
        content_id = self.content_id
        return content_id.key if content_id is not None and content_id.is_fixed else None

    def _find_content_id(self) -> ContentId | None:
        return None

    @property
    def is_read(self) -> bool:
        """Whether the tensor is in memory that this process owns."""
        return self._array is not None or (self._read is not None and self._read() is not None)

    def read(self) -> Array:
        """Return the tensor as a read-only, aligned array, shared while any reader keeps it."""
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
        """Return the tensor for a single use: not cached, and possibly unaligned."""
        return self.read() if self.is_small or self.is_read else self._compute()

    def stored(self) -> Array:
        """Return the bytes as ONNX encodes them; those of the file if the constant is in one.

        Types under 8 bits are packed bytes; others have their type and shape, possibly unaligned.
        """
        array = self.read()
        return array if self.dtype.bits >= 8 else np.frombuffer(pack(array, self.dtype), np.uint8)

    def _load(self) -> Array:
        """Return a copy of the tensor in memory that this process owns."""
        array = self._compute()
        if self.is_small or array.dtype.hasobject:
            return array.copy()
        return on_pages(array)

    def _compute(self) -> Array:
        """Return the tensor, without caching."""
        raise InternalError(f"{type(self).__name__} cannot be read")

    def describe(self) -> str:
        """Return where the bytes come from, for messages."""
        return "in memory"


class ArrayConst(Const):
    """A constant over an array in memory, which it does not copy if contiguous."""

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
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = blake2b(flat.data if flat.size else b"", digest_size=24).digest()
        return ContentId(("array", self.dtype.name, array.shape, digest), True)


class Deferred(Const):
    """A constant that a function computes when its bytes are needed.

    Savers stream it, however small, unless `is_cheap`: the function runs while the file is written,
    not while the model around it is built.
    """

    __slots__ = ("_make", "is_cheap")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        make: Callable[[], Array],
        is_cheap: bool = False,
    ) -> None:
        super().__init__(dtype, shape)
        self._make: Final = make
        self.is_cheap: Final = is_cheap

    def _compute(self) -> Array:
        return np.asarray(self._make(), self.dtype.np, order="C").reshape(self.shape)

    def _load(self) -> Array:
        return self._compute()  # it is in memory of its own


class PackedStrings(Const):
    """Strings in the native layout: fixed-size records, followed by the bytes of the strings."""

    __slots__ = ("block",)

    def __init__(self, block: Array, count: int) -> None:
        super().__init__(STRING, (count,))
        self.block: Final = block

    def _compute(self) -> Array:
        return native.read_strings(native.address(self.block), list(self.shape))


# Identifies a version of a file without reading it: device, inode, size, mtime_ns and ctime_ns.
Stamp = tuple[int, int, int, int, int]


def stamp_now(status: os.stat_result) -> Stamp:
    """Return the stamp of a file from its status."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


@frozen
class File:
    """The path and stamp of a file at the time it was mapped."""

    path: str
    device: int
    inode: int
    size_bytes: int
    mtime_ns: int
    ctime_ns: int  # unlike mtime, programs cannot set it

    @classmethod
    def of(cls, path: str, status: os.stat_result) -> File:
        """Return the description of an open file at a path."""
        return cls(os.path.abspath(path), *stamp_now(status))


class Source:
    """Bytes that constants refer to: a mapped file or a user's buffer."""

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
        """`identity` is equal for sources of equal bytes; None: the address identifies them.

        `stamp` is that of the file that the bytes are mapped or were copied from.
        """
        self.data: Final = data
        self.address: Final = native.address(np.frombuffer(data, np.uint8))
        self.file: Final = file  # the mapped file, if any
        self.name: Final = name
        self.identity: Final = identity
        self.stamp: Final = stamp
        self.is_fixed: Final = identity is not None if is_fixed is None else is_fixed

    def advise(self, advice: int, offset: int = 0, length: int | None = None) -> None:
        """Call madvise for a range, by default all bytes; users' own mappings are left alone."""
        mapping = self.data.obj
        size = self.data.nbytes - offset if length is None else length
        if self.file is not None and isinstance(mapping, mmap.mmap) and size:
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            with contextlib.suppress(OSError, ValueError):
                mapping.madvise(advice, start, offset + size - start)

    def fetch(self, offset: int, length: int) -> None:
        """Start reading a range that is about to be read sequentially into the page cache."""
        if length >= COPY_BELOW:
            # MADV_WILLNEED fetches only the beginning of a long range. The rest is faulted in as it
            # is read; MADV_NORMAL allows readahead for that.
            self.advise(mmap.MADV_NORMAL, offset, length)
            self.advise(mmap.MADV_WILLNEED, offset, length)

    def at(self, offset: int) -> tuple[Hashable, int]:
        """Return a key of the byte at an offset, equal for sources that share the byte."""
        if self.identity is None:
            return "memory", self.address + offset
        return self.identity, offset


class SourceConst(Const):
    """A tensor stored in a source, as ONNX encodes it."""

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
        """Whether `read` returns a view of the source instead of a copy."""
        return not self.is_small and self.is_aligned

    @property
    def is_aligned(self) -> bool:
        """Whether the bytes are aligned as numpy and kernels require."""
        address = self.source.address + self.offset
        return self.dtype.bits >= 8 and address % self.dtype.np.alignment == 0

    def read(self) -> Array:
        if self._array is None and self.is_readable_in_place:
            return self._compute()
        return super().read()

    def _raw(self) -> Array:
        return np.frombuffer(self.source.data, np.uint8, self.length, self.offset)

    def _compute(self) -> Array:
        if self.dtype.bits < 8:
            return unpack(self._raw(), self.dtype, self.count).reshape(self.shape)
        array: Array = np.ndarray(self.shape, self.dtype.np, self.source.data, self.offset)
        array.setflags(write=False)
        return array

    def stored(self) -> Array:
        return self._raw() if self.dtype.bits < 8 else self._compute()

    def _find_content_id(self) -> ContentId | None:
        start = self.source.at(self.offset)
        return ContentId((*start, self.length, self.dtype.name, self.shape), self.source.is_fixed)

    def fetch(self) -> None:
        """Start reading the bytes, which are about to be read, into the page cache."""
        self.source.fetch(self.offset, self.length)

    def describe(self) -> str:
        return f"{self.source.name} at {self.offset}"


class Recipe(Const):
    """An op over other constants, evaluated by the op's reference when the bytes are needed."""

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

    def _compute(self) -> Array:
        # The list keeps intermediate results alive until `view` has found them.
        intermediates = self._compute_inputs()
        arrays = [None if c is None else c.view() for c in self.inputs]
        del intermediates
        try:
            result = self.op.run(arrays, self.attrs)[self.output]
        except Exception as error:
            shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in arrays)
            doing = f"computing {self.op} of constants"
            raise as_sardonyx_error(error, doing, inputs=shapes) from error
        if not isinstance(result, np.ndarray) or result.shape != self.shape:
            raise InternalError(f"folding {self.op.name} gave {result!r:.80}, not {self.shape}")
        return np.asarray(result, self.dtype.np, order="C")

    def _compute_inputs(self) -> list[Array]:
        """Compute all recipes that this one depends on, in topological order.

        Depth-first with an explicit stack: chains of recipes exceed Python's recursion limit.
        """
        computed: list[Array] = []
        stack = self._unread()
        while stack:
            unread = stack[-1]._unread()
            stack.extend(unread)
            if not unread:
                computed.append(stack.pop()._intermediate())
        return computed

    def _intermediate(self) -> Array:
        """Return the tensor without the copy into owned pages that `read` makes."""
        if self.is_small or self.is_read:
            return self.read()
        array = self._compute()
        array.flags.writeable = False
        self._read = ref(array)
        return array

    def _unread(self) -> list[Recipe]:
        return [c for c in self.inputs if isinstance(c, Recipe) and not c.is_read]

    def _find_content_id(self) -> ContentId | None:
        stack: list[Recipe] = [self]  # depth-first, as in `_compute_inputs`
        while stack:
            recipes = (c for c in stack[-1].inputs if isinstance(c, Recipe))
            pending = [c for c in recipes if c._content_id is False]
            stack.extend(pending)
            if not pending:
                recipe = stack.pop()
                recipe._content_id = recipe._recipe_id()
        assert self._content_id is not False
        return self._content_id

    def _recipe_id(self) -> ContentId | None:
        """Return the id of the op over the ids of its inputs, which are all computed.

        It is a digest, because a nested key grows exponentially where recipes share inputs.
        """
        ids = [None if c is None else c.content_id for c in self.inputs]
        if any(i is None and c is not None for i, c in zip(ids, self.inputs, strict=True)):
            return None
        if not all(map(_is_plain, self.attrs.values())):
            return None  # an attribute that is a tensor or a graph
        keys = [None if i is None else i.key for i in ids]
        text = repr((self.op.key, sorted(self.attrs.items()), self.output, keys))
        is_fixed = all(i is None or i.is_fixed for i in ids)
        return ContentId(("recipe", blake2b(text.encode(), digest_size=24).digest()), is_fixed)

    def describe(self) -> str:
        # One level only: with shared inputs, the full text grows exponentially.
        inner = (
            "-" if c is None else "..." if isinstance(c, Recipe) else c.describe()
            for c in self.inputs
        )
        return f"{self.op.name}({', '.join(inner)})"


def _is_plain(value: object) -> bool:
    """Return whether the repr of an attribute determines its value."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, bytes))


def shared_array_const(array: Array) -> ArrayConst:
    """Return a constant over a decoded array; sessions that decode equal bytes share the array."""
    const = ArrayConst(array)
    if not const.is_small and not array.dtype.hasobject:
        const._array = STORE.share(const.identity, const.read)
    return const


def reshaped(const: Const, shape: tuple[int, ...]) -> Const | None:
    """Return the constant with another shape, or None if that would compute a large recipe."""
    if isinstance(const, SourceConst):
        return SourceConst(const.source, const.offset, const.length, const.dtype, shape)
    if isinstance(const, ArrayConst) or const.is_small:
        return ArrayConst(const.read().reshape(shape))
    return None


def unpack(raw: Array, dtype: DType, count: int) -> Array:
    """Unpack elements of a type under 8 bits, low bits first in ONNX, to one per byte."""
    if dtype.bits == 6:  # a little-endian stream of 6-bit fields
        bits = np.unpackbits(raw, bitorder="little")[: count * 6].reshape(count, 6)
        return np.packbits(bits, axis=1, bitorder="little")[:, 0].view(dtype.np)
    per_byte = 8 // dtype.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(dtype.bits)
    fields = (raw[:, None] >> shifts) & np.uint8((1 << dtype.bits) - 1)
    fields = fields.reshape(-1)[:count]
    if dtype.kind == "int":  # sign-extend: shift left to the sign bit of the byte and back
        unused = np.int8(8 - dtype.bits)
        fields = np.left_shift(fields.view(np.int8), unused) >> unused
    elements: Array = fields.view(dtype.np) if dtype.is_float else fields.astype(dtype.np)
    return elements


def pack(array: Array, dtype: DType) -> bytes:
    """Return the bytes of a tensor as ONNX encodes them; the inverse of `unpack`."""
    if dtype is STRING:
        raise InternalError("strings have no fixed-size encoding")
    flat = np.ascontiguousarray(array).reshape(-1)
    if dtype.bits >= 8:
        return flat.tobytes()
    codes = flat.astype(np.int8).view(np.uint8) if dtype.is_integer else flat.view(np.uint8)
    bits = np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, : dtype.bits]
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()
