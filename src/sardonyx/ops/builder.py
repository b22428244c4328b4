"""Builds nodes by op name: `b.Add(x, 1.0)` adds the node, infers it and returns its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InternalError
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import I64, DType
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Attrs, Graph, Node, Value
from sardonyx.graph.guard import Scope
from sardonyx.graph.infer import infer_node
from sardonyx.graph.op import Op
from sardonyx.ops import lookup

Operand = Value | float | int | bool | None


class Builder:
    """Adds nodes to one graph; with a scope each is inferred immediately, else by a later stage."""

    __slots__ = ("graph", "new_nodes", "scope")

    def __init__(self, graph: Graph, scope: Scope | None = None) -> None:
        self.graph = graph
        self.scope = scope
        self.new_nodes: list[Node] = []  # added by this builder, in order

    def node(
        self,
        name: str,
        *inputs: Operand,
        outputs: int = 1,
        domain: str = "",
        like: Value | None = None,
        **attrs: Any,
    ) -> Node:
        """Add a node; absent attributes get the op's defaults.

        With `like`, the first output gets the type and shape of that value instead of inference.
        """
        op, _, filled = self.call(name, domain, attrs)
        node = self.graph.add(op, self.operands(inputs), filled, outputs)
        self.new_nodes.append(node)
        self.infer(node, like)
        return node

    def infer(self, node: Node, like: Value | None) -> None:
        """Set the facts of a new node: from the value `like`, or by the op's inference rule."""
        if like is not None and isinstance(like.fact, Fact):
            node.outputs[0].fact = like.fact.without_contents()
        elif self.scope is not None:
            infer_node(self.scope, node)

    def call(self, name: str, domain: str, attrs: Attrs) -> tuple[Op, str, Attrs]:
        """Return the op, node name and complete attributes of a new node."""
        op = lookup(domain, name)
        if op is None:
            raise InternalError(f"no op {domain}.{name} to build")
        return op, "", {**op.defaults, **attrs}

    def __getattr__(self, name: str) -> Callable[..., Value]:
        """`b.Relu(x)` adds a Relu and returns its first output; `node` gives access to others."""
        if not name[0].isupper():
            raise AttributeError(name)
        return lambda *inputs, **options: self.node(name, *inputs, **options).outputs[0]

    def const(self, array: Any, dtype: DType | None = None) -> Value:
        """Return a constant from numbers or an array."""
        return constant(ArrayConst(np.asarray(array, None if dtype is None else dtype.np)))

    def ints(self, *numbers: int) -> Value:
        """Return a constant int64 vector, the type of axes and shapes."""
        return constant(ArrayConst(np.array(numbers, np.int64)))

    def arange(self, count: Value) -> Value:
        """Return the integers from 0 to a scalar count, exclusive."""
        return self.Range(self.const(0, I64), count, self.const(1, I64))

    def element(self, vector: Value, i: int) -> Value:
        """Return one element of a vector, as a vector of length 1."""
        return self.Slice(vector, self.ints(i), self.ints(i + 1))

    def cast(self, x: Value, dtype: DType) -> Value:
        """A value in another element type."""
        return x if x.tensor.dtype is dtype else self.Cast(x, to=dtype.onnx)

    def operands(self, inputs: Sequence[Operand]) -> list[Value | None]:
        """Convert numbers among the operands to constants of the first tensor's type."""
        out: list[Value | None] = []
        for operand in inputs:
            if operand is None or isinstance(operand, Value):
                out.append(operand)
                continue
            first = next((v for v in inputs if isinstance(v, Value)), None)
            if first is None or not isinstance(first.fact, Fact):
                raise InternalError(f"no tensor operand determines the type of {operand}")
            out.append(self.const(operand, first.fact.dtype))
        return out
