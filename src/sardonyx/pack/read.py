"""Reads a pack: checks that it belongs to the model, validates it, and maps its constants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.shared_store import Array
from sardonyx.errors import UNEXPECTED_ERRORS
from sardonyx.graph.const import Const
from sardonyx.load.source import ModelBytes, read_ahead
from sardonyx.pack import identity
from sardonyx.pack.codec import read_int, read_list, read_str
from sardonyx.pack.constants import ConstReader, blob_array
from sardonyx.pack.errors import InvalidPack, PackMismatch
from sardonyx.pack.file import Blob, PackFile
from sardonyx.pack.graph import GraphReader
from sardonyx.pack.lookup import LoweredModel, PackOptions
from sardonyx.pack.validate import validate_bytes
from sardonyx.weights.layouts import LayoutCache, WeightLayout

_ANY_LEVEL: Final = ("level", "disabled")  # options that a pack for any level does not depend on


def read_pack(
    path: str,
    model: ModelBytes,
    settings: dict[str, Any],
    options: PackOptions,
    check: Callable[[], None] = lambda: None,
) -> LoweredModel:
    """Return the model of a pack; raise InvalidPack if it cannot be used.

    Whatever a hostile document makes Python raise becomes InvalidPack too.
    """
    file = PackFile(path, model.files.copies)
    index = file.document
    try:
        _check_identity(index, model, settings)
        files = identity.open_files(index["files"], model)
        validate_bytes(file, files, options, check)
        consts = ConstReader(file, files).table(index["constants"])
        blobs = _packed_blobs(file, index["forms"], consts)
    except KeyError as error:
        raise InvalidPack(f"its index lacks {error}") from None
    except (*UNEXPECTED_ERRORS, AttributeError, RecursionError, MemoryError) as error:
        raise InvalidPack(f"its index: {type(error).__name__}: {error}") from None
    read_ahead(file.source)  # while the graph is inferred
    lowered = GraphReader(file.graph(), consts).model(model.origin)
    layouts = LayoutCache(partial(_find_packed, file, blobs))
    return LoweredModel(lowered, layouts, index["standalone"] is True)


def _check_identity(index: dict[str, Any], model: ModelBytes, settings: dict[str, Any]) -> None:
    """Raise PackMismatch unless the pack was written for this model and these options."""
    if index["model"] != identity.fingerprint(model):
        raise PackMismatch("it was made of another model")
    if index["standalone"] is not True:
        ignored = _ANY_LEVEL if index["any_level"] is True else ()
        identity.check_options(index["settings"], settings, ignored)
        return
    # A standalone model cannot be compiled again with other options: they are ignored, but for
    # the version, whose layouts and ops must be ours.
    try:
        identity.check_options(index["settings"], settings, ("version",))
    except PackMismatch as error:
        logger.warning("%s holds its graph as it was packed: %s", model.source.name, error)
    identity.check_options(
        {"version": index["settings"].get("version")}, {"version": settings["version"]}
    )


def _packed_blobs(file: PackFile, listed: Any, consts: list[Const]) -> dict[tuple[Any, ...], Blob]:
    """Return the blobs of packed layouts, by constant, packing kernel and its arguments."""
    blobs: dict[tuple[Any, ...], Blob] = {}
    for item in read_list(listed):
        at, kernel, version, ints, blob = read_list(item, 5)
        const = consts[read_int(at, 0, len(consts))]
        current = identity.layout_version(read_str(kernel))
        if version != current:
            raise PackMismatch(f"it has {kernel} of version {version}, and {current} is used")
        numbers = tuple(read_int(i, -(1 << 62)) for i in read_list(ints))
        blobs[const, kernel, numbers] = file.blob(blob)
    return blobs


def _find_packed(
    file: PackFile, blobs: dict[tuple[Any, ...], Blob], layout: WeightLayout
) -> Array | None:
    """Return a layout as a view of the mapping, if the pack has it in the size that is requested.

    Kernels rely on the size, so that of a hostile pack must not be used.
    """
    blob = blobs.get((layout.const, layout.kind, layout.ints))
    if blob is None:
        return None
    if blob.length != layout.size_bytes:
        logger.warning(
            "%s has %d bytes of a weight packed by %s, and %d are needed: it is packed again",
            file.source.name, blob.length, layout.kind, layout.size_bytes,
        )  # fmt: skip
        return None
    return blob_array(file, blob)
