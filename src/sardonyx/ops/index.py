"""Which module declares which op: a model imports only the modules that it uses."""

from __future__ import annotations

import importlib
import os
from typing import Final

from sardonyx.base.name_index import Key, NameIndex, module_names
from sardonyx.graph.op import GRADIENT, INTERNAL, MICROSOFT, ML, ONNX, PREVIEW, TRAINING

FOLDER: Final = os.path.dirname(__file__)
DOMAINS: Final = frozenset((ONNX, ML, MICROSOFT, PREVIEW, TRAINING, GRADIENT, INTERNAL))


def scan() -> dict[Key, str]:
    """The module of every op, from `OPS` of all modules."""
    found: dict[Key, str] = {}
    for name in module_names(FOLDER):
        if not name.endswith("gradient"):  # the rules of training, which declare no ops
            module = importlib.import_module(f"sardonyx.ops.{name}")
            found.update((op.key, name) for op in getattr(module, "OPS", ()))
    return found


OPS_INDEX: Final = NameIndex(FOLDER, scan)


def module_of(domain: str, name: str) -> str | None:
    """The module of ops/ that declares an op, such as "elementwise.cast"; None for other ops."""
    return OPS_INDEX.find((domain, name)) if domain in DOMAINS else None


def family_of(domain: str, name: str) -> str | None:
    """The family of an op: the folder or module of ops/ that declares it."""
    module = module_of(domain, name)
    return None if module is None else module.partition(".")[0]


def families() -> dict[str, list[Key]]:
    """All ops, by family."""
    found: dict[str, list[Key]] = {}
    for key, module in OPS_INDEX.all().items():
        found.setdefault(module.partition(".")[0], []).append(key)
    return found
