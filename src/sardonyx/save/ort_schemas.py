"""Op versions and kernel types that a model in the .ort format has to state.

`ort_schemas.txt` has a line per op and version, written by tools/ort_schemas.py: the identifier of
the op, then for each type variable of its schema the inputs (i0, i1, ...) and outputs of that type.
"""

from __future__ import annotations

import functools
import os
from bisect import bisect_right
from collections.abc import Mapping

from sardonyx.base.records import frozen
from sardonyx.errors import NotImplemented


@frozen
class OpVersion:
    """One version of an op: its identifier, and the arguments of each type."""

    key: str  # domain:op:version
    since: int
    types: dict[str, list[tuple[bool, int]]]  # by type variable: is output, position


@functools.cache
def _schemas() -> Mapping[tuple[str, str], list[OpVersion]]:
    """Return the versions of each op, ascending."""
    found: dict[tuple[str, str], list[OpVersion]] = {}
    with open(os.path.join(os.path.dirname(__file__), "ort_schemas.txt")) as file:
        for line in file:
            key, *groups = line.split()
            domain, name, version = key.split(":")
            types = {
                variable: [
                    (argument[0] == "o", int(argument[1:])) for argument in listed.split(",")
                ]
                for variable, listed in (group.split("=") for group in groups)
            }
            found.setdefault((domain, name), []).append(OpVersion(key, int(version), types))
    return found


def schema_of(domain: str, op_type: str, opset: int) -> OpVersion:
    """Return the version of an op in an opset."""
    versions = _schemas().get((domain, op_type), [])
    at = bisect_right([schema.since for schema in versions], opset)
    if not at:
        name = f"{domain or 'ai.onnx'}.{op_type}"
        raise NotImplemented(
            f"a model with the op {name} is not saved in the .ort format: onnxruntime 1.31 has no "
            "such op",
            hint="save it as an .onnx file",
        )
    return versions[at - 1]
