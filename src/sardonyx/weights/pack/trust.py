"""Whether the bytes behind a pack are those that it was made of, and its own those written.

Files with the stamps that the pack recorded, or that were compared before, are taken as they are.
Others are compared once, every byte, and the outcome is remembered under their stamps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sardonyx.cli.term import Progress, size
from sardonyx.frozen import mutable
from sardonyx.load.source import is_as_opened, settled
from sardonyx.log import logger
from sardonyx.weights.const import Source, Stamp
from sardonyx.weights.pack import identity
from sardonyx.weights.pack.codec import items, need, number, text
from sardonyx.weights.pack.errors import Broken, Other
from sardonyx.weights.pack.file import PackFile
from sardonyx.weights.pack.find import FULL, NONE, PackOptions
from sardonyx.weights.pack.known import EQUAL, OTHER, Outcomes, key_of
from sardonyx.weights.pack.sums import Block, Count, Place, first_other

_KEY: Final = "sardonyx.pack_check"


@mutable
class _Doubt:
    """Bytes to be compared, under what the outcome is remembered, and what it is if they differ."""

    blocks: list[Block]
    key: str | None
    other: Callable[[Place | None], Broken]

    @property
    def sources(self) -> list[Source]:
        """The files that they lie in."""
        return list({id(b.place.source): b.place.source for b in self.blocks}.values())


def make_sure(
    file: PackFile, files: Sequence[Source], options: PackOptions, check: Callable[[], None]
) -> None:
    """Raises unless a pack and the model's files may be used, or `check` ends the load."""
    known = Outcomes(options.cache)
    doubts = []
    for doubt in (_weights(file, files, options), _blobs(file)):
        said = None if options.verify else known.recall(doubt.key)
        if said == OTHER:
            raise doubt.other(None)
        if doubt.blocks and said != EQUAL:
            doubts.append(doubt)
    if not doubts:
        return
    how = _how(file, doubts, known, options)
    if how != NONE:
        identity.check_samples(file.document["samples"], files)
    if how == FULL:
        total = sum(b.place.length for d in doubts for b in d.blocks)
        logger.info("%s: %s are compared", file.source.name, size(total))
        with Progress("comparing weights with their pack") as progress:
            _compare(doubts, known, _reporting(progress, total, check))


def remember_written(path: str, file_id: str, cache: str | None) -> None:
    """A pack that this process wrote has the bytes that it was to have."""
    stamp = settled(path)
    if stamp is not None:
        Outcomes(cache).remember(key_of("pack", file_id, [stamp]), EQUAL)


def _how(file: PackFile, doubts: Sequence[_Doubt], known: Outcomes, options: PackOptions) -> str:
    """How much is compared: all of it, unless nothing can be remembered and the user wants less."""
    if options.verify:
        return FULL
    if known.folder() is None:
        if options.check is None:
            logger.warning(
                "every load compares %s with the pack %s, since no folder can be written to that "
                "would remember it; name one by the session config entry sardonyx.pack_cache, or "
                "set %s to sampled or none",
                size(sum(b.place.length for d in doubts for b in d.blocks)), file.source.name, _KEY,
            )  # fmt: skip
        return options.check or FULL
    in_memory = any(d.key is None for d in doubts)
    return options.check or FULL if in_memory else FULL


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

    return _Doubt(blocks, key_of("weights", file.id_, [s.stamp for s in files]), other)


def _blobs(file: PackFile) -> _Doubt:
    def other(place: Place | None) -> Broken:
        where = "it" if place is None else f"the block at {place.start}"
        return Broken(f"{where} has other bytes than were written")

    return _Doubt(file.blocks, key_of("pack", file.id_, [file.source.stamp]), other)


def _stamp(item: Any) -> Stamp | None:
    return (
        None if item is None else Stamp(*(number(n, -(1 << 63), 1 << 64) for n in items(item, 5)))
    )


def _reporting(progress: Progress, total: int, check: Callable[[], None]) -> Count:
    done = 0

    def count(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress.show(done, total)
        check()

    return count


def _compare(doubts: Sequence[_Doubt], known: Outcomes, count: Count) -> None:
    for doubt in doubts:
        place = first_other(doubt.blocks, count)
        states = [is_as_opened(source) for source in doubt.sources]
        for source, state in zip(doubt.sources, states, strict=True):
            if state is False:
                raise Other(f"{source.name} changed while it was compared")
        if all(states):  # else the bytes are right, and their files have gone from their paths
            known.remember(doubt.key, OTHER if place else EQUAL)
        if place is not None:
            raise doubt.other(place)
