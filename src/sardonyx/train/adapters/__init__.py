"""Adapters of ONNX models: LoRA, DoRA, (IA)³ and prefixes, trained, saved, loaded and merged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.load.model import Model
from sardonyx.train.adapters import insert, prefix
from sardonyx.train.adapters.merge import merge
from sardonyx.train.adapters.targets import editable, find
from sardonyx.train.inference_form import end_training, use_stored_statistics, without_loss

__all__ = ["Adapted", "lora", "merge"]


class Adapted:
    """A model with adapters, and what its sessions and adapter files need.

    `model` is for training: the adapters' parameters are inputs with defaults, which have no effect
    before training. `parameters` are these defaults by name.
    """

    def __init__(
        self,
        source: Any,
        targets: Sequence[str],
        recipe: insert.AdapterRecipe | prefix.PrefixRecipe,
    ) -> None:
        self._source, self._targets, self._recipe = source, targets, recipe
        self.model: Model
        self.parameters: dict[str, Array]
        model = editable(source)
        if (before := model.before_loss) is not None:
            model.before_loss = lambda: Adapted(before(), targets, recipe).model
        # Statistics are frozen like the weights: an adapter file has neither.
        use_stored_statistics(model.graph)
        if isinstance(recipe, prefix.PrefixRecipe):
            self.model, self.parameters = prefix.prefixed(model, targets, recipe)
        else:
            self.model, self.parameters = _with_layers(model, targets, recipe)

    def to_model(self) -> Model:
        """Return the model for inference, whose adapter parameters are optional inputs.

        Their defaults have no effect; `RunOptions.add_active_adapter` feeds those of a saved
        adapter. Several adapters of the same targets, kind and rank fit one such model.
        """
        model = without_loss(editable(self._source))
        end_training(model.graph)
        if isinstance(self._recipe, prefix.PrefixRecipe):
            return prefix.optional(model, self._targets)
        for label, layers in find(model.graph, self._targets).items():
            defaults = self._recipe.neutral(label, layers[0])
            insert.insert(layers, label, insert.add_parameters(model, defaults))
        return model

    def folded(self, parameters: Mapping[str, Any]) -> dict[str, Array]:
        """Return trained parameters as `to_model` and `merge` take them."""
        arrays = _checked(parameters, self.parameters)
        if isinstance(self._recipe, prefix.PrefixRecipe):
            return prefix.folded(arrays)
        found: dict[str, Array] = {}
        for label, layers in find(editable(self._source).graph, self._targets).items():
            found |= self._recipe.folded(label, layers[0], arrays)
        return found

    def save(self, path: str | os.PathLike[str], parameters: Mapping[str, Any]) -> None:
        """Write trained parameters as an adapter file of onnxruntime (.onnx_adapter)."""
        from sardonyx.ort.adapters import AdapterFormat
        from sardonyx.ort.ort_value import OrtValue

        adapter = AdapterFormat()
        adapter.set_parameters({n: OrtValue(a) for n, a in self.folded(parameters).items()})
        adapter.export_adapter(path)


def lora(
    model: Any,
    targets: Sequence[str],
    *,
    rank: int = 8,
    alpha: float = 16,
    kind: str = "lora",
    seed: int = 0,
) -> Adapted:
    """Add adapters to a model, which is anything that a session accepts.

    `targets` are patterns of names of weights or nodes, such as `["*q_proj*", "*v_proj*"]`; one
    that matches no linear layer is an error. Frozen weights stay as they are stored, in 4 and 8
    bits too, and BatchNormalization uses its stored statistics.

    `kind` is "lora", "dora", "ia3", or "prefix": for the last, targets are patterns of the inputs
    of a KV cache, and `rank` is the number of positions. `alpha / rank` scales A B; `seed`
    determines A.
    """
    if not isinstance(targets, Iterable) or not all(isinstance(t, str) for t in targets):
        raise InvalidArgument(f'targets must be patterns, as ["*q_proj*"], got {targets!r:.60}')
    if not isinstance(rank, int) or rank < 1:
        raise InvalidArgument(f"rank must be a positive integer, got {rank!r}")
    if kind == "prefix":
        return Adapted(model, targets, prefix.PrefixRecipe(rank, seed))
    if kind not in insert.KINDS:
        raise InvalidArgument(
            f"kind must be one of {', '.join((*insert.KINDS, 'prefix'))}, got {kind!r}"
        )
    if not isinstance(alpha, Real) or not math.isfinite(alpha):
        raise InvalidArgument(f"alpha must be a number, got {alpha!r}")
    return Adapted(model, targets, insert.AdapterRecipe(kind, rank, float(alpha) / rank, seed))


def _with_layers(
    model: Model, targets: Sequence[str], recipe: insert.AdapterRecipe
) -> tuple[Model, dict[str, Array]]:
    initial: dict[str, Array] = {}
    for position, (label, layers) in enumerate(find(model.graph, targets).items()):
        parameters = recipe.initial(label, layers[0], position)
        values = insert.add_parameters(model, parameters)
        insert.insert(layers, label, values, recipe.scale)
        initial |= parameters
    return model, initial


def _checked(parameters: Mapping[str, Any], expected: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of all parameters, in the types and shapes that the model has."""
    found = {}
    for name, default in expected.items():
        if name not in parameters:
            raise InvalidArgument(f"the parameter {name} is missing")
        array = np.asarray(parameters[name])
        if (array.dtype, array.shape) != (default.dtype, default.shape):
            raise InvalidArgument(
                f"the parameter {name} is {array.dtype}{list(array.shape)}, and the adapter has "
                f"{default.dtype}{list(default.shape)}"
            )
        found[name] = array
    return found
