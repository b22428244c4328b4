"""Constants are references: a place in a file or buffer, a small array, or a recipe over others."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.errors import FAULTS, InternalError, RuntimeException
from sardonyx.graph.dtype import STRING, DType, by_numpy
from sardonyx.weights.store import STORE, Array

if TYPE_CHECKING:
    from sardonyx.ops.declare import Op

COPY_BELOW: Final = 64 * 1024  # bytes; smaller constants are copied, so that they are aligned
_UNKNOWN: Final = object()  # an identity that nobody asked for yet


class Const:
    """A constant tensor whose bytes are read only when asked for."""

    __slots__ = ("_array", "_identity", "dtype", "shape")

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype: Final = dtype
        self.shape: Final = shape
        self._array: Array | None = None
        self._identity: Hashable | None = _UNKNOWN

    @property
    def identity(self) -> Hashable | None:
        """Equal for constants of equal bytes, in this process; None where that cannot be known."""
        if self._identity is _UNKNOWN:
            self._identity = self._identify()
        return self._identity

    def _identify(self) -> Hashable | None:
        raise InternalError(f"{type(self).__name__} has no identity")

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor in memory."""
        return self.count * self.dtype.itemsize

    @property
    def is_small(self) -> bool:
        """Whether reading it costs next to nothing."""
        return self.size_bytes < COPY_BELOW

    @property
    def is_read(self) -> bool:
        """Whether its bytes are held in memory of our own."""
        return self._array is not None

    def read(self) -> Array:
        """The tensor as a read-only array, aligned and made once."""
        array = self._array
        if array is None:
            key = None if self.is_small else self.identity
            array = STORE.share(key, self._load)
            array.flags.writeable = False
            self._array = array
        return array

    def view(self) -> Array:
        """The tensor for one look: not kept, and perhaps not aligned."""
        return self.read() if self.is_small or self.is_read else self._load()

    def stored(self) -> Array:
        """The bytes in ONNX's form: as they lie in their file, where they lie in one.

        Narrow types are packed bytes; others have their type and shape, and may be unaligned.
        """
        array = self.read()
        return array if self.dtype.bits >= 8 else np.frombuffer(pack(array, self.dtype), np.uint8)

    def _load(self) -> Array:
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

    def _identify(self) -> Hashable | None:
        array = self.read()
        if array.dtype.hasobject or not self.is_small:
            return None
        return (self.dtype.name, self.shape, array.tobytes())

    def describe(self) -> str:
        return "held"


class Source:
    """Bytes that constants point into: a mapped file or a buffer that the user gave."""

    __slots__ = ("__weakref__", "data", "identity", "name")

    def __init__(self, data: memoryview, name: str, identity: Hashable | None = None) -> None:
        """`identity` is equal for sources of equal bytes; None: the bytes may change."""
        self.data: Final = data
        self.name: Final = name
        self.identity: Final = identity


class Ref(Const):
    """A tensor that lies in a source, in ONNX's own form."""

    __slots__ = ("length", "offset", "source")

    def __init__(
        self, source: Source, offset: int, length: int, dtype: DType, shape: tuple[int, ...]
    ) -> None:
        super().__init__(dtype, shape)
        self.source: Final = source
        self.offset: Final = offset
        self.length: Final = length

    def _load(self) -> Array:
        array = self._mapped()
        return array.copy() if self.is_small or not array.flags.aligned else array

    def _raw(self) -> Array:
        return np.frombuffer(self.source.data, np.uint8, self.length, self.offset)

    def _mapped(self) -> Array:
        if self.dtype.bits < 8:
            return unpack(self._raw(), self.dtype, self.count).reshape(self.shape)
        return self._raw().view(self.dtype.np).reshape(self.shape)

    def stored(self) -> Array:
        return self._raw() if self.dtype.bits < 8 else self._mapped()

    def _identify(self) -> Hashable | None:
        where = self.source.identity
        if where is None:
            return None
        return (where, self.offset, self.length, self.dtype.name, self.shape)

    def view(self) -> Array:
        return self.read() if self.is_small or self.is_read else self._mapped()

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

    def _load(self) -> Array:
        made = self._load_inputs()
        arrays = [None if c is None else c.view() for c in self.inputs]
        for recipe in made:  # they were needed for this one look
            recipe._array = None
        try:
            result = self.op.run(arrays, self.attrs)[self.output]
        except (*FAULTS, MemoryError) as error:
            shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in arrays)
            raise RuntimeException(
                f"{self.op} of constants failed: {type(error).__name__}: {error}", inputs=shapes
            ) from error
        if not isinstance(result, np.ndarray) or result.shape != self.shape:
            raise InternalError(f"folding {self.op.name} gave {result!r:.80}, not {self.shape}")
        return np.array(result, self.dtype.np, order="C")

    def _load_inputs(self) -> list[Recipe]:
        """Evaluates what this is made of, deepest first: chains may be longer than calls nest."""
        made: list[Recipe] = []
        waiting = self._unread()
        while waiting:
            unread = waiting[-1]._unread()
            waiting.extend(unread)
            if not unread:
                made.append(waiting.pop())
                made[-1].read()
        return made

    def _identify(self) -> Hashable | None:
        of = tuple(None if c is None else c.identity for c in self.inputs)
        if any(c is not None and i is None for c, i in zip(self.inputs, of, strict=True)):
            return None
        key = (self.op.key, tuple(sorted(self.attrs.items())), self.output, of)
        try:
            hash(key)
        except TypeError:  # an attribute that is a tensor or a graph
            return None
        return key

    def _unread(self) -> list[Recipe]:
        return [c for c in self.inputs if isinstance(c, Recipe) and not c.is_read]

    def describe(self) -> str:
        # One level: shared parts would make the text grow without bound.
        inner = (
            "-" if c is None else "..." if isinstance(c, Recipe) else c.describe()
            for c in self.inputs
        )
        return f"{self.op.name}({', '.join(inner)})"


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
