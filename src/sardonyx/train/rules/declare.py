"""How rules are handed to ops: one by one, by tables, or as what an op is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.errors import InternalError
from sardonyx.graph.graph import Node, Value, given
from sardonyx.graph.op import ONNX, Gradient, Op
from sardonyx.ops import lookup
from sardonyx.train.backward import Backward, Parts

Unary = Callable[[Backward, Value, Value, Value], Value]  # builder, gradient, input, output


def declared(name: str, domain: str = ONNX) -> Op:
    """The op of a name."""
    op = lookup(domain, name)
    if op is None:
        raise InternalError(f"no op {domain}.{name} to have a gradient")
    return op


def gradient(*names: str, domain: str = ONNX) -> Callable[[Gradient], Gradient]:
    """Decorator: the rule of these ops."""

    def keep(rule: Gradient) -> Gradient:
        for name in names:
            declared(name, domain).gradient(rule)
        return rule

    return keep


def parts(
    *names: str, domain: str = ONNX, replaces: Callable[[Node], bool] = lambda _: False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: what these ops are made of, from which their gradients follow."""

    def keep(build: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            declared(name, domain).gradient(Parts(build, replaces))
        return build

    return keep


def unary(name: str, rule: Unary, domain: str = ONNX) -> None:
    """The rule of an op of one input, without attributes."""

    def run(b: Backward, node: Node, dy: Value) -> Value:
        return rule(b, dy, given(node, 0), node.outputs[0])

    declared(name, domain).gradient(run)


def saved(b: Backward, node: Node, slot: int) -> Value:
    """An output of a forward node that only its gradient needs; from now on the node makes it."""
    node.graph.add_outputs(node, (Value("") for _ in range(slot + 1 - len(node.outputs))))
    if node.outputs[slot].fact is None:
        b.infer(node, None)
    return node.outputs[slot]
