"""Runs the kernel of a node alone, on any ISA, for any split, between guard bytes."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.graph.const import pack
from sardonyx.graph.dim import evaluate
from sardonyx.graph.dtype import STRING, DType, by_numpy
from sardonyx.graph.graph import Node, Value
from sardonyx.place.lowered import Call, Packed, Stored

Array = np.ndarray[Any, np.dtype[Any]]
SPLITS = (1, 2, 7)  # parts that the range of a phase is divided into
GUARD = 64  # bytes of a pattern before and after every output
PATTERN = 0xA5
TEXT = np.dtype("V16")  # a string as kernels have it: the address of its bytes, and how many


def tensor(array: Array | None) -> tuple[int, int, list[int], list[int]]:
    """An array as native calls take it."""
    if array is None:
        return (0, 0, [], [])
    dtype = STRING if array.dtype == TEXT else by_numpy(array.dtype)
    assert dtype is not None
    strides = [s // array.itemsize for s in array.strides]
    return (array.ctypes.data, dtype.onnx, list(array.shape), strides)


def as_texts(array: Array) -> Array:
    """Strings as kernels read them; other arrays as they are."""
    if array.dtype != object:
        return array
    block = native.pack_strings(np.ascontiguousarray(array))
    return np.ndarray(array.shape, TEXT, block)


def element_type(dtype: DType) -> Any:
    """Return the element type of an output's array."""
    return TEXT if dtype is STRING else dtype.np


def guarded(shape: tuple[int, ...], dtype: Any, offset: int = 0) -> tuple[Array, Array]:
    """An uninitialised array with guard bytes around it, and the whole buffer."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    whole = np.full(size + 2 * GUARD + offset, PATTERN, np.uint8)
    inner = whole[GUARD + offset : GUARD + offset + size].view(dtype).reshape(shape)
    return inner, whole


def with_gaps(shape: tuple[int, ...], dtype: Any, gap: int) -> tuple[Array, Array]:
    """The same, with so many elements to be left alone before and after each row."""
    *outer, last = shape
    rows, whole = guarded((*outer, last + 2 * gap), dtype)
    return rows[..., gap : gap + last], whole


def untouched(whole: Array, inner: Array) -> bool:
    """Whether the bytes around an array, and between its rows, are as they were."""
    if not inner.flags.c_contiguous:
        copy = whole.copy()
        shift = inner.ctypes.data - whole.ctypes.data
        rows = np.ndarray(inner.shape, inner.dtype, copy.data, shift, inner.strides)
        rows.view(np.uint8)[...] = PATTERN
        return bool((copy == PATTERN).all())
    end = inner.ctypes.data - whole.ctypes.data + inner.nbytes
    begin = inner.ctypes.data - whole.ctypes.data
    return bool((whole[:begin] == PATTERN).all() and (whole[end:] == PATTERN).all())


def run_call(  # noqa: PLR0913 - how a call is run, each way by name
    call: Call,
    node: Node,
    values: dict[Value, Array],
    dims: dict[str, int],
    isa: str = "",
    splits: int = 1,
    share: tuple[int, int] | None = None,
    gap: int = 0,
) -> list[Array]:
    """The outputs of a node, by its kernel; `values` are its inputs that are not constants.

    `share` names an input and the output that is to be made in its bytes. The first output has a
    gap of so many elements before and after each row of its last axis.
    """
    inputs = [None if v is None else operand(v, values, isa) for v in call.inputs]
    if not native.kernels[call.kernel].accepts:  # strides: the executor copies
        inputs = [None if a is None else a.copy() if strided(a) else a for a in inputs]
    ints = [evaluate(i, dims) for i in call.ints]
    types = [element_type(v.tensor.dtype) for v in node.outputs]
    shapes = _output_shapes(call, node, [tensor(a) for a in inputs], dims, isa)
    made = [guarded(shape, dtype) for shape, dtype in zip(shapes, types, strict=True)]
    if gap:
        made[0] = with_gaps(shapes[0], types[0], gap)
    if share is not None:
        taken, place = inputs[share[0]], made[share[1]][0]
        assert taken is not None
        inputs[share[0]] = over(place, taken, call.permutation)
    texts, given = native.StringArena(), [tensor(a) for a in inputs]
    outputs, floats = [tensor(inner) for inner, _ in made], list(call.floats)
    if error := native.call(call.kernel, given, outputs, ints, floats, splits, isa, texts):
        raise RuntimeError(error)
    assert all(untouched(whole, inner) for inner, whole in made), "wrote outside its output"
    results = [read(inner) for inner, _ in made]
    del texts  # which owns the strings until they are read
    return results


def _output_shapes(
    call: Call, node: Node, inputs: list[Any], dims: dict[str, int], isa: str
) -> list[tuple[int, ...]]:
    """The shapes of the outputs, resolved by the kernel if they depend on data."""
    facts = [v.tensor for v in node.outputs]
    if not native.kernels[call.kernel].resolves:
        return [tuple(evaluate(d, dims) for d in f.dims) for f in facts]
    ints = [evaluate(i, dims) for i in call.ints]
    unknown = [(0, f.dtype.onnx, [-1] * f.rank, [0] * f.rank) for f in facts]
    shapes = native.resolve(call.kernel, inputs, unknown, ints, list(call.floats), isa)
    return [tuple(shape) for shape in shapes]


def run_splits(
    call: Call,
    node: Node,
    values: dict[Value, Array],
    isa: str,
    dims: dict[str, int] | None = None,
    **options: Any,
) -> list[Array]:
    """The outputs of a kernel, which must be equal to the bit for every split."""
    first, *others = (run_call(call, node, values, dims or {}, isa, n, **options) for n in SPLITS)
    for other in others:
        assert all(map(same_bytes, first, other)), f"{isa}: the split changes the result"
    return first


def read(array: Array) -> Array:
    """An output with its strings as objects."""
    if array.dtype != TEXT:
        return array
    plain = np.ascontiguousarray(array)
    return native.read_strings(plain.ctypes.data, list(array.shape))


def same_bytes(a: Array, b: Array) -> bool:
    """Whether two results are equal to the bit."""
    if a.dtype == object:
        return a.shape == b.shape and a.tolist() == b.tolist()
    return a.tobytes() == b.tobytes()


def strided(array: Array) -> bool:
    """Whether elements are not contiguous in row-major order."""
    return not array.flags.c_contiguous


def over(place: Array, taken: Array, perm: tuple[int, ...]) -> Array:
    """An input in the bytes of an output, in whose order its axes are permuted by `perm`."""
    seen = place.view(taken.dtype)
    seen = seen.transpose(np.argsort(perm)) if perm else seen.reshape(taken.shape)
    seen[...] = taken
    return seen


def operand(given: Value | Packed | Stored, values: dict[Value, Array], isa: str) -> Array:
    """Return an operand as its kernel reads it, packed if required; constants need not be given."""
    value = given if isinstance(given, Value) else given.value
    array = values[value] if value in values else value.const.read()  # type: ignore[union-attr]
    if array.dtype == object:
        return as_texts(array)
    if isinstance(given, Stored):
        return stored(array)
    if not isinstance(given, Packed):
        return array
    packed, whole = guarded((given.size_bytes,), np.uint8)
    arguments = [tensor(array)], [tensor(packed)], list(given.ints), []
    error = native.call(given.kernel, *arguments, 1, isa)
    assert not error, error
    assert untouched(whole, packed), "packing wrote outside its output"
    return packed


def stored(array: Array) -> Array:
    """An array as a file may have it: unaligned, and with nothing to be read after its page."""
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    raw = np.frombuffer(pack(array, dtype), np.uint8)
    spare = 1 if dtype.bits > 8 else 0
    size = -(-(len(raw) + spare) // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = np.frombuffer(mmap.mmap(-1, size + mmap.PAGESIZE), np.uint8)
    inner = whole[size - spare - len(raw) : size - spare]
    inner[:] = raw
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + size), mmap.PAGESIZE, 0) == 0
    return inner if dtype.bits < 8 else inner.view(array.dtype).reshape(array.shape)
