"""Made-up networks, for packages that take any model: random weights, the same on every run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def network(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[type, Shape]],
    outputs: Mapping[str, Shape],
    weights: Mapping[str, Any],
) -> onnx.ModelProto:
    """A model of these nodes, whose outputs are of type float."""
    graph = helper.make_graph(
        nodes,
        "made up",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape
            )
            for name, (kind, shape) in inputs.items()
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random(seed: int, *shape: int) -> Any:
    """Weights of about the size that keeps signals as they are."""
    fan = int(np.prod(shape[1:])) or 1
    return (np.random.default_rng(seed).standard_normal(shape) / fan**0.5).astype(np.float32)


def convolutions(
    source: str, channels: Sequence[int], seed: int = 1
) -> tuple[list[Any], dict[str, Any]]:
    """Convolutions of 3x3 with a Relu each, the last of which makes `features`."""
    nodes, weights, value = [], {}, source
    for number, (old, new) in enumerate(itertools.pairwise(channels)):
        weights[f"w{number}"] = random(seed + number, new, old, 3, 3)
        result = "features" if number == len(channels) - 2 else f"r{number}"
        nodes += [
            helper.make_node("Conv", [value, f"w{number}"], [f"c{number}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{number}"], [result]),
        ]
        value = result
    return nodes, weights
