"""Decides which nodes of a graph compute in a 16-bit type, and which stay in float32."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from sardonyx.base.records import field, frozen
from sardonyx.convert.rounded import Range
from sardonyx.graph.dtype import BF16, F16, F32, DType
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import ONNX, Slot, allowed
from sardonyx.save.node import written
from sardonyx.save.since import opset_of

# Ops that stay in float32 by default: integers beyond 2048 are not exact in float16 (positions,
# sums), scores decide which elements are taken, and trees compare with exact thresholds.
KEPT_OPS: Final = frozenset((
    "ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "CumSum", "DictVectorizer",
    "FeatureVectorizer", "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Max",
    "Min", "NonMaxSuppression", "Normalizer", "OneHotEncoder", "RandomUniformLike", "Range",
    "RoiAlign", "SVMClassifier", "SVMRegressor", "Scaler", "TopK", "TreeEnsemble",
    "TreeEnsembleClassifier", "TreeEnsembleRegressor", "Upsample", "ZipMap",
))  # fmt: skip
# Ops with float32 in their attributes or in the function that defines them, and reinterpreted bits.
_ALWAYS_KEPT: Final = frozenset(("BitCast", "MeanVarianceNormalization", "TreeEnsemble"))
# Inputs that stay in float32 though the op declares 16-bit types for them, as kernels read them so.
_KEPT_SLOTS: Final[Mapping[str, Collection[int]]] = {"GroupNorm": (1, 2), "SkipGroupNorm": (1, 2)}
# Ops that only move the elements of their first input: they compute in the type that it has.
_MOVES: Final = frozenset((
    "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
))  # fmt: skip
_CARRIES: Final = frozenset(("If", "Loop", "Scan"))  # their bodies are converted with them
_NEWEST: Final = 26  # opset up to which nodes may need a newer one: the newest of onnxruntime 1.31


@frozen
class HalfOptions:
    """Which type, and what keeps float32."""

    dtype: DType  # F16 or BF16
    keep_io: bool | frozenset[str] = False  # inputs and outputs that stay float32: all, or by name
    kept_ops: frozenset[str] = KEPT_OPS
    kept_nodes: frozenset[str] = frozenset()  # by name
    within: Range = field(default_factory=lambda: Range.of(F16))
    forces_weights: bool = False  # round weights that only nodes in float32 read as well
    forced_slots: Mapping[str, Collection[int]] = field(default_factory=dict)  # by op
    kept_dtype: DType = F32  # of the nodes that are kept: F32 or BF16
    opset: int = 0  # the opset of the result; 0: any that onnxruntime loads

    def keeps(self, name: str) -> bool:
        """Return whether an input or output of the model stays float32."""
        return self.keep_io if isinstance(self.keep_io, bool) else name in self.keep_io


class HalfPlan:
    """The decisions for one graph and its bodies."""

    def __init__(self, graph: Graph, options: HalfOptions, exits: Callable[[Value], bool]) -> None:
        """`exits` returns whether a value is an output of the model that stays float32."""
        self._options = options
        self._exits = exits
        # Slots that read float32: conversion changes the facts of values, and so what is asked.
        self.slots: Final[dict[Node, list[bool]]] = {
            node: [is_float(v) for v in node.inputs] for node in graph.all_nodes()
        }
        self._kept: dict[Node, None] = {}
        for each in graph.family():
            for node in each.nodes:
                owner = each.owner
                if (owner is not None and owner in self._kept) or self._is_kept(node):
                    self._kept[node] = None
        self._moves_kept = self._moves(graph)

    def is_kept(self, node: Node) -> bool:
        """Return whether a node stays in float32; one that moves elements, if they are float32."""
        if node in self._moves_kept:
            first = node.inputs[0]
            return first is None or not _is_half(first, self._options.dtype)
        return node in self._kept

    def wanted(self, node: Node, slot: int) -> DType | None:
        """Return the type that a slot reads instead of float32; None: whatever comes."""
        if not self.slots[node][slot]:
            return None
        formal = node.op.input_slot(slot)
        types = allowed(node.op, formal)
        if node.op.key == (ONNX, "Cast"):
            return None
        if slot in self._options.forced_slots.get(node.op.name, ()):
            return self._options.dtype
        if self.is_kept(node):
            return self._options.kept_dtype if self._options.kept_dtype in types else F32
        return self._options.dtype if self._takes_half(node, slot, formal) else F32

    def _takes_half(self, node: Node, slot: int, formal: Slot) -> bool:
        if slot in _KEPT_SLOTS.get(node.op.name, ()):
            return False
        return self._options.dtype in allowed(node.op, formal)

    def _is_kept(self, node: Node) -> bool:
        options, op = self._options, node.op
        if op.name in options.kept_ops | _ALWAYS_KEPT or node.name in options.kept_nodes:
            return True
        values = [*node.inputs, *node.outputs]
        if op.name in _CARRIES and op.domain == ONNX:
            return False
        if op.has_bodies or any(_has_container(v) for v in values):
            return True
        if op.domain != ONNX:
            return False
        newest = options.opset or _NEWEST
        return any(map(is_float, values)) and self._opset(node) > newest

    def _opset(self, node: Node) -> int:
        """Return the opset that a node needs with its float32 values in the 16-bit type."""
        values = {v: v.tensor for v in (*node.inputs, *node.outputs) if v and is_float(v)}
        for value, fact in values.items():
            value.fact = fact.with_dtype(self._options.dtype)
        try:
            return opset_of(node, written(node))
        finally:
            for value, fact in values.items():
                value.fact = fact

    def _moves(self, graph: Graph) -> set[Node]:
        """Return nodes that move elements, or make them of integers, for float32 readers only."""
        nodes = [n for n in graph.all_nodes() if _moves_floats(n) and n not in self._kept]
        found: set[Node] = set()
        n_before = -1
        while len(found) > n_before:
            n_before = len(found)
            for node in reversed(nodes):
                if node not in found and all(self._reads_float(v, found) for v in node.outputs):
                    found.add(node)
        return found

    def _reads_float(self, value: Value, found: set[Node]) -> bool:
        if value.n_exits and not self._exits(value):
            return False
        return all(
            node in self._kept
            or node in found
            or (node.op.key != (ONNX, "Cast") and self.slots[node][slot]
                and not self._takes_half(node, slot, node.op.input_slot(slot)))
            for node, slot in value.uses
        )  # fmt: skip


def is_float(value: Value | None) -> bool:
    """Return whether a value is a float32 tensor."""
    return value is not None and isinstance(value.fact, Fact) and value.fact.dtype is F32


def _is_half(value: Value, dtype: DType) -> bool:
    return isinstance(value.fact, Fact) and value.fact.dtype is dtype


def _moves_floats(node: Node) -> bool:
    if node.op.domain != ONNX or not node.outputs or not is_float(node.outputs[0]):
        return False
    return node.op.name in _MOVES or node.op.name == "Cast"


def _has_container(value: Value | None) -> bool:
    """Return whether a value is a container of float32, which no Cast converts."""
    fact = None if value is None else value.fact
    return not isinstance(fact, Fact) and _contains_float(fact)


def _contains_float(fact: AnyFact | None) -> bool:
    match fact:
        case Fact() | SparseFact():
            return fact.dtype is F32
        case SequenceFact() | OptionalFact():
            return _contains_float(fact.elem)
        case MapFact():
            return _contains_float(fact.value)
    return False


def half_type(name: str) -> DType | None:
    """Return the 16-bit type of a name: float16, fp16, f16, bfloat16, bf16."""
    names: dict[str, Sequence[str]] = {"f16": ("float16", "fp16"), "bf16": ("bfloat16",)}
    for dtype in (F16, BF16):
        if name in (dtype.name, *names[dtype.name]):
            return dtype
    return None
