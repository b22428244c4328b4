"""The operators: one declaration each, one file per family, imported when a model needs one."""

from __future__ import annotations

import importlib
from typing import Final

from sardonyx.ops.declare import Op
from sardonyx.ops.index import FAMILIES

_WHERE: Final = {key: family for family, keys in FAMILIES.items() for key in keys}
_LOADED: Final[dict[tuple[str, str], Op]] = {}


def lookup(domain: str, name: str) -> Op | None:
    """The op, or None if nothing here declares it."""
    key = (domain, name)
    op = _LOADED.get(key)
    if op is None and key in _WHERE:
        module = importlib.import_module(f"sardonyx.ops.{_WHERE[key]}")
        _LOADED.update((o.key, o) for o in module.OPS)
        op = _LOADED[key]
    return op


def family_of(domain: str, name: str) -> str | None:
    """The family that declares an op."""
    return _WHERE.get((domain, name))


def all_ops() -> list[Op]:
    """Every declared op, in the order of the index."""
    return [op for key in _WHERE if (op := lookup(*key)) is not None]


def names(domain: str) -> list[str]:
    """The names of a domain's ops."""
    return [name for d, name in _WHERE if d == domain]
