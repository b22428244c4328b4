"""The linear layers of a model that adapters go next to, found by names of weights or nodes."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from sardonyx.autodiff.export_signature import exported_parameters
from sardonyx.base.records import frozen, replace
from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import F64, FLOATS, DType
from sardonyx.graph.graph import Graph, Node, Value, input_of, optional_input
from sardonyx.graph.infer import infer
from sardonyx.load import load
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.ops.builder import Builder

# Ops between a stored weight and the product that reads it.
_STEPS: Final = frozenset(("Cast", "DequantizeLinear", "Identity", "Transpose"))
# Ops over quantized weights: K and N are attributes.
_QUANTIZED: Final = frozenset(("MatMulNBits", "MatMulBnb4"))
_BIAS_SLOT: Final = {"Gemm": 2, "MatMulNBits": 5}
_ANONYMOUS: Final = "onnx::"  # what torch calls weights that it transposed
_N_SHOWN: Final = 5  # names in a message


def editable(source: Any) -> Model:
    """Return an inferred model that may be changed, from anything that a session accepts.

    A source that is read several times is given as `ModelBytes`.
    """
    data = source if isinstance(source, ModelBytes) else read_model(source)
    model = load(data)
    if data.model is None:
        model.exported_parameters = exported_parameters(data.source.data)
    infer(model.graph, assumes=False)
    lists = {name: list(getattr(model, name)) for name in ("inputs", "outputs", "overridable")}
    return replace(model, **lists)


@frozen(eq=False)
class LinearNode:
    """A product x W of one node, with a constant W [K, N] that may be quantized."""

    node: Node
    weight_name: str
    k: int
    n: int

    @property
    def x(self) -> Value:
        """The activations."""
        return input_of(self.node, 0)

    @property
    def dtype(self) -> DType:
        """The type of the activations, and so of adapter parameters."""
        return self.x.tensor.dtype

    @property
    def precision(self) -> np.dtype[Any]:
        """The type that weights, adapters and norms are combined in."""
        return np.dtype(np.float64 if self.dtype is F64 else np.float32)

    @property
    def bias(self) -> Value | None:
        """The bias that the node adds."""
        slot = _BIAS_SLOT.get(self.node.op.name)
        return None if slot is None else optional_input(self.node, slot)

    @property
    def is_quantized(self) -> bool:
        """Whether the weight is stored in a quantized type."""
        return self.node.op.name in _QUANTIZED or self.dequantize is not None

    @property
    def dequantize(self) -> Node | None:
        """The DequantizeLinear of the weight; None if it has none."""
        value: Value | None = input_of(self.node, 1)
        while value is not None and value.node is not None:
            if value.node.op.name == "DequantizeLinear":
                return value.node
            value = input_of(value.node, 0)
        return None

    def product(self, b: Builder, x: Value, **attrs: Any) -> Value:
        """Add the product of other activations with the same weight, without a bias."""
        node, slot = self.node, _BIAS_SLOT.get(self.node.op.name)
        inputs = [x, *node.inputs[1:slot]]
        options = {k: v for k, v in {**node.attrs, **attrs}.items() if k in node.op.attrs}
        return b.node(node.op.name, *inputs, domain=node.op.domain, **options).outputs[0]

    def dense(self) -> Array:
        """Return W [K, N] in `precision`, dequantized and times the node's alpha."""
        op, attrs = self.node.op, self.node.attrs
        if op.name in _QUANTIZED:
            stored = [_evaluated(v) for v in self.node.inputs[1 : _BIAS_SLOT.get(op.name)]]
            eye = np.eye(self.k, dtype=np.float32)
            return np.asarray(op.run([eye, *stored], attrs)[0], self.precision)
        weight = np.asarray(_evaluated(input_of(self.node, 1)), self.precision)
        if attrs.get("transB"):
            weight = weight.T
        return np.asarray(weight * attrs.get("alpha", 1.0), self.precision)


def _evaluated(value: Value | None) -> Array | None:
    """Return the contents of a constant, or of what the steps above make of one."""
    if value is None:
        return None
    const = _stored(value)
    if const is not None:
        return const.read()
    assert value.node is not None
    arrays = [_evaluated(v) for v in value.node.inputs]
    array: Array = value.node.op.run(arrays, value.node.attrs)[value.index]
    return array


def _stored(value: Value) -> Const | None:
    """Return the constant of a value, or the default of an overridable input."""
    if value.const is not None or value.node is not None or not value.uses:
        return value.const
    return value.uses[0][0].graph.defaults.get(value)


def _root(value: Value) -> Value | None:
    """Return the constant from which a weight is computed; None if it depends on anything else."""
    while value.node is not None and value.const is None:
        node = value.node
        constants = (v for v in node.inputs[1:] if v is not None)
        if node.op.name not in _STEPS or any(_stored(v) is None for v in constants):
            return None
        value = input_of(node, 0)
    return value if _stored(value) is not None else None


def linear_of(node: Node) -> LinearNode | str:
    """Return the product of a node with a constant weight, or why it is none."""
    name, attrs = node.op.name, node.attrs
    if node.graph.owner is not None:
        return f"it is in the body of {node.graph.owner}"
    if name not in ("MatMul", "Gemm", *_QUANTIZED):
        return f"{name} has no adapters"
    root = _root(input_of(node, 1))
    if root is None:
        return "its second input is not a constant weight"
    if input_of(node, 0).tensor.dtype not in FLOATS:
        return f"its activations are {input_of(node, 0).tensor}"
    if name in _QUANTIZED:
        if not attrs.get("transB", 1):
            return "its weight is stored in another order"
        if any(v is not None and _stored(v) is None for v in node.inputs[1:5]):
            return "its scales or zero points are not constants"
        return LinearNode(node, root.name, attrs["K"], attrs["N"])
    shape = input_of(node, 1).tensor.static
    if shape is None or len(shape) != 2 or attrs.get("transA"):
        return "its weight is not a matrix on the right"
    k, n = reversed(shape) if attrs.get("transB") else shape
    return LinearNode(node, root.name, k, n)


def find(graph: Graph, patterns: Sequence[str]) -> dict[str, list[LinearNode]]:
    """Return the linear layers that patterns match, by label; layers of one adapter are together.

    A pattern, as of a shell (`*`, `?`, `[a-z]`), matches the name of a weight or of a node.
    """
    if isinstance(patterns, str):
        patterns = [patterns]
    groups = by_label(graph)
    linears = [layer for layers in groups.values() for layer in layers]
    chosen: set[str] = set()
    for pattern in patterns:
        matches = [label for label, layers in groups.items() if _match_any(pattern, layers)]
        if not matches:
            raise _no_match(graph, linears, pattern)
        chosen.update(matches)
    if not chosen:
        raise InvalidArgument("targets name nothing", hint='give patterns, as ["*q_proj*"]')
    return {label: layers for label, layers in groups.items() if label in chosen}


def by_label(graph: Graph) -> dict[str, list[LinearNode]]:
    """Return all linear layers by the labels of their adapters.

    Layers that read one weight in the same way have one adapter. Its label is the name of the
    weight, or that of the node if an exporter left no name; where layers read a weight in several
    ways, as a tied weight and its transpose, the second has the label `<weight>.2`, and so on.
    """
    groups: dict[Any, list[LinearNode]] = {}
    for node in graph.all_nodes():
        layer = linear_of(node)
        if isinstance(layer, LinearNode):
            groups.setdefault((layer.weight_name, *_reading(layer)), []).append(layer)
    taken = {layers[0].weight_name for layers in groups.values()}
    found: dict[str, list[LinearNode]] = {}
    for layers in groups.values():
        found[_label(layers[0], found, taken)] = layers
    return found


def _label(layer: LinearNode, found: Collection[str], taken: Collection[str]) -> str:
    """A label that no other group has, nor could have by the name of its weight."""
    name, weight = layer.node.name, layer.weight_name
    label = name if name and weight.startswith(_ANONYMOUS) else weight
    if label not in found:
        return label
    numbered = (f"{label}.{i}" for i in itertools.count(2))
    return next(n for n in numbered if n not in found and n not in taken)


def _reading(layer: LinearNode) -> tuple[Any, ...]:
    """What lies between a stored weight and W, equal for layers that compute with the same W."""
    node = layer.node
    if node.op.name in _QUANTIZED:
        constants = node.inputs[2 : _BIAS_SLOT.get(node.op.name)]
        return node.op.name, repr(sorted(node.attrs.items())), *constants
    steps: list[Any] = [bool(node.attrs.get("transB")), node.attrs.get("alpha", 1.0)]
    value = input_of(node, 1)
    while value.node is not None and value.const is None:
        step = value.node
        steps += [step.op.name, repr(sorted(step.attrs.items())), *step.inputs[1:]]
        value = input_of(step, 0)
    return tuple(steps)


def _match_any(pattern: str, layers: Sequence[LinearNode]) -> bool:
    return any(_matches(pattern, (layer.weight_name, layer.node.name)) for layer in layers)


def _matches(pattern: str, names: Iterable[str]) -> bool:
    return any(name and (name == pattern or fnmatchcase(name, pattern)) for name in names)


def _no_match(graph: Graph, linears: Sequence[LinearNode], pattern: str) -> InvalidArgument:
    """Return the error for a pattern that matches no layer, with similar names."""
    for node in graph.all_nodes():
        names = [node.name, *(v.name for v in node.inputs if v is not None and v.is_const)]
        reason = linear_of(node)
        if isinstance(reason, str) and _matches(pattern, names):
            return InvalidArgument(
                f"{pattern!r} matches {node}, which takes no adapter: {reason}",
                hint="adapters go next to MatMul, Gemm, MatMulNBits and MatMulBnb4",
            )
    names = list(dict.fromkeys(n for x in linears for n in (x.weight_name, x.node.name) if n))
    if not names:
        return InvalidArgument("the model has no linear layer with a constant weight")
    near = difflib.get_close_matches(pattern.strip("*"), names, _N_SHOWN, 0.3)
    core = pattern.strip("*?").lower()
    near = [n for n in names if core and core in n.lower()][:_N_SHOWN] or near or names[:_N_SHOWN]
    return InvalidArgument(
        f"{pattern!r} matches no weight and no node of a linear layer",
        near=", ".join(near),
        hint=f"the model has {len(linears)} linear layers; patterns are those of a shell",
    )
