"""Constant folding: nodes over constants become recipes; a decided If becomes its branch.

A recipe records the op and its constant inputs and is evaluated when the bytes are needed, so
folding reads no weights from disk.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.const import ArrayConst, Const, Recipe, SourceConst, reshaped
from sardonyx.graph.constant_values import const_fact
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, detached
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.builder import Builder, Operand

# Bytes. Folding may enlarge constants up to this size (an Expand of a scalar); a larger result must
# not exceed its inputs, or the model would need more memory than its file.
GROWTH_BELOW: Final = 2 << 20
# Bytes. A larger constant with other readers would stay in memory next to the folded copy.
COPIED_BELOW: Final = 1 << 20
# Bytes. For passes whose folded weights (dequantized, concatenated) may have any size.
NO_LIMIT: Final = 1 << 40

# A dequantized weight is several times its stored size, and matmuls read the stored bytes directly.
_KEPT: Final = frozenset(("DequantizeLinear",))
# They round float32 results to 8 bits. At ties numpy and the kernels may round to different
# integers, and a result must not depend on whether an input is constant.
_ROUNDING: Final = frozenset(
    (MICROSOFT, name)
    for name in (
        "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearGlobalAveragePool",
        "QLinearLeakyRelu", "QLinearMul", "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax",
    )
)  # fmt: skip
# Their results are the same bytes in another shape: no recipe is needed.
_RESHAPES: Final = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))


def fold(node: Node, limit: int) -> bool:
    """Make the outputs of a node over constants constant; return whether it was possible.

    `limit` is the largest size of a folded constant in bytes; 0 folds known elements only.
    """
    if _known_elements(node):
        return True
    op = node.op
    if limit == 0 or not op.is_pure or op.has_bodies or op.domain == INTERNAL:
        return False
    if op.name in _KEPT or op.key in _ROUNDING:
        return False
    if (same := _same_bytes(node)) is not None:
        node.outputs[0].fact = const_fact(same)
        return True
    if (recipes := _recipes(node, limit)) is None:
        return False
    for value, recipe in zip(node.outputs, recipes, strict=True):
        value.fact = const_fact(recipe)
    return True


def _recipes(node: Node, limit: int) -> list[Const] | None:
    """A recipe for each output of a node; None if an input varies or an output is too large."""
    for v in node.inputs:  # of most nodes one varies
        if v is not None and v.const is None:
            return None
    inputs = tuple(None if v is None else v.const for v in node.inputs)
    largest = min(limit, max(GROWTH_BELOW, sum(c.size_bytes for c in inputs if c is not None)))
    recipes: list[Const] = []
    for position, value in enumerate(node.outputs):
        fact = value.fact
        if not isinstance(fact, Fact) or fact.static is None:
            return None
        recipe = Recipe(node.op, inputs, node.attrs, position, (fact.dtype, fact.static))
        if recipe.size_bytes > largest:
            return None
        recipes.append(recipe)
    is_large = sum(r.size_bytes for r in recipes) > COPIED_BELOW
    return None if is_large and any(map(_is_shared, node.inputs)) else recipes


def _same_bytes(node: Node) -> Const | None:
    """A constant in a file with another shape, if the node changes only that."""
    if node.op.domain or node.op.name not in _RESHAPES or node.inputs[0] is None:
        return None
    const, fact = node.inputs[0].const, node.outputs[0].fact
    if not isinstance(const, SourceConst) or not isinstance(fact, Fact) or fact.static is None:
        return None
    return reshaped(const, fact.static)


def _is_shared(value: Value | None) -> bool:
    """Whether a large constant has other readers: folding would add a copy of it."""
    if value is None or value.const is None or len(value.uses) + value.n_exits < 2:
        return False
    # A recipe disappears once all of its readers are folded; bytes of the file stay.
    is_recipe = isinstance(value.const, Recipe)
    return value.const.size_bytes > (GROWTH_BELOW if is_recipe else COPIED_BELOW)


class FoldingBuilder(Builder):
    """A builder that folds: an op over constants becomes a constant instead of a node."""

    __slots__ = ("_limit",)

    def __init__(self, graph: Graph, limit: int) -> None:
        super().__init__(graph, graph.scope)
        self._limit = limit

    def node(
        self,
        name: str,
        *inputs: Operand,
        outputs: int = 1,
        domain: str = "",
        like: Value | None = None,
        **attrs: Any,
    ) -> Node:
        """Like `Builder.node`; a folded node is returned detached from the graph."""
        operands = self.operands(inputs)
        if all(v is None or v.const is not None for v in operands):
            op, _, filled = self.call(name, domain, attrs)
            folded = detached(self.graph, op, operands, filled, outputs)
            self.infer(folded, like)
            if fold(folded, self._limit):
                return folded
        return super().node(name, *operands, outputs=outputs, domain=domain, like=like, **attrs)


def _known_elements(node: Node) -> bool:
    """Make an output constant whose elements inference knows, whatever computes it."""
    if len(node.outputs) != 1 or not node.op.is_pure:
        return False
    fact = node.outputs[0].fact
    if not isinstance(fact, Fact) or fact.ints is None or fact.static is None:
        return False
    try:
        array = np.array(fact.ints, fact.dtype.np).reshape(fact.static)
    except OverflowError:
        return False  # a tensor too large to exist: the node never runs
    node.outputs[0].fact = const_fact(ArrayConst(array))
    return True


def inline(node: Node) -> tuple[list[Node], tuple[Value, ...]] | None:
    """Replace an If with a known condition, or one chosen for a run's sizes, by its branch.

    Returns the nodes of the branch, now in the graph of the If, and the values that replace its
    outputs; None if the condition is unknown.
    """
    condition = _known_condition(node)
    if condition is None:
        return None
    branch: Graph = node.attrs["then_branch" if condition else "else_branch"]
    outputs, graph = branch.outputs, node.graph
    moved = branch.sorted_nodes()
    for inner in moved:
        if inner.annotations == (0, False):  # none of its own
            inner.annotations = node.annotations
    graph.adopt(moved)
    branch.set_outputs(())
    # Conditions on sizes inside the branch now hold for the whole graph.
    graph.scope.guards.extend(branch.scope.guards)
    inside = set(moved)
    for old, new in zip(node.outputs, outputs, strict=False):  # trailing outputs may be left out
        if new.node in inside:
            new.name, old.name = old.name or new.name, ""
        graph.replace(old, new)
    return moved, outputs


def _known_condition(node: Node) -> bool | None:
    """The condition of an If; None if it is unknown or the node is not an If."""
    cond = node.inputs[0] if node.op.name == "If" else None
    if cond is None:
        return None
    if cond.const is not None:
        # A condition with several elements is an error, which execution reports.
        return bool(cond.const.read().reshape(-1)[0]) if cond.const.count == 1 else None
    sizes = cond.tensor.sym
    return None if sizes is None or len(sizes) != 1 else node.graph.scope.chosen(sizes[0])
