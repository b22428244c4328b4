"""Streams weights from files and memory to a device, through a ring of buffers of fixed size."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from sardonyx.cli.term import size
from sardonyx.errors import EPFail, SardonyxError
from sardonyx.graph.dtype import BOOL
from sardonyx.locks import Lock
from sardonyx.providers.torch.narrow import held_as, unpacked
from sardonyx.providers.torch.ring import Buffer, Ring
from sardonyx.weights.loading import DataLoader, Report, WeightReference, silent
from sardonyx.weights.reading import PAGE, FilePiece, MemoryPiece, Part, Reading

CHANNELS_LAST: Final = "channels last"  # a conversion: of rank 4, in another order in memory
BUFFER_BYTES: Final = 8 << 20
N_BUFFERS: Final = 12
N_THREADS: Final = 8

_TICK: Final = 0.05  # seconds between reports


class TorchLoader(DataLoader):
    """Loads weights to a device of torch: many reads at once, beside the copies to the device."""

    shares = True

    def __init__(self, device: torch.device, name: str = "", n_threads: int = N_THREADS) -> None:
        """`name` is what values' homes call the device, where that is not torch's name."""
        self._device = device
        self._name = name or str(device)
        self._n_threads = min(max(1, n_threads), N_BUFFERS)

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
            n_pieces = len(reading.pieces)
            if not n_pieces:
                return
            longest = max(p.size_bytes for p in reading.pieces)
            ring = Ring(self._device, min(N_BUFFERS, n_pieces), -(-longest // PAGE) * PAGE)
            try:
                _Upload(reading.pieces, targets, ring).run(self._n_threads, report)
                reading.check()
            finally:
                ring.close()
                targets.clear()  # of those that an error keeps alive


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


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
        self._lock = Lock()
        self._raw: Tensor | None = None if self._is_made_later else _bytes_of(tensor)

    @property
    def _is_made_later(self) -> bool:
        """Whether the device makes it of other bytes."""
        reference = self.reference
        is_unpacked = reference.const.dtype.bits < 8 and not reference.is_packed
        return reference.conversion is not None or is_unpacked

    def copy(self, part: Part, buffer: Tensor) -> None:
        """Copies a part from a buffer; after the last one, the weight is made."""
        with self._lock:
            if self._raw is None:
                with _room_for(self.reference, self._tensor.device):
                    length = self.reference.length
                    self._raw = torch.empty(length, dtype=torch.uint8, device=self._tensor.device)
            raw = self._raw
        there = raw[part.begin : part.begin + part.size_bytes]
        there.copy_(buffer[part.at : part.at + part.size_bytes], non_blocking=True)
        with self._lock:
            self._left -= part.size_bytes
            is_last = not self._left
        if is_last:
            self._make(raw)
            self._raw = None

    def _make(self, raw: Tensor) -> None:
        const = self.reference.const
        if not self._is_made_later:
            if const.dtype is BOOL:
                raw.ne_(0)  # in a file, any byte but 0 is true
            return
        if const.dtype.bits < 8 and not self.reference.is_packed:
            made = unpacked(raw, const.dtype, const.count)
        else:
            made = raw.view(held_as(const.dtype))
        if not self.reference.is_packed:
            made = made.reshape(const.shape)
        conversion = self.reference.conversion
        self._tensor.copy_(made if conversion is None else conversion.convert(made))


class _Upload:
    """Threads that take pieces, read them and ask for their copies."""

    def __init__(
        self, pieces: Sequence[FilePiece | MemoryPiece], targets: list[_Target], ring: Ring
    ) -> None:
        self._n_pieces = len(pieces)
        self._pieces = iter(pieces)
        self._targets = targets
        self._ring = ring
        self._lock = threading.Lock()
        self._done = 0
        self._errors: list[BaseException] = []
        self._is_over = False

    def run(self, n_threads: int, report: Report) -> None:
        """Uploads all pieces; raises the first error, or what `report` raises."""
        total = sum(t.reference.length for t in self._targets)
        count = min(n_threads, self._n_pieces)
        threads = [threading.Thread(target=self._work) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_TICK)
                    report(self._done, total)
        finally:
            self._is_over = True
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]
        report(total, total)

    def _work(self) -> None:
        try:
            with self._ring.on_stream():
                while (piece := self._next()) is not None:
                    self._move(piece)
        except BaseException as error:  # it belongs to whoever waits
            self._errors.append(error)
            self._is_over = True

    def _next(self) -> FilePiece | MemoryPiece | None:
        with self._lock:
            return None if self._is_over else next(self._pieces, None)

    def _move(self, piece: FilePiece | MemoryPiece) -> None:
        buffer = self._ring.take()
        try:
            piece.read(buffer.memory.data)
            for part in piece.parts:
                self._copy(part, buffer)
        finally:
            self._ring.give_back(buffer)
        with self._lock:
            self._done += sum(part.size_bytes for part in piece.parts)

    def _copy(self, part: Part, buffer: Buffer) -> None:
        target = self._targets[part.weight]
        try:
            target.copy(part, buffer.tensor)
        except RuntimeError as error:
            if isinstance(error, SardonyxError):
                raise
            name = target.reference.name
            raise EPFail(f"copying a weight to the device failed: {error}", weight=name) from None
