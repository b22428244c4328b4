"""The operators: one declaration each, grouped by family, imported when a model needs one."""

from __future__ import annotations

import importlib
import os
from typing import Final

from sardonyx.base.import_cache import import_module
from sardonyx.base.name_index import Key, NameIndex, module_names
from sardonyx.errors import InvalidArgument, NotFound
from sardonyx.graph.op import GRADIENT, INTERNAL, MICROSOFT, ML, ONNX, PREVIEW, TRAINING, Op

FOLDER: Final = os.path.dirname(__file__)
DOMAINS: Final = frozenset((ONNX, ML, MICROSOFT, PREVIEW, TRAINING, GRADIENT, INTERNAL))
_LOADED: Final[dict[Key, Op]] = {}
_CUSTOM: Final[dict[Key, Op]] = {}


def scan() -> dict[Key, str]:
    """Return the module of every op, from `OPS` of all modules."""
    found: dict[Key, str] = {}
    for name in module_names(FOLDER):
        if not name.endswith("gradient"):  # the rules of training, which declare no ops
            module = importlib.import_module(f"sardonyx.ops.{name}")
            found.update((op.key, name) for op in getattr(module, "OPS", ()))
    return found


OPS_INDEX: Final = NameIndex(FOLDER, scan)


def module_of(domain: str, name: str) -> str | None:
    """Return the module that declares an op, such as "elementwise.cast"; None for other ops."""
    return OPS_INDEX.find((domain, name)) if domain in DOMAINS else None


def family_of(domain: str, name: str) -> str | None:
    """Return the family of an op: the folder or module of ops/ that declares it."""
    module = module_of(domain, name)
    return None if module is None else module.partition(".")[0]


def families() -> dict[str, list[Key]]:
    """Return all ops, by family."""
    found: dict[str, list[Key]] = {}
    for key, module in OPS_INDEX.all().items():
        found.setdefault(module.partition(".")[0], []).append(key)
    return found


def lookup(domain: str, name: str) -> Op | None:
    """Return the op, or None if it is neither declared here nor registered."""
    key = (domain, name)
    op = _LOADED.get(key) or _CUSTOM.get(key)
    if op is None and (name_of_module := module_of(*key)) is not None:
        module = import_module(f"sardonyx.ops.{name_of_module}")
        _LOADED.update((o.key, o) for o in module.OPS)
        op = _LOADED[key]
    return op


def register(op: Op) -> None:
    """Register a custom op, replacing an earlier one of the same name."""
    if module_of(*op.key) is not None:
        raise InvalidArgument(f"{op} is built in and cannot be replaced")
    _CUSTOM[op.key] = op


def forget(domain: str, name: str) -> None:
    """Unregister a custom op."""
    if _CUSTOM.pop((domain, name), None) is None:
        raise NotFound(f"no custom op {domain}.{name} is registered")


def custom_ops() -> frozenset[Op]:
    """Return the registered custom ops."""
    return frozenset(_CUSTOM.values())


def all_ops() -> list[Op]:
    """Return every declared op, in the order of the index."""
    return [op for key in OPS_INDEX.all() if (op := lookup(*key)) is not None]


def names(domain: str) -> list[str]:
    """Return the names of a domain's ops."""
    return [name for d, name in (*OPS_INDEX.all(), *_CUSTOM) if d == domain]
