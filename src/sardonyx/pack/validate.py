"""Validates the bytes of a pack: its blobs, and the model's weights that it was written for.

Every byte is verified by checksums, once: files whose stamps (inode, size, times) are those in the
pack, or in the verification cache, are not read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.records import mutable
from sardonyx.graph.const import Source, Stamp
from sardonyx.load.source import is_as_opened, settled
from sardonyx.pack import identity
from sardonyx.pack.checksums import BlockDigest, FileRange, first_mismatch
from sardonyx.pack.codec import read_int, read_list, read_str, require
from sardonyx.pack.errors import InvalidPack, PackMismatch
from sardonyx.pack.file import PackFile
from sardonyx.pack.lookup import FULL, NONE, PackOptions
from sardonyx.pack.verification_cache import DIFFERENT, EQUAL, VerificationCache, cache_key

_CHECK_OPTION: Final = "sardonyx.pack_check"


@mutable
class _Verification:
    """Blocks to verify, the cache key of the outcome, and the error of a mismatch."""

    blocks: list[BlockDigest]
    key: str | None  # None: the outcome cannot be remembered
    error: Callable[[FileRange | None], InvalidPack]
    sample: Callable[[], None] = lambda: None  # verifies a small part, and raises on a mismatch

    @property
    def sources(self) -> list[Source]:
        """The files of the blocks."""
        return list({id(b.range.source): b.range.source for b in self.blocks}.values())

    @property
    def size_bytes(self) -> int:
        """The bytes of the blocks."""
        return sum(b.range.length for b in self.blocks)


def validate_bytes(
    file: PackFile, files: Sequence[Source], options: PackOptions, check: Callable[[], None]
) -> None:
    """Raise InvalidPack unless the pack and the model's files have the bytes that were packed.

    `check` is called in between and may raise to cancel.
    """
    cache = VerificationCache(options.cache)
    pending = [
        v
        for v in (_weights(file, files, options), _blobs(file))
        if v.blocks and (options.verify or not _was_verified(v, cache))
    ]
    if not pending:
        return
    is_writable = cache.folder() is not None
    if not is_writable and options.check is None and not options.verify:
        _warn_uncached(file, pending)
    selected = [v for v in pending if _is_full(v, options, is_writable)]
    if selected:
        _verify(file, selected, cache, check)


def _is_full(verification: _Verification, options: PackOptions, is_writable: bool) -> bool:
    """Whether all bytes are to be verified; verify the samples first.

    A user may ask for less (`sardonyx.pack_check`) where the outcome cannot be remembered, and so
    every load would read everything.
    """
    is_remembered = is_writable and verification.key is not None
    extent = FULL if options.verify or is_remembered else options.check or FULL
    if extent != NONE:
        verification.sample()
    return extent == FULL


def remember_written(path: str, file_id: str, cache: str | None) -> None:
    """Record that a pack which this process wrote has the bytes of its checksums."""
    stamp = settled(path)  # waits until the clock of the file system tells later writes apart
    if stamp is not None:
        VerificationCache(cache).remember(cache_key("pack", file_id, [stamp]), EQUAL)


def _was_verified(verification: _Verification, cache: VerificationCache) -> bool:
    """Whether the bytes were verified before; raise if they were found to differ."""
    outcome = cache.recall(verification.key)
    if outcome == DIFFERENT:
        raise verification.error(None)
    return outcome == EQUAL


def _warn_uncached(file: PackFile, pending: Sequence[_Verification]) -> None:
    from sardonyx.base.units import format_bytes

    logger.warning(
        "every load compares %s with the pack %s, since no folder can be written to that would "
        "remember it; name one by the session config entry sardonyx.pack_cache, or set %s to "
        "sampled or none",
        format_bytes(sum(v.size_bytes for v in pending)), file.source.name, _CHECK_OPTION,
    )  # fmt: skip


def _weights(file: PackFile, files: Sequence[Source], options: PackOptions) -> _Verification:
    """Return the verification of weights in files whose stamps are not those in the pack."""
    stamps = [_stamp(read_list(item, 3)[2]) for item in read_list(file.document["files"])]
    is_unchanged = [
        not options.verify and stamp is not None and stamp == source.stamp
        for stamp, source in zip(stamps, files, strict=True)
    ]
    blocks = []
    last, end = -1, 0
    for item in read_list(file.document["weights"]):
        at, start, length, digest = read_list(item, 4)
        source = files[read_int(at, 0, len(files))]
        read_int(length, 1, source.data.nbytes + 1)
        read_int(start, 0, source.data.nbytes + 1 - length)
        # Ascending and disjoint, so that a hostile list cannot have a file read many times.
        require((at, start) >= (last, end), f"weights at {start} are listed out of order")
        last, end = at, start + length
        if not is_unchanged[at]:
            blocks.append(BlockDigest(FileRange(source, start, length), read_str(digest)))

    def error(range_: FileRange | None) -> InvalidPack:
        if range_ is None:
            return PackMismatch("a file has other weights than it was made of, as was found before")
        return identity.weights_mismatch(range_.source, range_.start)

    def sample() -> None:
        identity.check_samples(file.document["samples"], files)

    key = cache_key("weights", file.id_, [s.stamp for s in files])
    return _Verification(blocks, key, error, sample)


def _blobs(file: PackFile) -> _Verification:
    def error(range_: FileRange | None) -> InvalidPack:
        where = "it" if range_ is None else f"the block at {range_.start}"
        return InvalidPack(f"{where} has other bytes than were written")

    return _Verification(file.blocks, cache_key("pack", file.id_, [file.source.stamp]), error)


def _stamp(item: Any) -> Stamp | None:
    if item is None:
        return None
    device, inode, size_bytes, *times = (
        read_int(n, -(1 << 63), 1 << 64) for n in read_list(item, 5)
    )
    return device, inode, size_bytes, times[0], times[1]


def _verify(
    file: PackFile,
    pending: Sequence[_Verification],
    cache: VerificationCache,
    check: Callable[[], None],
) -> None:
    """Verify all blocks and record the outcomes; raise on a mismatch."""
    from sardonyx.base.progress import track
    from sardonyx.base.units import format_bytes

    done, total = 0, sum(v.size_bytes for v in pending)
    logger.info("%s: %s are compared", file.source.name, format_bytes(total))

    def count(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress.update(done, total)
        check()

    # Weights first: a changed model is more frequent than a damaged pack.
    with track("comparing weights with their pack") as progress:
        for verification in pending:
            mismatch = first_mismatch(verification.blocks, count)
            _remember(verification, DIFFERENT if mismatch else EQUAL, cache)
            if mismatch is not None:
                raise verification.error(mismatch)


def _remember(verification: _Verification, outcome: str, cache: VerificationCache) -> None:
    """Record an outcome, if the files are still those that were opened."""
    states = [(source, is_as_opened(source)) for source in verification.sources]
    for source, is_same in states:
        if is_same is False:
            raise PackMismatch(f"{source.name} changed while it was compared")
    # None: the path has another file now. What was read is intact, but the stamps in the key are
    # not those of the path.
    if all(is_same for _, is_same in states):
        cache.remember(verification.key, outcome)
