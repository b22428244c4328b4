"""Fixes sizes of a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from sardonyx.base.records import replace
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dim import Size, symbols
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.load.model import Declared, Model

Dims = tuple[int | str | None, ...]


def check_names(model: Model, names: Mapping[str, int]) -> None:
    """Raise for a size that no input has."""
    known = {d for i in (*model.inputs, *model.overridable) for d in i.dims or ()}
    shown = sorted(d for d in known if isinstance(d, str))
    for name, size in names.items():
        if name not in known:
            raise InvalidArgument(
                f"no input has a dim {name}; the symbolic dims are {', '.join(shown) or 'none'}"
            )
        if not isinstance(size, SupportsIndex) or size < 0:
            raise InvalidArgument(f"the dim {name} must be an integer of at least 0, got {size}")


def sizes_of(model: Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the sizes of named dims that shapes of inputs determine."""
    declared = {d.name: d for d in (*model.inputs, *model.overridable)}
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in declared:
            inputs = ", ".join(declared) or "none"
            raise InvalidArgument(f"there is no input {name}; the inputs are {inputs}")
        for dim, size in zip(_checked(declared[name], shape), shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise InvalidArgument(
                    f"the shape of {name} makes {dim} {size}, and it is {sizes[dim]} elsewhere"
                )
    return sizes


def _checked(declared: Declared, shape: Sequence[int]) -> Dims:
    """Return the declared dims, with which a shape agrees."""
    dims = declared.dims
    if dims is None:
        return (None,) * len(shape)
    fixed = (isinstance(d, int) and d not in (s, -1) for d, s in zip(dims, shape, strict=False))
    if len(dims) != len(shape) or any(fixed) or min(shape, default=0) < 0:
        raise InvalidArgument(
            f"{declared.name} cannot have the shape {list(shape)}: it is declared as "
            f"[{', '.join(map(_shown, dims))}]"
        )
    return dims


def _shown(dim: int | str | None) -> str:
    return "?" if dim is None else str(dim)


def set_shapes(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    """Fix the shapes of some inputs of a graph that is not inferred yet."""
    for value in graph.inputs:
        if value.name in shapes and isinstance(value.fact, Fact):
            value.fact = replace(value.fact, shape=tuple(shapes[value.name]))


def with_output_dims(model: Model) -> Model:
    """Return the model with outputs declared as inferred, where sizes are numbers now."""
    pairs = zip(model.outputs, model.graph.outputs, strict=True)
    return replace(model, outputs=[_declared(d, v) for d, v in pairs])


def _declared(declared: Declared, value: Value) -> Declared:
    fact, dims = value.fact, declared.dims
    if not isinstance(fact, Fact) or fact.shape is None:
        return declared
    if dims is None or len(dims) != len(fact.shape):
        return replace(declared, dims=tuple(_number(size) for size in fact.shape))
    sizes = zip(fact.shape, dims, strict=True)
    return replace(declared, dims=tuple(s if isinstance(s, int) else d for s, d in sizes))


def _number(size: Size) -> int | None:
    return size if isinstance(size, int) and not symbols(size) else None
