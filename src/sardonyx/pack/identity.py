"""By what a pack knows its model: its bytes but for weights, options, samples of weights."""

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
from sardonyx.pack.checksums import Place
from sardonyx.pack.codec import items, need, number, text
from sardonyx.pack.errors import Other, OtherOptions
from sardonyx.passes.options import GraphOptimizationLevel as Level
from sardonyx.passes.options import PassOptions

BLOCK: Final = 4096  # bytes of a sample
_PLAIN: Final = 1 << 22  # bytes of a model, without initializers, that are not worth a closer look

LEVELS: Final[dict[int, str]] = {
    Level.ORT_DISABLE_ALL: "none",
    Level.ORT_ENABLE_BASIC: "basic",
    Level.ORT_ENABLE_EXTENDED: "extended",
    Level.ORT_ENABLE_LAYOUT: "layout",
    Level.ORT_ENABLE_ALL: "all",
}

# What a packing row makes, where that is no longer what its first version made.
LAYOUTS: Final[dict[str, int]] = {"qdepthwise_pack": 2, "qgemm_pack": 2}


def layout(row: str) -> int:
    """The version of the layout that a packing row makes."""
    return LAYOUTS.get(row, 1)


def settings(load: LoadOptions, passes: PassOptions) -> dict[str, Any]:
    """All that changes the lowered graph, by name."""
    found: dict[str, Any] = {
        "version": _native.version,
        "dims_by_name": dict(load.dims_by_name),
        "dims_by_denotation": dict(load.dims_by_denotation),
        "split_names": load.split_names,
    }
    # A session that stops its pipeline early uses no pack.
    options = {name: value for name, value in as_dict(passes).items() if name != "stop_after"}
    for name, value in options.items():
        found[name] = (
            sorted(value)
            if isinstance(value, frozenset)
            else int(value)
            if value is not None
            else None
        )
    return found


def differences(made: Any, wanted: dict[str, Any], ignored: Sequence[str] = ()) -> None:
    """Says which option a pack was made with that is another now."""
    need(type(made) is dict, "its options are no table")
    for key in sorted(made.keys() | wanted.keys()):
        if key not in ignored and made.get(key) != wanted.get(key):
            was, now = (_named(key, table.get(key)) for table in (made, wanted))
            raise OtherOptions(f"it was made with {key} {was}, and here is {now}", key)


def _named(key: str, value: Any) -> str:
    """The value of an option; levels as the command line calls them."""
    if key == "level" and type(value) is int and value in LEVELS:
        return LEVELS[value]
    return repr(value)


def digest(given: ModelBytes) -> str:
    """What is equal for models that are equal but for their weights' bytes."""
    if given.digest is None:
        given.digest = _digest(given.source.data)
    return given.digest


def _digest(data: memoryview) -> str:
    sum_ = blake2b(digest_size=32)
    end = 0
    for offset, length in _weights(data):
        sum_.update(data[end:offset])
        end = offset + length
    sum_.update(data[end:])
    return sum_.hexdigest()


def name(model: str, options: dict[str, Any]) -> str:
    """The name of a pack in a folder of many."""
    said = json.dumps([model, options, LAYOUTS], sort_keys=True).encode()
    return f"{blake2b(said, digest_size=20).hexdigest()}.pack"


def _weights(data: memoryview) -> list[tuple[int, int]]:
    """Offset and length of the weights in a model's own bytes, in order."""
    try:
        graph = _native.decode(data).graph
    except _native.DecodeError:  # which the load will say
        return []
    if graph is None:
        return []
    found = list(_large(graph.initializers))
    if data.nbytes - sum(length for _, length in found) > _PLAIN:
        found += _inside(graph)
    return sorted(found)


def _large(tensors: Sequence[Any]) -> Iterator[tuple[int, int]]:
    for tensor in tensors:
        plain = tensor.plain
        if plain is not None and plain[3] >= COPY_BELOW:
            yield plain[2], plain[3]


def _inside(graph: Any) -> Iterator[tuple[int, int]]:
    """Weights in attributes and bodies."""
    for node in graph.nodes:
        for attribute in node.attributes:
            value = attribute.value
            if isinstance(value, _native.TensorRecord):
                yield from _large([value])
            elif isinstance(value, _native.GraphRecord):
                yield from _large(value.initializers)
                yield from _inside(value)


def weights(given: ModelBytes) -> list[Place]:
    """All that the digest leaves out, folded or not: in the model's own bytes, in its files."""
    own = [Place(given.source, *where) for where in _weights(given.source.data)]
    return own + [Place(*part) for part in given.files.parts()]


def samples(places: Iterable[Place], files: Sequence[Source]) -> list[list[Any]]:
    """A block out of each weight."""
    numbers = {id(source): i for i, source in enumerate(files)}
    found: dict[tuple[int, int, int], Source] = {}
    for source, offset, length in places:
        start = offset + length // 2 // BLOCK * BLOCK
        found[numbers[id(source)], start, min(BLOCK, offset + length - start)] = source
    return [[*place, _sum(source, *place[1:])] for place, source in found.items()]


def check_samples(listed: Any, files: Sequence[Source]) -> None:
    """Compares blocks of weights with those that a pack was made of."""
    for item in items(listed):
        at, start, length, sum_ = items(item, 4)
        source = files[number(at, 0, len(files))]
        number(length, 1, min(BLOCK, source.data.nbytes) + 1)
        number(start, 0, source.data.nbytes + 1 - length)
        if _sum(source, start, length) != sum_:
            raise other_weights(source, start)


def other_weights(source: Source, start: int) -> Other:
    """What is said of a file that was changed."""
    return Other(f"{source.name} has other weights at {start} than it was made of")


def _sum(source: Source, start: int, length: int) -> str:
    return blake2b(source.data[start : start + length], digest_size=8).hexdigest()


def open_files(listed: Any, given: ModelBytes) -> list[Source]:
    """The files that a pack refers to: the model itself, and those that it names."""
    files = []
    for item in items(listed):
        location, size, _ = items(item, 3)
        source = given.files.open(text(location)) if text(location) else given.source
        if source.data.nbytes != number(size):
            raise Other(f"{source.name} has {source.data.nbytes} bytes, and had {size}")
        files.append(source)
    return files
