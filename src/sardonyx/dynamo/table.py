"""The table of lowerings: the function that lowers each ATen overload to nodes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Value

Result = Value | None | tuple[Value | None, ...] | list[Value]
Lowering = Callable[..., Result]

LOWERINGS: Final[dict[str, Lowering]] = {}


def lowers(*overloads: str, namespace: str = "aten") -> Callable[[Lowering], Lowering]:
    """Register a lowering for overloads of a namespace, such as "add.Tensor" of ATen.

    The function takes an `AtenBuilder` and the call's arguments. It returns a value, or a tuple for
    an op with several results (None for one that is never read), or raises `Unsupported`.
    """

    def register(lowering: Lowering) -> Lowering:
        for overload in overloads:
            is_prim = overload.startswith("prims.")
            LOWERINGS[overload if is_prim else f"{namespace}.{overload}"] = lowering
        return lowering

    return register


def in_float32(lowering: Lowering) -> Lowering:
    """Compute a lowering with one result in float32 where its tensors are 16-bit floats.

    torch widens 16-bit operands, computes the whole op in float32 and rounds once.
    """

    @wraps(lowering)
    def widened(b: AtenBuilder, *args: Any, **kwargs: Any) -> Value:
        wide = [
            b.cast(x, F32) if isinstance(x, Value) and x.tensor.dtype in (F16, BF16) else x
            for x in args
        ]
        return b.rounded(lowering(b, *wide, **kwargs))  # type: ignore[arg-type]

    return widened


def lowering_of(target: Any) -> Lowering | None:
    """Return the lowering of a torch op; None where there is none."""
    _load()
    return LOWERINGS.get(str(target))


def supported() -> dict[str, str]:
    """Return the family of every overload that has a lowering."""
    _load()
    return {name: f.__module__.rpartition(".")[2] for name, f in sorted(LOWERINGS.items())}


def _load() -> None:
    """Import the families once."""
    if not LOWERINGS:
        from sardonyx.dynamo import aten

        for module in pkgutil.iter_modules(aten.__path__):
            importlib.import_module(f"{aten.__name__}.{module.name}")


__all__ = ["AtenBuilder", "in_float32", "lowering_of", "lowers", "supported"]
