"""Kernel calls on another machine, or one that is emulated: native/tests/run_kernels.cc runs them.

With SARDONYX_RUNNER set to the command that starts it, every single call of a kernel goes
there, so that all tests which make such calls are tests of its kernels.
"""

from __future__ import annotations

import atexit
import ctypes
import shlex
import struct
import subprocess
from collections.abc import Sequence
from typing import Any

import sardonyx._native as native
from sardonyx.graph.dtype import by_onnx

Tensor = tuple[int, int, list[int], list[int]]
Tensors = Sequence[Tensor]
Ints = Sequence[int]
Floats = Sequence[float]
CALL, RESOLVE, END = range(3)
STRING = 8  # whose elements are addresses, which mean nothing elsewhere


class Remote:
    """The process that runs kernels, in place of the functions of the native module."""

    def __init__(self, command: str) -> None:
        self._here = native.call, native.resolve
        self._process = subprocess.Popen(
            shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self._end)

    def call(
        self, kernel: str, inputs: Tensors, outputs: Tensors, ints: Ints, floats: Floats, *rest: Any
    ) -> str:
        """As native.call; `rest` may be the splits and the ISA."""
        if _has_strings(inputs, outputs):
            return self._here[0](kernel, inputs, outputs, ints, floats, *rest)
        splits = rest[0] if rest else 1
        wrong = self._ask(CALL, kernel, inputs, outputs, (ints, floats, splits))
        for tensor in outputs:
            _, n_bytes = _extent(tensor)
            ctypes.memmove(tensor[0], self._read(n_bytes), n_bytes)
        return wrong

    def resolve(
        self, kernel: str, inputs: Tensors, outputs: Tensors, ints: Ints, floats: Floats, *rest: Any
    ) -> list[list[int]]:
        """As native.resolve; `rest` may be the ISA."""
        if _has_strings(inputs, outputs):
            return self._here[1](kernel, inputs, outputs, ints, floats, *rest)
        wrong = self._ask(RESOLVE, kernel, inputs, outputs, (ints, floats, 1))
        dims = [[self._int() for _ in tensor[2]] for tensor in outputs]
        if wrong:
            raise ValueError(wrong)
        return dims

    def _ask(self, kind: int, kernel: str, inputs: Tensors, outputs: Tensors, numbers: Any) -> str:
        ints, floats, splits = numbers
        parts = [struct.pack("q", kind), _list("b", kernel.encode()), struct.pack("q", len(inputs))]
        for tensor in inputs:
            begin, n_bytes = _extent(tensor)
            parts += [_header(tensor, -1), ctypes.string_at(tensor[0] + begin, n_bytes)]
        parts.append(struct.pack("q", len(outputs)))
        shared = {
            tensor[0]: i for i, tensor in enumerate(inputs) if tensor[1] and _extent(tensor)[1]
        }
        parts += [_header(tensor, shared.get(tensor[0], -1)) for tensor in outputs]
        parts += [_list("q", ints), _list("d", floats), struct.pack("q", splits)]
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(parts))
        self._process.stdin.flush()
        return self._read(self._int()).decode()

    def _read(self, n_bytes: int) -> bytes:
        assert self._process.stdout is not None
        found = self._process.stdout.read(n_bytes)
        assert len(found) == n_bytes, "the process that runs kernels has died"
        return found

    def _int(self) -> int:
        return int(struct.unpack("q", self._read(8))[0])

    def _end(self) -> None:
        assert self._process.stdin is not None
        if self._process.poll() is None:
            self._process.stdin.write(struct.pack("q", END))
            self._process.stdin.close()
            self._process.wait()


def use(command: str) -> None:
    """From here on single calls of kernels are run by this command."""
    remote = Remote(command)
    native.call = remote.call  # type: ignore[assignment]
    native.resolve = remote.resolve  # type: ignore[assignment]
    native.isas = native.isas[:1]  # type: ignore[misc]
    native.isa = native.isas[0]  # type: ignore[misc]


def _has_strings(*tensors: Tensors) -> bool:
    return any(tensor[1] == STRING for group in tensors for tensor in group)


def _list(kind: str, numbers: Any) -> bytes:
    return struct.pack(f"=q{len(numbers)}{kind}", len(numbers), *numbers)


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the offset of a tensor's lowest byte from its first element, and its size in bytes."""
    _, dtype, dims, strides = tensor
    if dtype == 0 or 0 in dims or -1 in dims:
        return 0, 0
    reach = [(d - 1) * s for d, s in zip(dims, strides, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    found = by_onnx(dtype)
    assert found is not None
    return low * found.itemsize, (high - low + 1) * found.itemsize


def _header(tensor: Tensor, shared: int) -> bytes:
    address, dtype, dims, strides = tensor
    begin, n_bytes = _extent(tensor)
    place = struct.pack("4q", -begin, n_bytes, (address + begin) % 64, shared)
    return struct.pack("q", dtype) + _list("q", dims) + _list("q", strides) + place
