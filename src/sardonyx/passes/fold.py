"""Folding: nodes over constants become recipes, and an If of known condition its branch."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.graph.const import Const, Held, Recipe, Ref, reshaped
from sardonyx.graph.constant import const_fact
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, detached
from sardonyx.graph.op import INTERNAL, MICROSOFT
from sardonyx.ops.builder import Builder, Operand

GROWTH_BELOW: Final = 2 << 20  # bytes; a larger result must not be larger than what it is made of

COPIED_BELOW: Final = 1 << 20  # bytes of a weight that has other readers, or of what is made of it

# A dequantized weight is several times its file, and the ops that read it can take it as it lies.
_KEPT: Final = frozenset(("DequantizeLinear",))
# They round sums of floats to bytes: where a sum lies half way between two, numpy and kernels may
# round to different ones, and constants would give other bytes than inputs.
_ROUNDING: Final = frozenset(
    (MICROSOFT, name)
    for name in (
        "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearGlobalAveragePool",
        "QLinearLeakyRelu", "QLinearMul", "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax",
    )
)  # fmt: skip
# What these make of a constant is the same bytes in another shape.
_RESHAPES: Final = frozenset(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))


def fold(node: Node, limit: int) -> bool:
    """Gives the outputs of a node over constants their constants; whether it could."""
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
    inputs: list[Const | None] = []
    for value in node.inputs:
        const = None if value is None else value.const
        if const is None and value is not None:
            return False
        inputs.append(const)
    facts = [v.fact for v in node.outputs]
    given = sum(c.size_bytes for c in inputs if c is not None)
    recipes: list[Const] = []
    for position, fact in enumerate(facts):
        if not isinstance(fact, Fact) or fact.static is None:
            return False
        recipe = Recipe(op, tuple(inputs), node.attrs, position, (fact.dtype, fact.static))
        if recipe.size_bytes > min(limit, max(GROWTH_BELOW, given)):
            return False
        recipes.append(recipe)
    if sum(r.size_bytes for r in recipes) > COPIED_BELOW and any(map(_is_shared, node.inputs)):
        return False
    for value, made in zip(node.outputs, recipes, strict=True):
        value.fact = const_fact(made)
    return True


def _same_bytes(node: Node) -> Const | None:
    """A place in a file that is only given another shape."""
    if node.op.domain or node.op.name not in _RESHAPES or node.inputs[0] is None:
        return None
    const, fact = node.inputs[0].const, node.outputs[0].fact
    if not isinstance(const, Ref) or not isinstance(fact, Fact) or fact.static is None:
        return None
    return reshaped(const, fact.static)


def _is_shared(value: Value | None) -> bool:
    """Whether a large constant has other readers: folding would add a copy, not replace it."""
    if value is None or value.const is None or len(value.uses) + value.n_exits < 2:
        return False
    is_made = isinstance(value.const, Recipe)  # and gone once all of its readers are folded
    return value.const.size_bytes > (GROWTH_BELOW if is_made else COPIED_BELOW)


class FoldingBuilder(Builder):
    """Builds as rules ask; what is made of constants alone is a constant, and never a node."""

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
        operands = self.operands(inputs)
        if all(v is None or v.const is not None for v in operands):
            op, _, filled = self.call(name, domain, attrs)
            folded = detached(self.graph, op, operands, filled, outputs)
            self.infer(folded, like)
            if fold(folded, self._limit):
                return folded
        return super().node(name, *operands, outputs=outputs, domain=domain, like=like, **attrs)


def _known_elements(node: Node) -> bool:
    """A result whose elements inference knows as numbers is a constant, whatever it was made of."""
    if len(node.outputs) != 1 or not node.op.is_pure:
        return False
    fact = node.outputs[0].fact
    if not isinstance(fact, Fact) or fact.ints is None or fact.static is None:
        return False
    try:
        array = np.array(fact.ints, fact.dtype.np).reshape(fact.static)
    except OverflowError:
        return False  # of a tensor too large to exist: the node will never run
    node.outputs[0].fact = const_fact(Held(array))
    return True


def inline(node: Node) -> tuple[list[Node], tuple[Value, ...]] | None:
    """An If whose condition is known, or was chosen for a run's sizes, gives way to its branch.

    Returns the branch's nodes, now where the If was, and the values that took the place of its own.
    """
    taken = _branch_taken(node)
    if taken is None:
        return None
    branch: Graph = node.attrs["then_branch" if taken else "else_branch"]
    outputs, graph = branch.outputs, node.graph
    moved = branch.sorted_nodes()
    for inner in moved:
        inner.marks = inner.marks if inner.marks != (0, False) else node.marks
    graph.adopt(moved)
    branch.set_outputs(())
    graph.scope.found.extend(branch.scope.found)
    inside = set(moved)
    for old, new in zip(node.outputs, outputs, strict=False):  # some need not be named
        if new.node in inside:
            new.name, old.name = old.name or new.name, ""
        graph.replace(old, new)
    return moved, outputs


def _branch_taken(node: Node) -> bool | None:
    cond = node.inputs[0] if node.op.name == "If" else None
    if cond is None:
        return None
    if cond.const is not None:
        # One that is no number is refused when it runs.
        return bool(cond.const.read().reshape(-1)[0]) if cond.const.count == 1 else None
    sizes = cond.tensor.sym
    return None if sizes is None or len(sizes) != 1 else node.graph.scope.chosen(sizes[0])
