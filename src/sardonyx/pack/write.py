"""Makes packs: weight by weight, so that memory stays bounded by the largest one."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import mutable
from sardonyx.errors import Fail
from sardonyx.graph.const import Const, Recipe, Ref, Source
from sardonyx.graph.dtype import STRING
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, is_as_opened
from sardonyx.pack import identity
from sardonyx.pack.checksums import Place, cut, sums
from sardonyx.pack.codec import Unwritable
from sardonyx.pack.constants import (
    can_write,
    is_in_place,
    stored,
    written_recipe,
    written_ref,
    written_texts,
)
from sardonyx.pack.errors import Broken
from sardonyx.pack.file import Writer
from sardonyx.pack.graph import GraphReader, GraphWriter, Table
from sardonyx.pack.validate import remember_written
from sardonyx.weights.layouts import STORED, Want, packed

Report = Callable[[int, int], None]  # bytes done, of how many


@mutable
class Parcel:
    """A lowered model on its way into a pack: as JSON, and as a load will read that."""

    document: dict[str, Any]
    model: Model
    table: Table


def parcel(model: Model) -> Parcel:
    """A lowered model, written and read back: whatever a pack cannot hold shows here."""
    writer = GraphWriter()
    try:
        document = writer.model(model)
        read = json.loads(json.dumps(document, allow_nan=False))
        made = GraphReader(read, writer.table.consts).model(model.origin)
    except (Unwritable, Broken, ValueError) as error:
        raise Fail(f"the model cannot be packed: {error}") from None
    return Parcel(document, made, writer.table)


@mutable
class Load:
    """What goes into a pack: the kind of each constant's entry, and the forms that are packed."""

    kinds: list[str]
    forms: dict[int, list[Want]]  # by constant
    consts: list[Const]

    @property
    def size_bytes(self) -> int:
        """Bytes of all blobs."""
        blobs = sum(
            stored_bytes(c) for c, k in zip(self.consts, self.kinds, strict=True) if k == "blob"
        )
        return blobs + sum(w.size_bytes for wants in self.forms.values() for w in wants)

    def doubled(self) -> list[tuple[Const, int]]:
        """Weights that are there in more than one form, and the bytes of all but the largest."""
        found = []
        for at, wants in self.forms.items():
            sizes = [w.size_bytes for w in wants]
            if self.kinds[at] == "blob":
                sizes.append(stored_bytes(self.consts[at]))
            if len(sizes) > 1:
                found.append((self.consts[at], sum(sizes) - max(sizes)))
        return found


def sort(goods: Parcel, wants: Iterable[Want], standalone: bool = False) -> Load:
    """Forms that no file of the model has become blobs; what kernels read there stays there."""
    table = goods.table
    read = {n for n, is_plain in table.used.items() if is_plain}
    forms: dict[int, dict[tuple[Any, ...], Want]] = {}
    for want in wants:
        number = table.number(want.const)
        if want.row == STORED and not standalone and isinstance(want.const, Ref):
            continue
        if not want.is_packed:
            read.add(number)
        else:
            forms.setdefault(number, {})[want.row, want.ints] = want
    kinds = [""] * len(table.consts)
    waiting = list(table.used)
    while waiting:
        number = waiting.pop()
        const = table.consts[number]
        if not kinds[number]:
            kinds[number] = _kind(const, number in read, standalone)
            if kinds[number] == "recipe" and isinstance(const, Recipe):
                waiting.extend(table.number(c) for c in const.inputs if c is not None)
    return Load(kinds, {n: list(f.values()) for n, f in forms.items()}, table.consts)


def _kind(const: Const, is_read: bool, standalone: bool) -> str:
    if const.dtype is STRING:
        return "texts"
    if const.is_small:
        return "blob"
    if standalone:
        return "blob" if is_read else "elsewhere"
    if isinstance(const, Ref):
        return "blob" if is_read and not is_in_place(const) else "file"
    if isinstance(const, Recipe) and not is_read and can_write(const):
        return "recipe"
    return "blob"


class Progress:
    """Counts bytes that are done, and says so."""

    def __init__(self, total: int, report: Report) -> None:
        self._done, self._total, self._report = 0, total, report

    def add(self, size_bytes: int) -> None:
        """So many more are done."""
        self._done += size_bytes
        self._report(self._done, self._total)


@mutable
class Label:
    """What a pack says of the model that it belongs to."""

    given: ModelBytes
    settings: dict[str, Any]
    any_level: bool = False  # serves every level of optimization
    standalone: bool = False
    cache: str | None = None  # a folder that remembers what is known of packs


def write(path: str, goods: Parcel, load: Load, label: Label, report: Report) -> int:
    """Writes a pack, whole or not at all; returns its size."""
    given = label.given
    sources = (given.source, *given.files.sources())
    files = list({id(source): source for source in sources}.values())
    places = identity.weights(given)
    blocks = cut(places)
    progress = Progress(load.size_bytes + sum(b.length for b in blocks), report)
    try:
        with writing(path) as file:
            writer = Writer(file)
            index = {
                "model": identity.digest(given),
                "settings": label.settings,
                "any_level": label.any_level,
                "standalone": label.standalone,
                "files": [[_location(s, given), s.data.nbytes, s.stamp] for s in files],
                "samples": identity.samples(places, files),
                "weights": _summed(blocks, files, progress),
                **_write_constants(writer, goods, load, files, progress),
                "blobs": writer.blobs,
                "blocks": writer.sums(),
            }
            _check_unchanged(files)
            size = writer.finish(index, goods.document)
    except OSError as error:
        raise Fail(
            f"the pack could not be written to {path}: {error.strerror or error}",
            hint="choose a folder that can be written to and has room",
        ) from error

    remember_written(path, writer.id_, label.cache)
    return size


def _summed(blocks: Sequence[Place], files: Sequence[Source], progress: Progress) -> list[Any]:
    """Each block of weights with its digest, in order."""
    numbers = {id(source): i for i, source in enumerate(files)}
    made = zip(blocks, sums(blocks, progress.add), strict=True)
    return sorted([numbers[id(b.source)], b.start, b.length, sum_] for b, sum_ in made)


def _check_unchanged(files: Sequence[Source]) -> None:
    """A pack has the stamps that its files had when they were opened, and the bytes of now."""
    for source in files:
        if is_as_opened(source) is False:
            raise Fail(f"{source.name} changed while it was packed", hint="pack it again")


def _location(source: Source, given: ModelBytes) -> str:
    return "" if source is given.source else given.files.location(source)


def _write_constants(
    writer: Writer, goods: Parcel, load: Load, files: Sequence[Source], progress: Progress
) -> dict[str, Any]:
    """The blobs, and the tables of constants and packed forms that name them."""
    constants: list[Any] = []
    forms: list[Any] = []
    for number, (const, kind) in enumerate(zip(load.consts, load.kinds, strict=True)):
        constants.append(_entry(writer, goods.table, const, kind, files))
        progress.add(stored_bytes(const) if kind == "blob" else 0)
        for want in load.forms.get(number, ()):
            at = writer.blob(want.size_bytes, [packed(want).data])
            forms.append([number, want.row, identity.layout(want.row), list(want.ints), at])
            progress.add(want.size_bytes)
        if not const.is_small:
            _forget(const)
    return {"constants": constants, "forms": forms}


def _entry(
    writer: Writer, table: Table, const: Const, kind: str, files: Sequence[Source]
) -> list[Any]:
    type_ = [const.dtype.name, list(const.shape)]
    if kind == "blob":
        return ["blob", *type_, writer.blob(stored_bytes(const), stored(const))]
    if const.dtype is STRING:
        return written_texts(const)
    if kind == "file" and isinstance(const, Ref):
        return written_ref(const, files)
    if kind == "recipe" and isinstance(const, Recipe):
        return written_recipe(const, table.number)
    return ["elsewhere", *type_]


def stored_bytes(const: Const) -> int:
    """Bytes of a constant in ONNX's form."""
    return const.dtype.packed_bytes(const.count)


def _forget(const: Const) -> None:
    """Lets go of the pages that a weight was read from, in mappings of our own."""
    waiting: list[Const | None] = [const]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Recipe):
            waiting.extend(part.inputs)
        elif isinstance(part, Ref):
            part.source.advise(mmap.MADV_DONTNEED, part.offset, part.length)
