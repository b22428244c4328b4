"""The parameters of a torch module, which torch's dynamo exporter records in models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# Field numbers of ModelProto, GraphProto and StringStringEntryProto.
_GRAPH, _METADATA, _KEY, _VALUE = 7, 16, 1, 2
_SIGNATURE: Final = b"pkg.torch.export.ExportedProgram.graph_signature"
_PARAMETER: Final = re.compile(r"PARAMETER target='([^']+)'")
_VARINT, _BYTES = 0, 2  # wire types
_FIXED_BYTES: Final = {1: 8, 5: 4}  # sizes of fields of other wire types


def exported_parameters(model: memoryview) -> frozenset[str]:
    """Return the names of all parameters that the exported module had; empty if none are recorded.

    `model` is a ModelProto that was decoded before, so its lengths are valid. Weights are skipped,
    not read.
    """
    for graph in _messages(model, _GRAPH):
        for entry in _messages(graph, _METADATA):
            if any(bytes(key) == _SIGNATURE for key in _messages(entry, _KEY)):
                text = "".join(str(v, "utf-8", "replace") for v in _messages(entry, _VALUE))
                return frozenset(_PARAMETER.findall(text))
    return frozenset()


def _messages(data: memoryview, number: int) -> Iterator[memoryview]:
    """Yield the length-delimited fields of a message with a field number."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        wire = tag & 7
        if wire == _VARINT:
            _, at = _varint(data, at)
        elif wire == _BYTES:
            size, at = _varint(data, at)
            if tag >> 3 == number:
                yield data[at : at + size]
            at += size
        else:
            at += _FIXED_BYTES.get(wire, end)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at an offset, and the offset after it."""
    number = shift = 0
    while at < len(data):
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return number, at
