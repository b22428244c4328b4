"""Detects export-time rewrites that change training semantics.

torch.onnx.export in its default mode folds BatchNormalization into Conv, drops Dropout, transposes
weights, and merges parameters that happen to have equal values into one initializer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from sardonyx.base.log import logger
from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, optional_input

_ANONYMOUS: Final = "onnx::"  # prefix of weights that torch's exporter computed
# The trainable inputs of layers.
_WEIGHT_SLOTS: Final = {
    "MatMul": (1,), "Gemm": (1, 2), "Conv": (1, 2), "ConvTranspose": (1, 2),
    "LayerNormalization": (1, 2), "BatchNormalization": (1, 2),
}  # fmt: skip
_N_SHOWN: Final = 4  # names per finding
_ADVICE: Final = (
    "export the model for training: torch.onnx.export(..., dynamo=False, "
    "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False); "
    "or train the torch module itself with sardonyx.train.wrap"
)


def warn_of_export(
    graph: Graph, weights: Collection[str], parameters: Collection[str] = ()
) -> None:
    """Log one warning with everything in a model to train that was exported for inference.

    `weights` are the names of its initializers, `parameters` those of the module that was exported.
    """
    found = findings(graph, weights, parameters)
    if found:
        lines = "".join(f"\n  - {finding}" for finding in found)
        logger.warning("the model was exported for inference:%s\n  %s", lines, _ADVICE)


def findings(graph: Graph, weights: Collection[str], parameters: Collection[str]) -> list[str]:
    """Return a sentence for each kind of change, with names."""
    groups = {
        "the exporter merged, folded or transposed these parameters, which the model lacks": (
            sorted(set(parameters) - set(weights))
        ),
        "these parameters had equal values and share one initializer, so they are trained as one": (
            _merged(graph, weights)
        ),
        "BatchNormalization was folded into these weights of convolutions": _folded(graph),
        "these weights were computed by the exporter and lost their names": _renamed(graph),
        "these weights are constants, not initializers, and are not trained": (
            _constants(graph, weights)
        ),
        "these BatchNormalization nodes use running statistics, not those of the batch": (
            str(n) for n in graph.all_nodes() if _is_inference_norm(n)
        ),
        "these Dropout nodes do nothing": _inactive_dropout(graph),
    }
    named = ((what, list(dict.fromkeys(names))) for what, names in groups.items())
    return [f"{what}: {_shown(names)}" for what, names in named if names]


def _shown(names: list[str]) -> str:
    more = len(names) - _N_SHOWN
    return ", ".join(names[:_N_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _layer_weights(graph: Graph) -> Iterator[tuple[Node, int, Value]]:
    """Yield every weight of a layer: the node, the slot, and the value."""
    for node in graph.all_nodes():
        for slot in _WEIGHT_SLOTS.get(node.op.name, ()):
            value = optional_input(node, slot)
            if value is not None:
                yield node, slot, value


def _merged(graph: Graph, weights: Collection[str]) -> Iterator[str]:
    # torch's exporter replaces a parameter by an Identity of the one with equal values.
    for node in graph.all_nodes():
        source = optional_input(node, 0)
        if node.op.name == "Identity" and source is not None and source.name in weights:
            yield f"{node.outputs[0].name} and {source.name}"
    # Other tools leave one initializer that layers of several modules read. A module that is called
    # twice has one scope, and shares its weights intentionally (tied weights).
    scopes: dict[tuple[Value, str, int], set[str]] = {}
    for node, slot, value in _layer_weights(graph):
        if value.name in weights and "/" in node.name:
            scope = node.name.rpartition("/")[0]
            scopes.setdefault((value, node.op.name, slot), set()).add(scope)
    for (value, _, _), used in scopes.items():
        if len(used) > 1:
            yield f"{value.name} in {' and '.join(sorted(used)[:2])}"


def _folded(graph: Graph) -> Iterator[str]:
    for node, slot, value in _layer_weights(graph):
        if "Conv" in node.op.name and slot == 1 and value.name.startswith(_ANONYMOUS):
            yield f"{value.name} of {node.name or node.op.name}"


def _renamed(graph: Graph) -> Iterator[str]:
    for node, _, value in _layer_weights(graph):
        if "Conv" not in node.op.name and value.name.startswith(_ANONYMOUS):
            yield f"{value.name} of {node.name or node.op.name}"


def _constants(graph: Graph, weights: Collection[str]) -> Iterator[str]:
    for node, _, value in _layer_weights(graph):
        is_float = isinstance(value.fact, Fact) and value.fact.dtype in FLOATS
        if is_float and value.is_const and value.tensor.shape and value.name not in weights:
            yield f"{value.name or 'a constant'} of {node.name or node.op.name}"


def _is_inference_norm(node: Node) -> bool:
    return node.op.name == "BatchNormalization" and not node.attrs.get("training_mode")


def _inactive_dropout(graph: Graph) -> Iterator[str]:
    for node in graph.all_nodes():
        if node.op.name == "Dropout":
            mode = optional_input(node, 2)
            const = None if mode is None else mode.const
            if mode is None or (const is not None and not const.read().any()):
                yield str(node)
        elif node.op.name == "Identity" and "dropout" in node.name.lower():
            yield str(node)
