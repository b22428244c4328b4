"""Streams weights from files and memory to a device, through a ring of pinned staging buffers.

Reader threads fill buffers; one thread submits the copies to the device. Reads, copies and the
conversion of arrived weights overlap.
"""

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

from sardonyx.base.locks import Lock
from sardonyx.base.units import format_bytes
from sardonyx.errors import UNEXPECTED_ERRORS, EPFail, SardonyxError
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import BOOL
from sardonyx.providers.torch.derived_constants import device_recipe
from sardonyx.providers.torch.dtypes import storage_type, unpacked_elements
from sardonyx.providers.torch.kernel import CHANNELS_LAST, COLUMNS, padded
from sardonyx.providers.torch.staging_ring import Buffer, Ring
from sardonyx.weights.loading import DataLoader, Report, WeightReference, silent
from sardonyx.weights.reading import PAGE, ChunkedReader, FileChunk, MemoryChunk, WeightRange

BUFFER_BYTES: Final = 8 << 20
N_THREADS: Final = 8  # readers
N_SPARE: Final = 8  # buffers beyond one per reader: those that the device copies from

_MIN_BUFFER_BYTES: Final = 1 << 20
_MIN_CHUNKS: Final = 64  # buffers grow up to BUFFER_BYTES as long as there are so many chunks
_MAX_THREADS: Final = 64
_GROUP_BYTES: Final = 1 << 30  # inputs of derived constants on the device at a time
_REPORT_SECONDS: Final = 0.05  # between progress reports


class TorchLoader(DataLoader):
    """Loads weights to a device of torch, with concurrent reads and asynchronous copies."""

    shares = True

    def __init__(self, device: torch.device, name: str = "", n_threads: int = N_THREADS) -> None:
        """`name` is placement's name of the device, if it differs from torch's."""
        self._device = device
        self._name = name or str(device)
        self._n_threads = max(1, min(n_threads, _MAX_THREADS, len(os.sched_getaffinity(0))))

    def can_load(self, device: str) -> bool:
        return device == self._name

    def allocate(self, reference: WeightReference) -> Tensor:
        # The final memory is allocated in its layout: bytes are copied there without a second copy.
        dtype, conversion = storage_type(reference.dtype), reference.conversion
        layout, shape = "" if conversion is None else conversion.name, reference.shape
        memory_format = torch.channels_last if layout == CHANNELS_LAST else torch.contiguous_format
        with _allocating(reference, self._device):
            if layout == COLUMNS:
                k, n = shape
                whole = torch.empty((padded(n, dtype), k), dtype=dtype, device=self._device)
                return whole.T[:, :n]
            if len(shape) == 2:  # padded rows: transposed, they are aligned columns
                n, k = shape
                return torch.empty((padded(n, dtype), k), dtype=dtype, device=self._device)[:n]
            return torch.empty(shape, dtype=dtype, device=self._device, memory_format=memory_format)

    def load(self, reference: WeightReference, destination: Tensor) -> None:
        self.load_many([(reference, destination)])

    def load_many(
        self, pairs: Sequence[tuple[WeightReference, Tensor]], report: Report = silent
    ) -> None:
        jobs = [_job(reference, tensor) for reference, tensor in pairs]
        targets = [target for job in jobs for target in job]
        references = [target.reference for target in targets]
        with ChunkedReader(references, _capacity(references), _groups(jobs)) as reading:
            if not reading.chunks:
                return
            # Every reader has a buffer, and the device copies from the spare ones meanwhile.
            n_threads = min(self._n_threads, len(reading.chunks))
            longest = max(chunk.size_bytes for chunk in reading.chunks)
            n_buffers = min(n_threads + N_SPARE, len(reading.chunks))
            ring = Ring(self._device, n_buffers, -(-longest // PAGE) * PAGE)
            try:
                _Upload(reading.chunks, targets, ring).run(n_threads, report)
                reading.check()
            finally:
                ring.close()


def _capacity(references: Sequence[WeightReference]) -> int:
    """Return the size of a buffer: pinning takes time, so small models get small buffers."""
    per_chunk = sum(reference.length for reference in references) // _MIN_CHUNKS
    return min(max(per_chunk // PAGE * PAGE, _MIN_BUFFER_BYTES), BUFFER_BYTES)


@contextlib.contextmanager
def _allocating(reference: WeightReference, device: torch.device) -> Iterator[None]:
    """Convert allocation failures to an error with the weight and the missing bytes."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, SardonyxError):
            raise
        needed, free = reference.size_bytes, _free_bytes(device)
        details = ""
        if free is not None:
            missing = needed - free
            state = f"{format_bytes(missing)} missing" if missing > 0 else "but fragmented"
            details = f": {format_bytes(free)} are free, {state}"
        raise EPFail(
            f"{format_bytes(needed)} for the weight {reference.name!r} do not fit on "
            f"{device}{details}",
            weight=reference.name,
            hint="use a smaller model or type, or set gpu_mem_limit: what exceeds it stays on "
            "the CPU",
        ) from None


def _free_bytes(device: torch.device) -> int | None:
    """Return the memory that can be allocated on a device; None if unknown."""
    if device.type != "cuda":
        return None
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


class _Target:
    """The destination of a weight's bytes on the device.

    It is the memory of `tensor` itself; or, with `on_complete`, temporary memory that is passed to
    `on_complete` when all bytes have arrived.
    """

    def __init__(
        self,
        reference: WeightReference,
        tensor: Tensor,
        on_complete: Callable[[Tensor], None] | None,
    ) -> None:
        self.reference = reference
        self._on_complete = on_complete
        self._device = tensor.device
        self._left = reference.length
        self._raw = tensor.view(-1).view(torch.uint8) if on_complete is None else None

    def copy(self, part: WeightRange, buffer: Tensor) -> None:
        """Copy a part from a buffer; after the last part, finish the weight."""
        if self._raw is None:
            with _allocating(self.reference, self._device):
                length = self.reference.length
                self._raw = torch.empty(length, dtype=torch.uint8, device=self._device)
        # Asynchronous: the ring does not reuse the buffer before the copy has ended.
        source = buffer[part.chunk_offset : part.chunk_offset + part.size_bytes]
        destination = self._raw[part.weight_offset : part.weight_offset + part.size_bytes]
        destination.copy_(source, non_blocking=True)
        self._left -= part.size_bytes
        if not self._left:
            raw, self._raw = self._raw, None
            self._finish(raw)

    def _finish(self, raw: Tensor) -> None:
        const = self.reference.const
        if const.dtype is BOOL:
            raw.ne_(0)  # any nonzero byte in a file is true
        if self._on_complete is None:
            return
        if const.dtype.bits >= 8:
            raw = raw.view(storage_type(const.dtype)).reshape(const.shape)
        elif not self.reference.is_packed:
            raw = unpacked_elements(raw, const.dtype, const.count).reshape(const.shape)
        self._on_complete(raw)


def _job(reference: WeightReference, tensor: Tensor) -> list[_Target]:
    """Return the copy targets of a weight: its own bytes, or the inputs of its recipe."""
    conversion = reference.conversion

    def finish(loaded: Tensor) -> None:
        tensor.copy_(loaded if conversion is None else conversion.convert(loaded))

    recipe = None if reference.is_packed else device_recipe(reference.const)
    if recipe is None:
        is_unpacked = reference.const.dtype.bits < 8 and not reference.is_packed
        is_plain = conversion is None and not is_unpacked
        return [_Target(reference, tensor, None if is_plain else finish)]
    leaves: dict[Const, Tensor] = {}

    def receive(leaf: Const, arrived: Tensor) -> None:
        leaves[leaf] = arrived
        if len(leaves) == len(recipe.leaves):
            finish(recipe.evaluate(leaves, tensor.device))
            leaves.clear()

    # A recipe of small constants only has nothing to load.
    if not recipe.leaves:
        finish(recipe.evaluate(leaves, tensor.device))
    name = reference.name
    return [
        _Target(WeightReference(name, leaf), tensor, partial(receive, leaf))
        for leaf in recipe.leaves
    ]


def _groups(jobs: Sequence[Sequence[_Target]]) -> list[list[int]]:
    """Return target numbers in reading order: plain weights first, then inputs of recipes.

    The latter are on the device together with the result, so they come in groups of bounded size.
    """
    plain: list[int] = []
    groups: list[list[int]] = [[]]
    number, left_bytes = 0, _GROUP_BYTES
    for job in jobs:
        numbers = range(number, number + len(job))
        number += len(job)
        if len(job) == 1:
            plain += numbers
            continue
        groups[-1] += numbers
        left_bytes -= sum(target.reference.length for target in job)
        if left_bytes < 0:
            groups.append([])
            left_bytes = _GROUP_BYTES
    return [plain, *groups]


class _Upload:
    """Reader threads that fill buffers, and the calling thread that submits copies from them."""

    def __init__(
        self, chunks: Sequence[FileChunk | MemoryChunk], targets: list[_Target], ring: Ring
    ) -> None:
        self._n_chunks = len(chunks)
        self._chunks = iter(chunks)
        self._targets = targets
        self._ring = ring
        self._lock = Lock()  # guards `_chunks`, from which the readers take
        self._read: SimpleQueue[tuple[FileChunk | MemoryChunk, Buffer] | BaseException]
        self._read = SimpleQueue()

    def run(self, n_threads: int, report: Report) -> None:
        """Upload all chunks; raise the errors of any thread, and of `report` (cancellation)."""
        readers = [threading.Thread(target=self._work) for _ in range(n_threads)]
        for reader in readers:
            reader.start()
        try:
            with self._ring.on_stream():
                self._copy_all(report)
        finally:
            # After an error, readers find no more chunks, and those that wait are woken.
            self._chunks = iter(())
            self._ring.stop(n_threads)
            for reader in readers:
                reader.join()

    def _work(self) -> None:
        try:
            while (buffer := self._ring.take()) is not None and (chunk := self._next()) is not None:
                chunk.read(buffer.memory.data)
                self._ring.pin(buffer)
                self._read.put((chunk, buffer))
        except BaseException as error:  # re-raised in the thread that waits
            self._read.put(error)

    def _next(self) -> FileChunk | MemoryChunk | None:
        with self._lock:
            return next(self._chunks, None)

    def _copy_all(self, report: Report) -> None:
        total, done = sum(t.reference.length for t in self._targets), 0
        left, reported = self._n_chunks, time.monotonic()
        while left:
            item = self._next_read()
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                chunk, buffer = item
                for part in chunk.ranges:
                    self._copy(part, buffer)
                    done += part.size_bytes
                self._ring.give_back(buffer)
                left -= 1
            if time.monotonic() > reported + _REPORT_SECONDS or not left:
                report(done, total)
                reported = time.monotonic()

    def _next_read(self) -> tuple[FileChunk | MemoryChunk, Buffer] | BaseException | None:
        """Return the next chunk that was read; None after a timeout, to report progress."""
        try:
            return self._read.get(timeout=_REPORT_SECONDS)
        except Empty:
            return None

    def _copy(self, part: WeightRange, buffer: Buffer) -> None:
        target = self._targets[part.weight]
        try:
            target.copy(part, buffer.tensor)
        except (RuntimeError, *UNEXPECTED_ERRORS) as error:
            if isinstance(error, SardonyxError):
                raise
            name = target.reference.name
            raise EPFail(f"copying {name!r} to the device failed: {error}", weight=name) from None
