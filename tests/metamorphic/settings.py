"""The same model run otherwise: optimized less, by more threads, out of a pack, by other calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from tests.metamorphic import isas, sessions
from tests.metamorphic.declared import names_apart
from tests.metamorphic.variant import Settings, Transform, Variant


def run(model: bytes, feeds: dict[str, Any], settings: Settings) -> Sequence[Any]:
    """The outputs of a model, run as settings want it."""
    if settings.isa:
        return isas.elsewhere(settings.isa).run(model, feeds, replace(settings, isa=""))
    return sessions.run(model, feeds, settings)


def at(exact: bool, why: str, **parts: Any) -> Transform:
    """The transform that changes settings only."""

    def transform(v: Variant, rng: Random) -> Variant:
        changed = replace(v.settings, seed=rng.getrandbits(30), **parts)
        return v.changed(settings=changed, exact=exact)

    transform.__doc__ = why
    return transform


def only_arrays(transform: Transform) -> Transform:
    """The transform for models that take and give nothing but numbers."""

    def guarded(v: Variant, rng: Random) -> Variant | None:
        values = [*v.feeds.values(), *v.wanted]
        plain = all(isinstance(x, np.ndarray) and x.dtype.kind != "O" for x in values)
        return transform(v, rng) if plain and v.wanted else None

    guarded.__doc__ = transform.__doc__
    return guarded


def only_steady(transform: Transform) -> Transform:
    """The transform for models that draw no random numbers."""

    def guarded(v: Variant, rng: Random) -> Variant | None:
        return None if v.is_random else transform(v, rng)

    guarded.__doc__ = transform.__doc__
    return guarded


def on_isa(name: str) -> Transform:
    """The transform to a process of an ISA, where there is one."""

    def transform(v: Variant, rng: Random) -> Variant | None:
        """By the kernels of another CPU, whose vectors are shorter."""
        return at(False, "", isa=name)(v, rng) if name in isas.started() else None

    return transform


def packed(v: Variant, rng: Random) -> Variant:
    """Out of a pack, which folds no constant that is an input too: a run may feed another."""
    graph = v.model.graph
    is_open = {i.name for i in graph.input} & {t.name for t in graph.initializer}
    made = at(not is_open, "", stored="packed")(v, rng)
    assert made is not None
    return made


def overridden(v: Variant, rng: Random) -> Variant | None:
    """Every dim has a name, and the session says how large it is."""
    named = names_apart(v, rng)
    if named is None:
        return None
    sizes = {
        dim.dim_param: size
        for i in named.model.graph.input
        if isinstance(v.feeds.get(i.name), np.ndarray)
        for dim, size in zip(i.type.tensor_type.shape.dim, v.feeds[i.name].shape, strict=False)
        if dim.dim_param
    }
    return replace(named, settings=replace(named.settings, dims=tuple(sizes.items())))
