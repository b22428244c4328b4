"""Writes src/sardonyx/save/ort_schemas.txt: op versions and kernel types, as .ort files need them.

It lists every op that onnxruntime and Sardonyx have, in the versions that saved models use; the
facts come from the schemas of an installed onnxruntime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from onnxruntime.capi import onnxruntime_pybind11_state as state  # type: ignore[import-untyped]

from sardonyx.ops import all_ops
from sardonyx.save.since import OLDEST

PATH: Final = Path(__file__).parent.parent / "src" / "sardonyx" / "save" / "ort_schemas.txt"


def kernel_types(schema: Any) -> dict[str, list[str]]:
    """Return the inputs and outputs of each type variable; those without one have their names."""
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    found: dict[str, list[str]] = {}
    for letter, parameters in (("i", schema.inputs), ("o", schema.outputs)):
        for position, parameter in enumerate(parameters):
            key = parameter.typeStr if parameter.typeStr in variables else parameter.name
            found.setdefault(key, []).append(f"{letter}{position}")
    return found


def lines() -> list[str]:
    """Return a line per op and version: domain:op:version, and positions by type."""
    ours = {op.key for op in all_ops()}
    versions: dict[tuple[str, str], dict[int, Any]] = {}
    for schema in state.get_all_operator_schema():
        if (schema.domain, schema.name) in ours:
            versions.setdefault((schema.domain, schema.name), {})[schema.since_version] = schema
    out = []
    for (domain, name), schemas in sorted(versions.items()):
        oldest = max((v for v in schemas if v <= OLDEST.get(domain, 0)), default=0)
        for version, schema in sorted(schemas.items()):
            if version >= oldest:
                types = (f"{k}={','.join(v)}" for k, v in kernel_types(schema).items())
                out.append(" ".join((f"{domain}:{name}:{version}", *types)))
    return out


if __name__ == "__main__":
    PATH.write_text("\n".join(lines()) + "\n")
