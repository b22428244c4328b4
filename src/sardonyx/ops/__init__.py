"""The operators: one declaration each, grouped by family, imported when a model needs one."""

from __future__ import annotations

import importlib
from typing import Final

from sardonyx.errors import InvalidArgument, NotFound
from sardonyx.graph.op import Op
from sardonyx.ops.index import MODULES

_WHERE: Final = {key: module for module, keys in MODULES.items() for key in keys}
_LOADED: Final[dict[tuple[str, str], Op]] = {}
_CUSTOM: Final[dict[tuple[str, str], Op]] = {}


def lookup(domain: str, name: str) -> Op | None:
    """Return the op, or None if it is neither declared here nor registered."""
    key = (domain, name)
    op = _LOADED.get(key)
    if op is None and key in _WHERE:
        module = importlib.import_module(f"sardonyx.ops.{_WHERE[key]}")
        _LOADED.update((o.key, o) for o in module.OPS)
        op = _LOADED[key]
    return op if op is not None else _CUSTOM.get(key)


def register(op: Op) -> None:
    """Register a custom op, replacing an earlier one of the same name."""
    if op.key in _WHERE:
        raise InvalidArgument(f"{op} is built in and cannot be replaced")
    _CUSTOM[op.key] = op


def forget(domain: str, name: str) -> None:
    """Unregister a custom op."""
    if _CUSTOM.pop((domain, name), None) is None:
        raise NotFound(f"no custom op {domain}.{name} is registered")


def custom_ops() -> frozenset[Op]:
    """Return the registered custom ops."""
    return frozenset(_CUSTOM.values())


def family_of(domain: str, name: str) -> str | None:
    """Return the family of an op: the folder or module of ops/ that declares it."""
    module = _WHERE.get((domain, name))
    return None if module is None else module.partition(".")[0]


def module_of(domain: str, name: str) -> str | None:
    """Return the module of ops/ that declares an op, such as "elementwise.cast"."""
    return _WHERE.get((domain, name))


def all_ops() -> list[Op]:
    """Return every declared op, in the index's order."""
    return [op for key in _WHERE if (op := lookup(*key)) is not None]


def names(domain: str) -> list[str]:
    """Return the names of a domain's ops."""
    return [name for d, name in (*_WHERE, *_CUSTOM) if d == domain]
