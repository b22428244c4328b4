"""Streams weights from files and memory to a device, through a ring of buffers of fixed size."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final

import torch
from torch import Tensor

from sardonyx.base.units import format_bytes
from sardonyx.errors import FAULTS, EPFail, SardonyxError
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import BOOL
from sardonyx.providers.torch.constant_layouts import CHANNELS_LAST, COLUMNS, padded
from sardonyx.providers.torch.derived_constants import cooking
from sardonyx.providers.torch.staging_ring import Buffer, Ring
from sardonyx.providers.torch.sub_byte import held_as, unpacked
from sardonyx.weights.loading import DataLoader, Report, WeightReference, silent
from sardonyx.weights.reading import PAGE, FilePiece, MemoryPiece, Part, Reading

BUFFER_BYTES: Final = 8 << 20
N_THREADS: Final = 8  # that read
N_SPARE: Final = 8  # buffers beside those that are being read into: the device copies from them

_LEAST_BYTES: Final = 1 << 20  # of a buffer
_MANY: Final = 64  # pieces; with as many, buffers are as large as they get
_MOST_THREADS: Final = 64
_GROUP_BYTES: Final = 1 << 30  # of weights that others are made of
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
        name, shape = "" if asked is None else asked.name, reference.shape
        order = torch.channels_last if name == CHANNELS_LAST else torch.contiguous_format
        with _room_for(reference, self._device):
            if name == COLUMNS:
                k, n = shape
                room = torch.empty((padded(n, dtype), k), dtype=dtype, device=self._device)
                return room.T[:, :n]
            if len(shape) == 2:  # turned around, its rows are columns
                n, k = shape
                return torch.empty((padded(n, dtype), k), dtype=dtype, device=self._device)[:n]
            return torch.empty(shape, dtype=dtype, device=self._device, memory_format=order)

    def load(self, reference: WeightReference, destination: Tensor) -> None:
        self.load_many([(reference, destination)])

    def load_many(
        self, pairs: Sequence[tuple[WeightReference, Tensor]], report: Report = silent
    ) -> None:
        jobs = [_job(reference, tensor) for reference, tensor in pairs]
        targets = [target for job in jobs for target in job]
        references = [target.reference for target in targets]
        with Reading(references, _capacity(references), _groups(jobs)) as reading:
            if not reading.pieces:
                return
            n_threads = min(self._n_threads, len(reading.pieces))
            longest = max(piece.size_bytes for piece in reading.pieces)
            n_buffers = min(n_threads + N_SPARE, len(reading.pieces))
            ring = Ring(self._device, n_buffers, -(-longest // PAGE) * PAGE)
            try:
                _Upload(reading.pieces, targets, ring).run(n_threads, report)
                reading.check()
            finally:
                ring.close()


def _capacity(references: Sequence[WeightReference]) -> int:
    """The size of a buffer: to pin memory takes time, which few weights would not repay."""
    share = sum(reference.length for reference in references) // _MANY
    return min(max(share // PAGE * PAGE, _LEAST_BYTES), BUFFER_BYTES)


@contextlib.contextmanager
def _room_for(reference: WeightReference, device: torch.device) -> Iterator[None]:
    """Says of which weight there is no room for, and how much is missing."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, SardonyxError):
            raise
        wanted, free = reference.size_bytes, _free_bytes(device)
        known = ""
        if free is not None:
            known = f": {format_bytes(free)} are free, {format_bytes(wanted - free)} missing"
        raise EPFail(
            f"{format_bytes(wanted)} for the weight {reference.name!r} do not fit on "
            f"{device}{known}",
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
    """A weight on the device, and the bytes that are copied to make it.

    They are those of `tensor`, or memory of their own, which goes to `then` when all are there.
    """

    def __init__(
        self, reference: WeightReference, tensor: Tensor, then: Callable[[Tensor], None] | None
    ) -> None:
        self.reference = reference
        self._then = then
        self._device = tensor.device
        self._left = reference.length
        self._raw = tensor.view(-1).view(torch.uint8) if then is None else None

    def copy(self, part: Part, buffer: Tensor) -> None:
        """Copies a part from a buffer; after the last one, the weight is made."""
        if self._raw is None:
            with _room_for(self.reference, self._device):
                length = self.reference.length
                self._raw = torch.empty(length, dtype=torch.uint8, device=self._device)
        there = self._raw[part.begin : part.begin + part.size_bytes]
        there.copy_(buffer[part.at : part.at + part.size_bytes], non_blocking=True)
        self._left -= part.size_bytes
        if not self._left:
            raw, self._raw = self._raw, None
            self._finish(raw)

    def _finish(self, raw: Tensor) -> None:
        const = self.reference.const
        if const.dtype is BOOL:
            raw.ne_(0)  # in a file, any byte but 0 is true
        if self._then is None:
            return
        if const.dtype.bits >= 8:
            raw = raw.view(held_as(const.dtype)).reshape(const.shape)
        elif not self.reference.is_packed:
            raw = unpacked(raw, const.dtype, const.count).reshape(const.shape)
        self._then(raw)


def _job(reference: WeightReference, tensor: Tensor) -> list[_Target]:
    """What is to be copied for a weight: its bytes, or those of what it is made of."""
    conversion = reference.conversion

    def finish(made: Tensor) -> None:
        tensor.copy_(made if conversion is None else conversion.convert(made))

    recipe = None if reference.is_packed else cooking(reference.const)
    if recipe is None:
        is_unpacked = reference.const.dtype.bits < 8 and not reference.is_packed
        is_plain = conversion is None and not is_unpacked
        return [_Target(reference, tensor, None if is_plain else finish)]
    there: dict[Const, Tensor] = {}

    def receive(leaf: Const, arrived: Tensor) -> None:
        there[leaf] = arrived
        if len(there) == len(recipe.leaves):
            finish(recipe.make(there, tensor.device))
            there.clear()

    if not recipe.leaves:
        finish(recipe.make(there, tensor.device))
    name = reference.name
    return [
        _Target(WeightReference(name, leaf), tensor, partial(receive, leaf))
        for leaf in recipe.leaves
    ]


def _groups(jobs: Sequence[Sequence[_Target]]) -> list[list[int]]:
    """Targets by their numbers, in the order to read them in: what others are made of comes last.

    That lies on the device twice until it is made, so that it comes in groups of bounded size.
    """
    plain: list[int] = []
    groups: list[list[int]] = [[]]
    number, room = 0, _GROUP_BYTES
    for job in jobs:
        numbers = range(number, number + len(job))
        number += len(job)
        if len(job) == 1:
            plain += numbers
            continue
        groups[-1] += numbers
        room -= sum(target.reference.length for target in job)
        if room < 0:
            groups.append([])
            room = _GROUP_BYTES
    return [plain, *groups]


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
                self._ring.pin(buffer)
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
        except (RuntimeError, *FAULTS) as error:
            if isinstance(error, SardonyxError):
                raise
            name = target.reference.name
            raise EPFail(f"copying {name!r} to the device failed: {error}", weight=name) from None
