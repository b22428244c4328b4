"""Writes packs, weight by weight, so that memory is bounded by the largest weight."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sardonyx.base.atomic_file import writing
from sardonyx.base.records import mutable
from sardonyx.errors import Fail
from sardonyx.graph.const import Const, Recipe, Source, SourceConst
from sardonyx.graph.dtype import STRING
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, is_as_opened
from sardonyx.pack import identity
from sardonyx.pack.checksums import FileRange, compute_digests, split_blocks
from sardonyx.pack.codec import Unwritable
from sardonyx.pack.constants import (
    can_write,
    is_in_place,
    stored,
    write_recipe,
    write_source_const,
    write_texts,
)
from sardonyx.pack.errors import InvalidPack
from sardonyx.pack.file import PackWriter
from sardonyx.pack.graph import ConstantTable, GraphReader, PackGraphWriter
from sardonyx.pack.validate import remember_written
from sardonyx.weights.layouts import STORED, WeightLayout, prepack

Report = Callable[[int, int], None]  # (bytes done, bytes in all)


@mutable
class SerializedModel:
    """A lowered model as JSON, and as a load will read it back."""

    document: dict[str, Any]
    model: Model
    table: ConstantTable


def serialize(model: Model) -> SerializedModel:
    """Serialize a lowered model and read it back: what the format cannot express fails here."""
    writer = PackGraphWriter()
    try:
        document = writer.model(model)
        copy = json.loads(json.dumps(document, allow_nan=False))
        read_back = GraphReader(copy, writer.table.consts).model(model.origin)
    except (Unwritable, InvalidPack, ValueError) as error:
        raise Fail(f"the model cannot be packed: {error}") from None
    return SerializedModel(document, read_back, writer.table)


@mutable
class PackContents:
    """What a pack has: the kind of each constant's entry, and the packed layouts."""

    kinds: list[str]  # see `constants`; "": the constant is not written
    layouts: dict[int, list[WeightLayout]]  # by constant
    consts: list[Const]

    @property
    def size_bytes(self) -> int:
        """The bytes of all blobs."""
        blobs = sum(
            stored_bytes(c) for c, k in zip(self.consts, self.kinds, strict=True) if k == "blob"
        )
        return blobs + sum(w.size_bytes for layouts in self.layouts.values() for w in layouts)

    def duplicates(self) -> list[tuple[Const, int]]:
        """Return weights with several layouts, and the bytes of all layouts but the largest."""
        duplicates = []
        for number, layouts in self.layouts.items():
            sizes = [w.size_bytes for w in layouts]
            if self.kinds[number] == "blob":
                sizes.append(stored_bytes(self.consts[number]))
            if len(sizes) > 1:
                duplicates.append((self.consts[number], sum(sizes) - max(sizes)))
        return duplicates


def select_contents(
    serialized: SerializedModel, layouts: Iterable[WeightLayout], standalone: bool = False
) -> PackContents:
    """Choose what a pack has, of the layouts that a run reads.

    Layouts that no file of the model has become blobs. What kernels read from the files in place
    stays there, unless the pack is standalone.
    """
    table = serialized.table
    # Constants that something reads unpacked, and packed layouts by constant.
    unpacked = {n for n, is_plain in table.used.items() if is_plain}
    packed: dict[int, dict[tuple[Any, ...], WeightLayout]] = {}
    for layout in layouts:
        number = table.index(layout.const)
        # Kernels for stored bytes accept any alignment: the file serves as it is.
        if layout.kind == STORED and not standalone and isinstance(layout.const, SourceConst):
            continue
        if not layout.is_packed:
            unpacked.add(number)
        else:
            packed.setdefault(number, {})[layout.kind, layout.ints] = layout
    kinds = _kinds(table, unpacked, standalone)
    return PackContents(kinds, {n: list(p.values()) for n, p in packed.items()}, table.consts)


def _kinds(table: ConstantTable, unpacked: set[int], standalone: bool) -> list[str]:
    """Return the kinds of all entries; a worklist visits the inputs of recipes that are written."""
    kinds = [""] * len(table.consts)
    waiting = list(table.used)
    while waiting:
        number = waiting.pop()
        const = table.consts[number]
        if not kinds[number]:
            kinds[number] = _kind(const, number in unpacked, standalone)
            if kinds[number] == "recipe" and isinstance(const, Recipe):
                waiting.extend(table.index(c) for c in const.inputs if c is not None)
    return kinds


def _kind(const: Const, is_unpacked: bool, standalone: bool) -> str:
    if const.dtype is STRING:
        return "texts"
    if const.is_small:  # copied from the pack without a look at the model's files
        return "blob"
    if standalone:
        return "blob" if is_unpacked else "elsewhere"
    if isinstance(const, SourceConst):
        return "blob" if is_unpacked and not is_in_place(const) else "file"
    # A recipe that only packing reads need not be evaluated when the pack is loaded.
    if isinstance(const, Recipe) and not is_unpacked and can_write(const):
        return "recipe"
    return "blob"


class _Progress:
    """Reports the bytes that are done."""

    def __init__(self, total: int, report: Report) -> None:
        self._done, self._total, self._report = 0, total, report

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._report(self._done, self._total)


@mutable
class PackMetadata:
    """The model and the options that a pack is written for."""

    model: ModelBytes
    settings: dict[str, Any]
    any_level: bool = False  # valid for every optimization level
    standalone: bool = False
    cache: str | None = None  # folder of the verification cache


def write(
    path: str,
    serialized: SerializedModel,
    contents: PackContents,
    metadata: PackMetadata,
    report: Report,
) -> int:
    """Write a pack atomically; return its size."""
    model = metadata.model
    sources = (model.source, *model.files.sources())
    files = list({id(source): source for source in sources}.values())  # each once, in order
    weights = identity.weight_ranges(model)
    blocks = split_blocks(weights)
    progress = _Progress(contents.size_bytes + sum(b.length for b in blocks), report)
    try:
        with writing(path) as file:
            writer = PackWriter(file)
            index = {
                "model": identity.fingerprint(model),
                "settings": metadata.settings,
                "any_level": metadata.any_level,
                "standalone": metadata.standalone,
                "files": [[_location(s, model), s.data.nbytes, s.stamp] for s in files],
                "samples": identity.samples(weights, files),
                "weights": _block_entries(blocks, files, progress),
                **_write_constants(writer, serialized.table, contents, files, progress),
                "blobs": writer.blobs,
                "blocks": writer.block_digests(),
            }
            _check_unchanged(files)  # after the last read, before the header makes it valid
            size = writer.finish(index, serialized.document)
    except OSError as error:
        raise Fail(
            f"the pack could not be written to {path}: {error.strerror or error}",
            hint="choose a writable folder with enough free space",
        ) from error

    # The first load need not verify what was just written.
    remember_written(path, writer.id_, metadata.cache)
    return size


def _block_entries(
    blocks: Sequence[FileRange], files: Sequence[Source], progress: _Progress
) -> list[Any]:
    """Return [file, start, length, checksum] of each block of weights, ascending."""
    numbers = {id(source): i for i, source in enumerate(files)}
    digests = compute_digests(blocks, progress.add)
    return sorted(
        [numbers[id(b.source)], b.start, b.length, digest]
        for b, digest in zip(blocks, digests, strict=True)
    )


def _check_unchanged(files: Sequence[Source]) -> None:
    """Raise if a file changed: the pack would have stamps of one state and bytes of another."""
    for source in files:
        if is_as_opened(source) is False:
            raise Fail(f"{source.name} changed while it was packed", hint="pack it again")


def _location(source: Source, model: ModelBytes) -> str:
    return "" if source is model.source else model.files.location(source)


def _write_constants(
    writer: PackWriter,
    table: ConstantTable,
    contents: PackContents,
    files: Sequence[Source],
    progress: _Progress,
) -> dict[str, Any]:
    """Write the blobs; return the entries of constants and of packed layouts."""
    constants: list[Any] = []
    forms: list[Any] = []
    for number, (const, kind) in enumerate(zip(contents.consts, contents.kinds, strict=True)):
        constants.append(_entry(writer, table, const, kind, files))
        progress.add(stored_bytes(const) if kind == "blob" else 0)
        for layout in contents.layouts.get(number, ()):
            # Packed now and dropped immediately: memory holds one layout at a time.
            at = writer.blob(layout.size_bytes, [prepack(layout).data])
            version = identity.layout_version(layout.kind)
            forms.append([number, layout.kind, version, list(layout.ints), at])
            progress.add(layout.size_bytes)
        if not const.is_small:
            _drop_pages(const)
    return {"constants": constants, "forms": forms}


def _entry(
    writer: PackWriter, table: ConstantTable, const: Const, kind: str, files: Sequence[Source]
) -> list[Any]:
    # The first word of an entry is its kind: see `constants`.
    type_ = [const.dtype.name, list(const.shape)]
    if kind == "blob":
        return ["blob", *type_, writer.blob(stored_bytes(const), stored(const))]
    if const.dtype is STRING:
        return write_texts(const)
    if kind == "file" and isinstance(const, SourceConst):
        return write_source_const(const, files)
    if kind == "recipe" and isinstance(const, Recipe):
        return write_recipe(const, table.index)
    return ["elsewhere", *type_]


def stored_bytes(const: Const) -> int:
    """Return the bytes of a constant in ONNX's encoding."""
    return const.dtype.packed_bytes(const.count)


def _drop_pages(const: Const) -> None:
    """Drop the pages of a weight and of a recipe's inputs, in mappings of our own."""
    waiting: list[Const | None] = [const]
    while waiting:
        source = waiting.pop()
        if isinstance(source, Recipe):
            waiting.extend(source.inputs)
        elif isinstance(source, SourceConst):
            source.source.advise(mmap.MADV_DONTNEED, source.offset, source.length)
