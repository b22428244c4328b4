"""Prefix tuning: trained keys and values, in place of the KV cache that a model takes as input.

For inference nothing is added: the trained prefix is fed as the cache of the first run, with an
attention mask that covers its positions, and every cache that the model returns then has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.dim import Size
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.infer import infer
from sardonyx.load.model import Model
from sardonyx.ops.builder import Builder
from sardonyx.train.adapters.insert import add_parameters

SUFFIX: Final = ".prefix"
_STDDEV: Final = 0.02  # of the initial keys and values


@frozen
class PrefixRecipe:
    """The number of positions of a prefix, and the seed of its initial values."""

    length: int
    seed: int


def _caches(model: Model, patterns: Sequence[str]) -> list[Value]:
    """Return the inputs [batch, heads, past, head size] that patterns match."""
    graph, found = model.graph, {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = [v for v in graph.inputs if v.name == pattern or fnmatchcase(v.name, pattern)]
        if not matches:
            names = ", ".join(v.name for v in graph.inputs)
            raise InvalidArgument(f"{pattern!r} matches none of the inputs {names}")
        found.update(dict.fromkeys(matches))
    for value in found:
        fact = value.fact
        is_cache = isinstance(fact, Fact) and fact.dtype in FLOATS and len(fact.shape or ()) == 4
        if not is_cache or not all(isinstance(value.tensor.dims[i], int) for i in (1, 3)):
            raise InvalidArgument(
                f"the input {value.name} is {fact}, not a cache [batch, heads, past, head size]"
            )
    return list(found)


def _shape(cache: Value, length: int) -> tuple[int, int, int, int]:
    """The shape of a cache of one sequence with a number of positions."""
    _, heads, _, size = cache.tensor.dims
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return 1, heads, length, size


def prefixed(
    model: Model, patterns: Sequence[str], recipe: PrefixRecipe
) -> tuple[Model, dict[str, Array]]:
    """Return the model with parameters for caches, and their initial values."""
    graph, initial = model.graph, {}
    rng = np.random.default_rng(recipe.seed)
    caches = _caches(model, patterns)
    for cache in caches:
        array = rng.standard_normal(_shape(cache, recipe.length)) * _STDDEV
        initial[cache.name + SUFFIX] = array.astype(cache.tensor.dtype.np)
    graph.set_inputs([v for v in graph.inputs if v not in caches])
    names = {cache.name for cache in caches}
    model.inputs[:] = [d for d in model.inputs if d.name not in names]
    model.overridable[:] = [d for d in model.overridable if d.name not in names]
    parameters = add_parameters(model, initial)
    b = Builder(graph, graph.scope)
    for cache in caches:
        graph.set_default(cache, None)
        sizes = b.Concat(_batch(b, graph, cache), b.ints(1, 1, 1), axis=0)
        expanded = b.Expand(parameters[cache.name + SUFFIX], sizes)
        expanded.fact = cache.fact  # until the whole graph is inferred for the prefix's length
        graph.replace(cache, expanded)
    infer(graph, assumes=False)
    return model, initial


def _batch(b: Builder, graph: Graph, cache: Value) -> Value:
    """The batch size as a vector of one element: a constant, or a dim of another input."""
    size: Size = cache.tensor.dims[0]
    if isinstance(size, int):
        return b.ints(size)
    for value in graph.inputs:
        fact = value.fact
        if isinstance(fact, Fact) and size in (fact.shape or ()):
            axis = (fact.shape or ()).index(size)
            return b.Shape(value, start=axis, end=axis + 1)
    raise InvalidArgument(f"no other input than caches has the batch size {size} of {cache.name}")


def optional(model: Model, patterns: Sequence[str]) -> Model:
    """Return the model with caches as optional inputs: without one, a run of batch 1 has none."""
    for cache in _caches(model, patterns):
        empty = np.zeros(_shape(cache, 0), cache.tensor.dtype.np)
        model.graph.set_default(cache, ArrayConst(empty))
        model.overridable += [d for d in model.inputs if d.name == cache.name]
        model.inputs[:] = [d for d in model.inputs if d.name != cache.name]
    return model


def folded(parameters: Mapping[str, Array]) -> dict[str, Array]:
    """Return trained prefixes by the names of the inputs that take them."""
    return {name.removesuffix(SUFFIX): array for name, array in parameters.items()}
