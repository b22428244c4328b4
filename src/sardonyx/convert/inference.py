"""Loads a model and infers its graph, and infers a graph again after changes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from sardonyx.base.records import replace
from sardonyx.compile import load_model
from sardonyx.convert.dims import set_shapes
from sardonyx.errors import SardonyxError
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import infer
from sardonyx.load import LoadOptions
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes

Shapes = Mapping[str, Sequence[int]]


def loaded(source: ModelBytes, options: LoadOptions, shapes: Shapes) -> Model:
    """Return an inferred model, valid for all sizes if it can be inferred so.

    Otherwise the branches that sizes select are guessed, and dims of equal names may differ.
    """
    model = _loaded(source, options, shapes)
    try:
        infer(model.graph)
    except SardonyxError:
        for split in (False, True):
            model = _loaded(source, replace(options, split_names=split), shapes)
            with contextlib.suppress(SardonyxError):
                infer(model.graph, not split, {})
                return model
        raise
    return model


def _loaded(source: ModelBytes, options: LoadOptions, shapes: Shapes) -> Model:
    model = load_model(source, options)
    set_shapes(model.graph, shapes)
    return model


def infer_again(graph: Graph) -> None:
    """Infer a graph in the way in which it was inferred before."""
    scope = graph.scope
    infer(graph, scope.assumes, None if scope.sizes is None else {})
