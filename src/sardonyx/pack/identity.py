"""The identity of a pack: fingerprint of its model, options, layout versions, samples of weights.

The fingerprint is a digest of the model file without its weights, which are too large to hash at
every load: `samples` cover each of them in part, `validate` verifies all bytes once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import sardonyx._native as _native
from sardonyx.base.digest import blake2b
from sardonyx.base.records import as_dict
from sardonyx.graph.const import COPY_BELOW, Source
from sardonyx.load import LoadOptions
from sardonyx.load.source import ModelBytes
from sardonyx.pack.checksums import FileRange
from sardonyx.pack.codec import read_int, read_list, read_str, require
from sardonyx.pack.errors import OptionsMismatch, PackMismatch
from sardonyx.passes.options import LEVELS, PassOptions

BLOCK: Final = 4096  # bytes of a sample
# Bytes of a model without initializers. Only larger ones are searched for weights in attributes.
_MAX_GRAPH_BYTES: Final = 1 << 22

_LEVEL_NAMES: Final[dict[int, str]] = {level: name for name, level in LEVELS.items()}

# Versions of the layouts of packing kernels, where they are no longer the first.
LAYOUT_VERSIONS: Final[dict[str, int]] = {"qdepthwise_pack": 2, "qgemm_pack": 3}


def layout_version(kernel: str) -> int:
    """Return the version of the layout that a packing kernel produces."""
    return LAYOUT_VERSIONS.get(kernel, 1)


def settings(load: LoadOptions, passes: PassOptions) -> dict[str, Any]:
    """Return the options that change the lowered graph, as they are stored in a pack."""
    chosen: dict[str, Any] = {
        "version": _native.version,
        "dims_by_name": dict(load.dims_by_name),
        "dims_by_denotation": dict(load.dims_by_denotation),
        "split_names": load.split_names,
    }
    # A session that stops its pipeline early, or that has a device, uses no pack.
    unused = ("stop_after", "device_ops")
    options = {name: value for name, value in as_dict(passes).items() if name not in unused}
    for name, value in options.items():
        if isinstance(value, frozenset):
            chosen[name] = sorted(value)
        else:
            chosen[name] = None if value is None else int(value)
    return chosen


def check_options(stored: Any, current: dict[str, Any], ignored: Sequence[str] = ()) -> None:
    """Raise OptionsMismatch for the first option that a pack was written with and that differs."""
    require(type(stored) is dict, "its options are not an object")
    for key in sorted(stored.keys() | current.keys()):
        if key not in ignored and stored.get(key) != current.get(key):
            was, now = (_named(key, options.get(key)) for options in (stored, current))
            raise OptionsMismatch(f"it was made with {key} {was}, now {now}", key)


def level_name(settings: dict[str, Any]) -> str:
    """Return the optimization level of settings, as the command line names it."""
    return _LEVEL_NAMES[settings["level"]]


def _named(key: str, value: Any) -> str:
    """Format the value of an option."""
    if key == "level" and type(value) is int:
        return _LEVEL_NAMES.get(value, repr(value))
    return repr(value)


def fingerprint(model: ModelBytes) -> str:
    """Return a digest that is equal for models that differ only in the bytes of their weights."""
    # Kept with the model's bytes: a load needs it for each candidate.
    if model.fingerprint is None:
        model.fingerprint = _fingerprint(model.source.data)
    return model.fingerprint


def _fingerprint(data: memoryview) -> str:
    digest = blake2b(digest_size=32)
    end = 0  # of the bytes that are hashed or left out so far
    for offset, length in _embedded_weights(data):
        digest.update(data[end:offset])
        end = offset + length
    digest.update(data[end:])
    return digest.hexdigest()


def pack_name(model: str, options: dict[str, Any]) -> str:
    """Return the file name of a pack in a cache folder; `model` is a fingerprint."""
    key = json.dumps([model, options, LAYOUT_VERSIONS], sort_keys=True).encode()
    return f"{blake2b(key, digest_size=20).hexdigest()}.pack"


def _embedded_weights(data: memoryview) -> list[tuple[int, int]]:
    """Return offset and length of the weights in the model file itself, ascending."""
    try:
        graph = _native.decode(data).graph
    except _native.DecodeError:  # loading the model reports it
        return []
    if graph is None:
        return []
    weights = list(_large(graph.initializers))
    if data.nbytes - sum(length for _, length in weights) > _MAX_GRAPH_BYTES:
        weights += _in_attributes(graph)
    return sorted(weights)


def _large(tensors: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield offset and length of tensors that are not copied: small ones are part of the graph."""
    for tensor in tensors:
        plain = tensor.plain
        if plain is not None and plain[3] >= COPY_BELOW:
            yield plain[2], plain[3]


def _in_attributes(graph: Any) -> Iterator[tuple[int, int]]:
    """Yield the weights in attributes and bodies."""
    for node in graph.nodes:
        for attribute in node.attributes:
            value = attribute.value
            if isinstance(value, _native.TensorRecord):
                yield from _large([value])
            elif isinstance(value, _native.GraphRecord):
                yield from _large(value.initializers)
                yield from _in_attributes(value)


def weight_ranges(model: ModelBytes) -> list[FileRange]:
    """Return all bytes that the fingerprint leaves out, in the model file and in external files.

    Also those of weights that were folded away: the results of folding depend on them.
    """
    embedded = _embedded_weights(model.source.data)
    in_model = [FileRange(model.source, *offset_and_length) for offset_and_length in embedded]
    return in_model + [FileRange(*part) for part in model.files.parts()]


def samples(ranges: Iterable[FileRange], files: Sequence[Source]) -> list[list[Any]]:
    """Return [file, start, length, checksum] of a block in the middle of each weight."""
    numbers = {id(source): i for i, source in enumerate(files)}
    blocks: dict[tuple[int, int, int], Source] = {}
    for source, offset, length in ranges:
        start = offset + length // 2 // BLOCK * BLOCK
        blocks[numbers[id(source)], start, min(BLOCK, offset + length - start)] = source
    return [[*block, _checksum(source, *block[1:])] for block, source in blocks.items()]


def check_samples(listed: Any, files: Sequence[Source]) -> None:
    """Verify the samples of a pack; most retrained models differ in the first."""
    for item in read_list(listed):
        at, start, length, expected = read_list(item, 4)
        # Validated before a byte is read.
        source = files[read_int(at, 0, len(files))]
        read_int(length, 1, min(BLOCK, source.data.nbytes) + 1)
        read_int(start, 0, source.data.nbytes + 1 - length)
        if _checksum(source, start, length) != expected:
            raise weights_mismatch(source, start)


def weights_mismatch(source: Source, start: int) -> PackMismatch:
    """Return the error of a file whose weights were changed."""
    return PackMismatch(f"{source.name} has other weights at {start} than it was made of")


def _checksum(source: Source, start: int, length: int) -> str:
    return blake2b(source.data[start : start + length], digest_size=8).hexdigest()


def open_files(listed: Any, model: ModelBytes) -> list[Source]:
    """Open the files that a pack refers to: the model file and its external data."""
    files = []
    for item in read_list(listed):
        location, size, _ = read_list(item, 3)
        source = model.files.open(read_str(location)) if read_str(location) else model.source
        if source.data.nbytes != read_int(size):  # entries are checked against these sizes
            raise PackMismatch(f"{source.name} has {source.data.nbytes} bytes, and had {size}")
        files.append(source)
    return files
