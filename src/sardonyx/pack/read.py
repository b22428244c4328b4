"""Reads a pack: makes sure that it belongs to a model and is sound, then maps what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.shared_store import Array
from sardonyx.errors import FAULTS
from sardonyx.graph.const import Const
from sardonyx.load.source import ModelBytes, read_ahead
from sardonyx.pack import identity
from sardonyx.pack.codec import items, number, text
from sardonyx.pack.constants import ConstReader, form
from sardonyx.pack.errors import Broken, Other
from sardonyx.pack.file import Blob, PackFile
from sardonyx.pack.graph import GraphReader
from sardonyx.pack.lookup import Found, PackOptions
from sardonyx.pack.validate import make_sure
from sardonyx.weights.layouts import Forms, Want

_LEVELS: Final = ("level", "disabled")  # options that a pack of an optimized model serves all of


def read(
    path: str,
    given: ModelBytes,
    settings: dict[str, Any],
    options: PackOptions,
    check: Callable[[], None] = lambda: None,
) -> Found:
    """The model out of a pack; `Broken` says why it cannot be used."""
    file = PackFile(path, given.files.copies)
    index = file.document
    try:
        _check(index, given, settings)
        files = identity.open_files(index["files"], given)
        make_sure(file, files, options, check)
        consts = ConstReader(file, files).table(index["constants"])
        forms = _forms(file, index["forms"], consts)
    except KeyError as error:
        raise Broken(f"its index lacks {error}") from None
    except (*FAULTS, AttributeError, RecursionError, MemoryError) as error:
        raise Broken(f"its index: {type(error).__name__}: {error}") from None
    read_ahead(file.source)
    model = GraphReader(file.graph(), consts).model(given.origin)
    return Found(model, Forms(_Ready(file, forms).find), index["standalone"] is True)


def _check(index: dict[str, Any], given: ModelBytes, settings: dict[str, Any]) -> None:
    if index["model"] != identity.digest(given):
        raise Other("it was made of another model")
    if index["standalone"] is not True:
        ignored = _LEVELS if index["any_level"] is True else ()
        identity.differences(index["settings"], settings, ignored)
        return
    try:  # its graph is all there is: other options cannot be had
        identity.differences(index["settings"], settings, ("version",))
    except Other as error:
        logger.warning("%s holds its graph as it was packed: %s", given.source.name, error)
    identity.differences(
        {"version": index["settings"].get("version")}, {"version": settings["version"]}
    )


def _forms(file: PackFile, listed: Any, consts: list[Const]) -> dict[tuple[Any, ...], Blob]:
    found: dict[tuple[Any, ...], Blob] = {}
    for item in items(listed):
        at, row, version, ints, blob = items(item, 5)
        const = consts[number(at, 0, len(consts))]
        if version != identity.layout(text(row)):
            raise Other(f"it has {row} of version {version}, and {identity.layout(row)} is used")
        numbers = tuple(number(i, -(1 << 62)) for i in items(ints))
        found[const, row, numbers] = file.blob(blob)
    return found


class _Ready:
    """The packed forms of a pack, as views into its mapping."""

    def __init__(self, file: PackFile, forms: dict[tuple[Any, ...], Blob]) -> None:
        self._file = file
        self._forms = forms

    def find(self, want: Want) -> Array | None:
        """The form, if the pack has it in the size that lowering asks for."""
        blob = self._forms.get((want.const, want.row, want.ints))
        if blob is None:
            return None
        if blob.length != want.size_bytes:
            logger.warning(
                "%s has %d bytes of a weight packed by %s, and %d are wanted: it is packed again",
                self._file.source.name, blob.length, want.row, want.size_bytes,
            )  # fmt: skip
            return None
        return form(self._file, blob)
