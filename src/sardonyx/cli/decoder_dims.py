"""Sizes of a decoder's inputs that follow from each other: total = past + sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.base.records import frozen
from sardonyx.cli.arguments import UsageError
from sardonyx.load.model import Declared


@frozen
class DecoderDims:
    """Names of dims: cached positions, new ones, and both together, as masks have them."""

    past: str
    sequence: str
    total: str


def complete(inputs: Sequence[Declared], sizes: dict[str, int]) -> None:
    """Add the sizes that follow from given ones; new and cached positions are 1 by default."""
    dims = decoder_dims(inputs)
    if dims is None:
        return
    past, sequence, total = (sizes.get(name) for name in (dims.past, dims.sequence, dims.total))
    if total is None:
        total = (1 if past is None else past) + (1 if sequence is None else sequence)
    if sequence is None:
        sequence = 1 if past is None else total - past
    if past is None:
        past = total - sequence
    if min(past, sequence) < 0 or past + sequence != total:
        raise UsageError(
            f"{dims.total} is {total}, but {dims.past} + {dims.sequence} is {past} + {sequence}: "
            "leave one of them out"
        )
    sizes.update({dims.past: past, dims.sequence: sequence, dims.total: total})


def decoder_dims(inputs: Sequence[Declared]) -> DecoderDims | None:
    """Return the dims of a decoder whose mask has a name of its own for its length, else None."""
    past = {_named(i, slice(1, None)) for i in inputs if i.name.startswith("past")}
    sequence = {_named(i, slice(1, 2)) for i in inputs if _is_text(i.name)}
    masks = [i for i in inputs if "mask" in i.name]
    known = {d for i in inputs if i not in masks for d in i.dims or ()}
    total = {_named(i, slice(-1, None)) for i in masks} - known
    if not all(len(names) == 1 and None not in names for names in (past, sequence, total)):
        return None
    dims = DecoderDims(*(names.pop() or "" for names in (past, sequence, total)))
    return dims if len({dims.past, dims.sequence, dims.total}) == 3 else None


def _is_text(name: str) -> bool:
    return "input_ids" in name or "embeds" in name


def _named(declared: Declared, axes: slice) -> str | None:
    """Return the only plain name among some dims of an input."""
    names = set(_plain(declared, axes))
    return names.pop() if len(names) == 1 else None


def _plain(declared: Declared, axes: slice) -> Iterator[str]:
    dims = () if declared.dims is None else declared.dims[axes]
    return (d for d in dims if isinstance(d, str) and d.isidentifier())
