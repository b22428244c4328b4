"""Pinned staging ring: host buffers that a device copies from while others are filled."""

from __future__ import annotations

import contextlib
from queue import SimpleQueue
from typing import Any, Final

import torch

from sardonyx.base.records import mutable
from sardonyx.base.shared_store import Array, pages

_STREAMED: Final = ("cuda", "xpu")  # device types with asynchronous copies


@mutable
class Buffer:
    """Host memory that a device copies from."""

    memory: Array  # bytes
    tensor: torch.Tensor  # the same bytes
    is_pinned: bool = False
    copied: Any = None  # the event after which the buffer may be overwritten


class Ring:
    """Buffers in rotation; pinned on CUDA, where copies have a separate stream."""

    def __init__(self, device: torch.device, n_buffers: int, buffer_bytes: int) -> None:
        self._module: Any = getattr(torch, device.type) if device.type in _STREAMED else None
        self._stream: Any = None if self._module is None else self._module.Stream(device)
        self._device = device
        memories = [pages(buffer_bytes) for _ in range(n_buffers)]
        self._buffers = [Buffer(memory, torch.from_numpy(memory)) for memory in memories]
        self._free: SimpleQueue[Buffer | None] = SimpleQueue()
        for buffer in self._buffers:
            self._free.put(buffer)
        if self._stream is not None and self._module is not None:
            # The destination may be memory that pending work on the current stream still uses.
            self._stream.wait_stream(self._module.current_stream(device))

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Submit this thread's device work to the copy stream."""
        if self._stream is None:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = self._module.stream(self._stream)
        return context

    def take(self) -> Buffer | None:
        """Return the oldest buffer, once its copy has ended; None after `stop`."""
        buffer = self._free.get()
        if buffer is not None and buffer.copied is not None and not buffer.copied.query():
            buffer.copied.synchronize()
        return buffer

    def stop(self, n_takers: int) -> None:
        """Wake threads that wait for buffers, with None."""
        for _ in range(n_takers):
            self._free.put(None)

    def pin(self, buffer: Buffer) -> None:
        """Register a filled buffer as pinned memory, for direct memory access.

        Reader threads do so concurrently, after filling: page faults cost more than registration.
        """
        if self._device.type == "cuda" and not buffer.is_pinned:
            with torch.cuda.device(self._device):
                failed = _runtime().cudaHostRegister(_address(buffer), buffer.memory.nbytes, 0)
            buffer.is_pinned = not int(failed)

    def give_back(self, buffer: Buffer) -> None:
        """Return a buffer to the ring after its copies were submitted."""
        if self._stream is not None:
            if buffer.copied is None:
                buffer.copied = self._module.Event()
            buffer.copied.record(self._stream)
        self._free.put(buffer)

    def close(self) -> None:
        """Wait for all copies and unpin the buffers."""
        if self._stream is not None:
            self._stream.synchronize()
        for buffer in self._buffers:
            if buffer.is_pinned:
                _runtime().cudaHostUnregister(_address(buffer))
                buffer.is_pinned = False


def _address(buffer: Buffer) -> int:
    return int(buffer.memory.__array_interface__["data"][0])


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
