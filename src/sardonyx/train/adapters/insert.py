"""Adapter subgraphs next to linear layers: LoRA, DoRA and (IA)³.

Every kind leaves the frozen weight as it is stored, and has no effect at its initial parameters.
With x the activations, W the weight, c the bias and s = alpha / rank:

    lora  y = x W + s (x A) B + c                              B starts at 0
    dora  y = m / |W + s A B| (x W + s (x A) B) + c            m starts at |W|, by columns
    ia3   y = l (x W) + c                                      l starts at 1

Models for inference take parameters with s and the norms folded in: A, s B, and m / |W + s A B|.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.dtype import F32, F64
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Value
from sardonyx.load.model import Declared, Model
from sardonyx.ops.builder import Builder
from sardonyx.passes.replace import attribute_to, replace_value
from sardonyx.train.adapters.targets import LinearNode

DOWN, UP, MAGNITUDE, SCALE = ".lora_A", ".lora_B", ".magnitude", ".scale"
KINDS: Final = ("lora", "dora", "ia3")


@frozen
class AdapterRecipe:
    """What is inserted next to each layer."""

    kind: str
    rank: int
    scale: float
    seed: int

    def initial(self, label: str, layer: LinearNode, position: int) -> dict[str, Array]:
        """Return the parameters of a layer before training, which have no effect."""
        dtype = layer.dtype.np
        if self.kind == "ia3":
            return {label + SCALE: np.ones(layer.n, dtype)}
        # As PEFT does: A is uniform with the variance 1 / (3 K) of torch.nn.Linear's weights.
        rng, bound = np.random.default_rng((self.seed, position)), layer.k**-0.5
        down = rng.uniform(-bound, bound, (layer.k, self.rank)).astype(dtype)
        found = {label + DOWN: down, label + UP: np.zeros((self.rank, layer.n), dtype)}
        if self.kind == "dora":
            found[label + MAGNITUDE] = np.sqrt(_squared_norms(layer)).astype(dtype)
        return found

    def folded(
        self, label: str, layer: LinearNode, trained: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Return the parameters of a layer as models for inference take them."""
        if self.kind == "ia3":
            return {label + SCALE: trained[label + SCALE]}
        dtype, precision = layer.dtype.np, layer.precision
        down, up = trained[label + DOWN], trained[label + UP].astype(precision) * self.scale
        found = {label + DOWN: down, label + UP: up.astype(dtype)}
        if self.kind == "dora":
            norms = np.linalg.norm(layer.dense() + down.astype(precision) @ up, axis=0)
            magnitude = trained[label + MAGNITUDE].astype(precision)
            found[label + SCALE] = (magnitude / norms).astype(dtype)
        return found

    def neutral(self, label: str, layer: LinearNode) -> dict[str, Array]:
        """Return folded parameters that have no effect: the defaults for inference."""
        dtype = layer.dtype.np
        found = {}
        if self.kind != "ia3":
            found[label + DOWN] = np.zeros((layer.k, self.rank), dtype)
            found[label + UP] = np.zeros((self.rank, layer.n), dtype)
        if self.kind != "lora":
            found[label + SCALE] = np.ones(layer.n, dtype)
        return found


def _squared_norms(layer: LinearNode) -> Array:
    """The squared norm of each column of a weight."""
    weight = layer.dense()
    if not weight.any(axis=0).all():
        raise InvalidArgument(
            f"a column of {layer.weight_name} is 0, and DoRA divides by its norm",
            hint='use kind="lora", or leave this weight out of the targets',
        )
    return np.asarray(np.sum(weight * weight, axis=0, dtype=layer.precision))


def add_parameters(model: Model, arrays: Mapping[str, Array]) -> dict[str, Value]:
    """Make parameters inputs of a model, with their values as defaults."""
    taken = {v.name for v in model.graph.all_values()}
    found = {}
    for name, array in arrays.items():
        if name in taken:
            raise InvalidArgument(
                f"the model already has a value {name}",
                hint="merge the first adapter, or adapt the model as it was before",
            )
        const = ArrayConst(array)
        value = Value(name, Fact(const.dtype, const.shape))
        model.graph.add_input(value, const)
        model.overridable.append(Declared(name, value.fact, const.shape))
        found[name] = value
    return found


def insert(
    layers: Sequence[LinearNode], label: str, parameters: Mapping[str, Value], scale: float = 1.0
) -> None:
    """Add the adapter of one weight to all its layers; `scale` is the factor of A B."""
    down, up = parameters.get(label + DOWN), parameters.get(label + UP)
    magnitude, factor = parameters.get(label + MAGNITUDE), parameters.get(label + SCALE)
    for layer in layers:
        b = Builder(layer.node.graph, layer.node.graph.scope)
        scales_output = magnitude is not None or factor is not None
        y = layer.product(b, layer.x) if scales_output else _whole(b, layer)
        if down is not None and up is not None:
            y = b.Add(y, b.MatMul(_scaled(b, b.MatMul(layer.x, down), scale), up))
            if magnitude is not None:
                factor = b.Div(magnitude, _norms(b, layer, (down, up), scale))
        if factor is not None:
            y = b.Mul(y, factor)
        if scales_output and layer.bias is not None:
            y = b.Add(y, _scaled(b, layer.bias, layer.node.attrs.get("beta", 1.0)))
        attribute_to(b.new_nodes, layer.node)
        replace_value(layer.node.graph, layer.node.outputs[0], y)
        layer.node.graph.remove(layer.node)


def _whole(b: Builder, layer: LinearNode) -> Value:
    """A copy of the layer's node."""
    op, node = layer.node.op, layer.node
    return b.node(op.name, *node.inputs, domain=op.domain, **node.attrs).outputs[0]


def _scaled(b: Builder, x: Value, scale: float) -> Value:
    return x if scale == 1 else b.Mul(x, scale)


def _norms(b: Builder, layer: LinearNode, factors: tuple[Value, Value], scale: float) -> Value:
    """The norm of each column of W + s A B, without W as a float matrix.

    |W + s A B|² = |W|² + 2 s B ∘ (Aᵀ W) + s² B ∘ (Aᵀ A B), summed over rows: products of `rank`
    rows, for which quantized weights are read as they are stored. In float16 a square overflows at
    a norm of 256, so that those of 16-bit types are float32.
    """
    transposed = b.Transpose(factors[0], perm=(1, 0))
    # Levels from 2 on round activations; norms are computed in full precision.
    projected = layer.product(b, transposed, accuracy_level=1)
    dtype = F64 if layer.dtype is F64 else F32
    down, up, transposed, projected = (b.cast(v, dtype) for v in (*factors, transposed, projected))
    gram = b.MatMul(b.MatMul(transposed, down), up)
    mixed = b.Add(b.Mul(projected, 2 * scale), b.Mul(gram, scale * scale))
    crossed = b.ReduceSum(b.Mul(up, mixed), b.ints(0), keepdims=0)
    norms = b.Sqrt(b.Add(crossed, b.const(_squared_norms(layer), dtype)))
    return b.cast(norms, layer.dtype)
