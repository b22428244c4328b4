"""The operators: one declaration each, grouped by family, imported when a model needs one."""

from __future__ import annotations

import importlib
from typing import Final

from sardonyx.errors import InvalidArgument, NotFound
from sardonyx.graph.op import Op
from sardonyx.ops.index import OPS_INDEX, family_of, module_of

_LOADED: Final[dict[tuple[str, str], Op]] = {}
_CUSTOM: Final[dict[tuple[str, str], Op]] = {}


def lookup(domain: str, name: str) -> Op | None:
    """Return the op, or None if it is neither declared here nor registered."""
    key = (domain, name)
    op = _LOADED.get(key)
    if op is None:
        op = _CUSTOM.get(key)
    if op is None and (name_of_module := module_of(*key)) is not None:
        module = importlib.import_module(f"sardonyx.ops.{name_of_module}")
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


__all__ = [
    "all_ops",
    "custom_ops",
    "family_of",
    "forget",
    "lookup",
    "module_of",
    "names",
    "register",
]
