"""A ring of host buffers that a device copies from while others are filled."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

import torch

from sardonyx.weights.store import Array, pages

_STREAMED: Final = ("cuda", "xpu")  # types of devices that copy beside the host's work


@dataclass(slots=True)
class Buffer:
    """Host memory that a device copies from."""

    memory: Array  # bytes
    tensor: torch.Tensor  # the same bytes
    copied: Any = None  # the event after which they may be written again


class Ring:
    """Buffers that are filled in turn; pinned on CUDA, where copies have a stream of their own."""

    def __init__(self, device: torch.device, n_buffers: int, buffer_bytes: int) -> None:
        self._module: Any = getattr(torch, device.type) if device.type in _STREAMED else None
        self._stream: Any = None if self._module is None else self._module.Stream(device)
        self._memory = pages(n_buffers * buffer_bytes)
        self._is_pinned = device.type == "cuda" and self._pin()
        self._free: SimpleQueue[Buffer | None] = SimpleQueue()
        for i in range(n_buffers):
            memory = self._memory[i * buffer_bytes : (i + 1) * buffer_bytes]
            self._free.put(Buffer(memory, torch.from_numpy(memory)))
        if self._stream is not None and self._module is not None:
            # What is filled may have been freed by work that is still under way there.
            self._stream.wait_stream(self._module.current_stream(device))

    def on_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Work of this thread on the device happens in the order of the copies."""
        if self._stream is None:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[Any] = self._module.stream(self._stream)
        return context

    def take(self) -> Buffer | None:
        """The buffer whose copy began first, once that is over; None when there is no more work."""
        buffer = self._free.get()
        if buffer is not None and buffer.copied is not None and not buffer.copied.query():
            buffer.copied.synchronize()
        return buffer

    def stop(self, n_takers: int) -> None:
        """Gives None to those who wait for buffers."""
        for _ in range(n_takers):
            self._free.put(None)

    def give_back(self, buffer: Buffer) -> None:
        """Says that the copies out of a buffer have been asked for."""
        if self._stream is not None:
            if buffer.copied is None:
                buffer.copied = self._module.Event()
            buffer.copied.record(self._stream)
        self._free.put(buffer)

    def close(self) -> None:
        """Waits for all copies, and frees the buffers."""
        if self._stream is not None:
            self._stream.synchronize()
        if self._is_pinned:
            _runtime().cudaHostUnregister(self._address)
            self._is_pinned = False

    def _pin(self) -> bool:
        """Registers the buffers, so that the device reads them itself; without it is slower."""
        return not int(_runtime().cudaHostRegister(self._address, self._memory.nbytes, 0))

    @property
    def _address(self) -> int:
        return int(self._memory.__array_interface__["data"][0])


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
