"""Load and save the parameters and states of a training step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst, Source, SourceConst
from sardonyx.graph.constant_values import const_fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.load.model import Model
from sardonyx.save import SaveOptions, save


def load_arrays(
    own: Mapping[str, Any],
    given: Mapping[str, Any] | None,
    kind: str,
    *,
    only_check: bool = False,
) -> None:
    """Copy arrays into those of the same names, after checking all names, shapes and types."""
    if given is None:
        return
    for name in own:
        if name not in given:
            raise InvalidArgument(f"the {kind} {name} is missing")
    for name, value in given.items():
        if name not in own:
            raise InvalidArgument(
                f"there is no {kind} {name}", hint="the step has another model or other options"
            )
        array, target = np.asarray(value), own[name]
        if array.shape != target.shape:
            raise InvalidArgument(
                f"the {kind} {name} must have the shape {list(target.shape)}, "
                f"got {list(array.shape)}"
            )
        if array.dtype != target.dtype:
            raise InvalidArgument(
                f"the {kind} {name} must be of type {target.dtype}, got {array.dtype}",
                hint=f"convert it with array.astype({target.dtype.name!r})",
            )
    for name, value in given.items() if not only_check else ():
        own[name][...] = value


def trained_model(model: Model, trained: Mapping[str, Any]) -> Model:
    """Return a loaded model with other values of initializers; it copies them."""
    for name, value in list(_initializers(model.graph)):
        if name not in trained:
            continue
        const = ArrayConst(np.array(trained[name]))
        if value in model.graph.defaults:
            model.graph.set_default(value, const)
        else:
            value.fact = const_fact(const)
    return model


def _initializers(graph: Graph) -> Iterator[tuple[str, Value]]:
    """Yield inputs with defaults, and each value of a constant."""
    for value in graph.defaults:
        yield value.name, value
    for value in graph.all_values():
        if value.const is not None and value.name:
            yield value.name, value


def save_trained(
    model: Model, trained: Mapping[str, Any], path: str, source: Source | None
) -> None:
    """Save a loaded model with trained initializers; `source` has the bytes of the model file.

    If initializers are external data, those of the saved model are in one file next to it.
    """
    constants = (value.const for _, value in _initializers(model.graph))
    is_external = any(isinstance(c, SourceConst) and c.source is not source for c in constants)
    data_file = f"{os.path.basename(path)}.data" if is_external and source is not None else None
    save(trained_model(model, trained), SaveOptions(path, data_file))
