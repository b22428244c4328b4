"""Streams weights from files and memory to a device, through a ring of buffers of fixed size."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final

import torch
from torch import Tensor

from sardonyx.cli.term import size
from sardonyx.errors import EPFail, SardonyxError
from sardonyx.graph.dtype import BOOL
from sardonyx.providers.torch.narrow import held_as, unpacked
from sardonyx.providers.torch.ring import Buffer, Ring
from sardonyx.weights.loading import DataLoader, Report, WeightReference, silent
from sardonyx.weights.reading import PAGE, FilePiece, MemoryPiece, Part, Reading

CHANNELS_LAST: Final = "channels last"  # a conversion: of rank 4, in another order in memory
BUFFER_BYTES: Final = 8 << 20
N_THREADS: Final = 8  # that read
N_SPARE: Final = 4  # buffers beside those that are being read into: the device copies from them

_MOST_THREADS: Final = 64
_TICK: Final = 0.05  # seconds between reports


class TorchLoader(DataLoader):
    """Loads weights to a device of torch: many reads at once, beside the copies to the device."""

    shares = True

    def __init__(self, device: torch.device, name: str = "", n_threads: int = N_THREADS) -> None:
        """`name` is what values' homes call the device, where that is not torch's name."""
        self._device = device
        self._name = name or str(device)
        self._n_threads = max(1, min(n_threads, _MOST_THREADS, len(os.sched_getaffinity(0))))

    def can_load(self, device: str) -> bool:
        return device == self._name

    def allocate(self, reference: WeightReference) -> Tensor:
        dtype, asked = held_as(reference.dtype), reference.conversion
        is_image = asked is not None and asked.name == CHANNELS_LAST
        order = torch.channels_last if is_image else torch.contiguous_format
        with _room_for(reference, self._device):
            return torch.empty(
                reference.shape, dtype=dtype, device=self._device, memory_format=order
            )

    def load(self, reference: WeightReference, destination: Tensor) -> None:
        self.load_many([(reference, destination)])

    def load_many(
        self, pairs: Sequence[tuple[WeightReference, Tensor]], report: Report = silent
    ) -> None:
        references = [reference for reference, _ in pairs]
        targets = [_Target(reference, tensor) for reference, tensor in pairs]
        with Reading(references, BUFFER_BYTES) as reading:
            if not reading.pieces:
                return
            n_threads = min(self._n_threads, len(reading.pieces))
            longest = max(piece.size_bytes for piece in reading.pieces)
            ring = Ring(self._device, n_threads + N_SPARE, -(-longest // PAGE) * PAGE)
            try:
                _Upload(reading.pieces, targets, ring).run(n_threads, report)
                reading.check()
            finally:
                ring.close()
                targets.clear()  # an error that is kept must not keep the memory


@contextlib.contextmanager
def _room_for(reference: WeightReference, device: torch.device) -> Iterator[None]:
    """Says of which weight there is no room for, and how much is missing."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, SardonyxError):
            raise
        wanted, free = reference.size_bytes, _free_bytes(device)
        known = "" if free is None else f": {size(free)} are free, {size(wanted - free)} missing"
        raise EPFail(
            f"{size(wanted)} for the weight {reference.name!r} do not fit on {device}{known}",
            weight=reference.name,
            hint="use a smaller model or type, or set gpu_mem_limit: what exceeds it stays on "
            "the CPU",
        ) from None


def _free_bytes(device: torch.device) -> int | None:
    """Memory of a device that can be had; None where it does not tell."""
    if device.type != "cuda":
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


class _Target:
    """A weight on the device, and the bytes that are copied to make it."""

    def __init__(self, reference: WeightReference, tensor: Tensor) -> None:
        self.reference = reference
        self._tensor = tensor
        self._left = reference.length
        is_narrow = reference.const.dtype.bits < 8
        self._is_unpacked = is_narrow and not reference.is_packed
        self._is_made = reference.conversion is not None or self._is_unpacked  # of other bytes
        self._raw: Tensor | None = None if self._is_made else tensor.view(-1).view(torch.uint8)

    def copy(self, part: Part, buffer: Tensor) -> None:
        """Copies a part from a buffer; after the last one, the weight is made."""
        if self._raw is None:
            with _room_for(self.reference, self._tensor.device):
                length = self.reference.length
                self._raw = torch.empty(length, dtype=torch.uint8, device=self._tensor.device)
        there = self._raw[part.begin : part.begin + part.size_bytes]
        there.copy_(buffer[part.at : part.at + part.size_bytes], non_blocking=True)
        self._left -= part.size_bytes
        if not self._left:
            self._make(self._raw)
            self._raw = None

    def _make(self, raw: Tensor) -> None:
        const, conversion = self.reference.const, self.reference.conversion
        if not self._is_made:
            if const.dtype is BOOL:
                raw.ne_(0)  # in a file, any byte but 0 is true
            return
        if self._is_unpacked:
            raw = unpacked(raw, const.dtype, const.count).reshape(const.shape)
        elif not self.reference.is_packed or const.dtype.bits >= 8:
            raw = raw.view(held_as(const.dtype)).reshape(const.shape)
        self._tensor.copy_(raw if conversion is None else conversion.convert(raw))


class _Upload:
    """Threads that read pieces into buffers, and one that asks the device to copy from these."""

    def __init__(
        self, pieces: Sequence[FilePiece | MemoryPiece], targets: list[_Target], ring: Ring
    ) -> None:
        self._n_pieces = len(pieces)
        self._pieces = iter(pieces)
        self._targets = targets
        self._ring = ring
        self._lock = threading.Lock()
        self._read: SimpleQueue[tuple[FilePiece | MemoryPiece, Buffer] | BaseException]
        self._read = SimpleQueue()

    def run(self, n_threads: int, report: Report) -> None:
        """Uploads all pieces; raises what goes wrong in any thread, or what `report` raises."""
        readers = [threading.Thread(target=self._work) for _ in range(n_threads)]
        for reader in readers:
            reader.start()
        try:
            with self._ring.on_stream():
                self._copy_all(report)
        finally:
            self._pieces = iter(())
            self._ring.stop(n_threads)
            for reader in readers:
                reader.join()

    def _work(self) -> None:
        try:
            while (buffer := self._ring.take()) is not None and (piece := self._next()) is not None:
                piece.read(buffer.memory.data)
                self._read.put((piece, buffer))
        except BaseException as error:  # it belongs to who waits
            self._read.put(error)

    def _next(self) -> FilePiece | MemoryPiece | None:
        with self._lock:
            return next(self._pieces, None)

    def _copy_all(self, report: Report) -> None:
        total, done = sum(t.reference.length for t in self._targets), 0
        left, reported = self._n_pieces, time.monotonic()
        while left:
            found = self._found()
            if isinstance(found, BaseException):
                raise found
            if found is not None:
                piece, buffer = found
                for part in piece.parts:
                    self._copy(part, buffer)
                    done += part.size_bytes
                self._ring.give_back(buffer)
                left -= 1
            if time.monotonic() > reported + _TICK or not left:
                report(done, total)
                reported = time.monotonic()

    def _found(self) -> tuple[FilePiece | MemoryPiece, Buffer] | BaseException | None:
        """The next piece that was read; None if that takes long."""
        try:
            return self._read.get(timeout=_TICK)
        except Empty:
            return None

    def _copy(self, part: Part, buffer: Buffer) -> None:
        target = self._targets[part.weight]
        try:
            target.copy(part, buffer.tensor)
        except RuntimeError as error:
            if isinstance(error, SardonyxError):
                raise
            name = target.reference.name
            raise EPFail(f"copying a weight to the device failed: {error}", weight=name) from None
