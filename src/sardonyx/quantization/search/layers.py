"""The layers of a model: each a matmul or convolution with the light ops that follow it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from sardonyx.base.digest import blake2b
from sardonyx.base.records import frozen
from sardonyx.quantization.document import GraphDoc, ModelDoc, NodeDoc
from sardonyx.quantization.quant_types import FLOATS

HEAVY: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm")
TABLE: Final = "Gather"  # of constant rows: embeddings
_MIN_TABLE: Final = 1 << 14  # elements
# Ops that tolerate 8 bits; quantized, they keep the values between two layers in integers.
LIGHT: Final = (
    "Add", "AveragePool", "Clip", "Concat", "Flatten", "GlobalAveragePool", "HardSigmoid",
    "HardSwish", "LeakyRelu", "MaxPool", "Mul", "Pad", "Relu", "Reshape", "Resize", "Sigmoid",
    "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
ACTIVATIONS: Final = ("Clip", "Relu")  # which the range of their output replaces
MAX_GROUPS: Final = 64  # that are measured one by one


@frozen
class Layer:
    """A node with the light nodes after it, up to the next layers."""

    name: str
    op: str
    followers: tuple[str, ...]
    values: tuple[str, ...]  # that its nodes make
    weight_bytes: int  # of constants that it alone multiplies by
    weight_count: int  # their elements

    @property
    def nodes(self) -> tuple[str, ...]:
        """All names of nodes."""
        return (self.name, *self.followers)


def name_nodes(document: ModelDoc) -> None:
    """Give each node of the main graph a name of its own, by which it is chosen."""
    taken: set[str] = set()
    for i, node in enumerate(document.graph.nodes):
        name = node.name or f"{node.op_type}_{i}"
        while name in taken:
            name = f"{name}_{i}"
        node.name = name
        taken.add(name)


def layers_of(document: ModelDoc, types: dict[str, int]) -> list[Layer]:
    """Return the layers in the order of the nodes; `types` has the ONNX types of values."""
    graph = document.graph
    heavy: list[NodeDoc] = []
    followers: dict[int, list[NodeDoc]] = {}
    owner: dict[str, int] = {}  # by value
    for node in graph.nodes:
        before = max((owner[n] for n in node.inputs if n in owner), default=-1)
        if _is_heavy(graph, node, types):
            before = len(heavy)
            heavy.append(node)
            followers[before] = []
        elif node.op_type in LIGHT and before >= 0:
            followers[before].append(node)
        for name in node.outputs:
            owner[name] = before
    seen: set[str] = set()
    layers = []
    for i, node in enumerate(heavy):
        names = [n for n in _weights(graph, node) if n not in seen]
        seen.update(names)
        consts = [graph.initializers[n] for n in names]
        n_bytes = sum(c.count * c.dtype.itemsize for c in consts)
        count = sum(c.count for c in consts)
        light = followers[i]
        values = tuple(name for each in (node, *light) for name in each.outputs)
        names_of_light = tuple(each.name for each in light)
        layers.append(Layer(node.name, node.op_type, names_of_light, values, n_bytes, count))
    return layers


def _is_heavy(graph: GraphDoc, node: NodeDoc, types: dict[str, int]) -> bool:
    """Return whether a node is a float matmul or convolution, or gathers rows of a large table.

    Gemm and Conv need a constant weight.
    """
    if node.op_type == TABLE and not node.domain:
        table = graph.constant(node.inputs[0])
        is_floats = table is not None and table.dtype.onnx in FLOATS and len(table.shape) == 2
        return table is not None and is_floats and table.count >= _MIN_TABLE
    if node.op_type not in HEAVY or node.domain or types.get(node.inputs[0]) not in FLOATS:
        return False
    return node.op_type == "MatMul" or graph.constant(node.inputs[1]) is not None


def _weights(graph: GraphDoc, node: NodeDoc) -> list[str]:
    return [n for n in node.inputs[:2] if graph.constant(n) is not None]


def groups_of(layers: Sequence[Layer], most: int = MAX_GROUPS) -> list[tuple[Layer, ...]]:
    """Return neighbouring layers in at most so many groups of about equal size."""
    size = max(1, math.ceil(len(layers) / most))
    return [tuple(layers[i : i + size]) for i in range(0, len(layers), size)]


def names_digest(names: Collection[str]) -> str:
    """Return a short digest of the names of a set of layers."""
    return blake2b("\0".join(sorted(names)).encode(), digest_size=8).hexdigest() if names else ""
