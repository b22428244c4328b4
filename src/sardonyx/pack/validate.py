"""Whether the bytes behind a pack are those that it was made of, and its own those written.

Files with the stamps that the pack recorded, or that were compared before, are taken as they are.
Others are compared once, every byte, and the outcome is remembered under their stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.records import mutable
from sardonyx.graph.const import Source, Stamp
from sardonyx.load.source import is_as_opened, settled
from sardonyx.pack import identity
from sardonyx.pack.checksums import Block, Place, first_other
from sardonyx.pack.codec import items, need, number, text
from sardonyx.pack.errors import Broken, Other
from sardonyx.pack.file import PackFile
from sardonyx.pack.lookup import FULL, NONE, PackOptions
from sardonyx.pack.verification_cache import EQUAL, OTHER, Outcomes, key_of

_KEY: Final = "sardonyx.pack_check"


@mutable
class _Doubt:
    """Bytes to be compared, under what the outcome is remembered, and what it is if they differ."""

    blocks: list[Block]
    key: str | None
    other: Callable[[Place | None], Broken]
    sample: Callable[[], None] = lambda: None  # compares little, and raises if that differs

    @property
    def sources(self) -> list[Source]:
        """The files that they lie in."""
        return list({id(b.place.source): b.place.source for b in self.blocks}.values())


def make_sure(
    file: PackFile, files: Sequence[Source], options: PackOptions, check: Callable[[], None]
) -> None:
    """Raises unless a pack and the model's files may be used, or `check` ends the load."""
    known = Outcomes(options.cache)
    doubts = [_weights(file, files, options), _blobs(file)]
    doubts = [d for d in doubts if d.blocks and (options.verify or not _is_known(d, known))]
    if not doubts:
        return
    folder = known.folder()
    if folder is None and options.check is None and not options.verify:
        _warn(file, doubts)
    compared = []
    for doubt in doubts:
        is_remembered = folder is not None and doubt.key is not None
        how = FULL if options.verify or is_remembered else options.check or FULL
        if how != NONE:
            doubt.sample()  # first: most retrained models differ there
        if how == FULL:
            compared.append(doubt)
    if compared:
        _compare(file, compared, known, check)


def remember_written(path: str, file_id: str, cache: str | None) -> None:
    """A pack that this process wrote has the bytes that it was to have."""
    stamp = settled(path)
    if stamp is not None:
        Outcomes(cache).remember(key_of("pack", file_id, [stamp]), EQUAL)


def _is_known(doubt: _Doubt, known: Outcomes) -> bool:
    """Whether bytes were compared before, and were equal."""
    said = known.recall(doubt.key)
    if said == OTHER:
        raise doubt.other(None)
    return said == EQUAL


def _warn(file: PackFile, doubts: Sequence[_Doubt]) -> None:
    from sardonyx.base.units import format_bytes

    logger.warning(
        "every load compares %s with the pack %s, since no folder can be written to that would "
        "remember it; name one by the session config entry sardonyx.pack_cache, or set %s to "
        "sampled or none",
        format_bytes(_total(doubts)), file.source.name, _KEY,
    )  # fmt: skip


def _total(doubts: Sequence[_Doubt]) -> int:
    return sum(b.place.length for d in doubts for b in d.blocks)


def _weights(file: PackFile, files: Sequence[Source], options: PackOptions) -> _Doubt:
    """Weights in files whose stamps are not those that the pack was made of."""
    hints = [_stamp(items(item, 3)[2]) for item in items(file.document["files"])]
    is_known = [
        not options.verify and hint is not None and hint == source.stamp
        for hint, source in zip(hints, files, strict=True)
    ]
    blocks = []
    last, end = -1, 0
    for item in items(file.document["weights"]):
        at, start, length, sum_ = items(item, 4)
        source = files[number(at, 0, len(files))]
        number(length, 1, source.data.nbytes + 1)
        number(start, 0, source.data.nbytes + 1 - length)
        need((at, start) >= (last, end), f"weights at {start} are listed out of order")
        last, end = at, start + length
        if not is_known[at]:
            blocks.append(Block(Place(source, start, length), text(sum_)))

    def other(place: Place | None) -> Broken:
        if place is None:
            return Other("a file has other weights than it was made of, as was found before")
        return identity.other_weights(place.source, place.start)

    def sample() -> None:
        identity.check_samples(file.document["samples"], files)

    return _Doubt(blocks, key_of("weights", file.id_, [s.stamp for s in files]), other, sample)


def _blobs(file: PackFile) -> _Doubt:
    def other(place: Place | None) -> Broken:
        where = "it" if place is None else f"the block at {place.start}"
        return Broken(f"{where} has other bytes than were written")

    return _Doubt(file.blocks, key_of("pack", file.id_, [file.source.stamp]), other)


def _stamp(item: Any) -> Stamp | None:
    if item is None:
        return None
    device, inode, size_bytes, *times = (number(n, -(1 << 63), 1 << 64) for n in items(item, 5))
    return device, inode, size_bytes, times[0], times[1]


def _compare(
    file: PackFile, doubts: Sequence[_Doubt], known: Outcomes, check: Callable[[], None]
) -> None:
    """Reads all of it, and remembers what came of it."""
    from sardonyx.base.progress import track
    from sardonyx.base.units import format_bytes

    done, total = 0, _total(doubts)
    logger.info("%s: %s are compared", file.source.name, format_bytes(total))

    def count(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress.update(done, total)
        check()

    with track("comparing weights with their pack") as progress:
        for doubt in doubts:
            place = first_other(doubt.blocks, count)
            _remember(doubt, OTHER if place else EQUAL, known)
            if place is not None:
                raise doubt.other(place)


def _remember(doubt: _Doubt, outcome: str, known: Outcomes) -> None:
    """Keeps an outcome, if the files are still those that were opened."""
    states = [(source, is_as_opened(source)) for source in doubt.sources]
    for source, state in states:
        if state is False:
            raise Other(f"{source.name} changed while it was compared")
    if all(state for _, state in states):  # else they have gone from their paths, unchanged
        known.remember(doubt.key, outcome)
