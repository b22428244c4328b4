"""Activations of com.microsoft's fused ops, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import ONNX
from sardonyx.ops import lookup
from sardonyx.ops.arrays import Array
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import need

# Activation -> the attributes it needs, in the order of activation_params.
ACTIVATION_ATTRS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", "HardSwish"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"), ("alpha",)),
    **dict.fromkeys(("HardSigmoid", "ScaledTanh", "ParametricSoftplus"), ("alpha", "beta")),
    "Selu": ("alpha", "gamma"),
    "Clip": ("min", "max"),
}


def activation_function(
    name: bytes | None, params: dict[str, float | None]
) -> Callable[[Array], Array]:
    """Return the activation of a fused node as a function; the identity without a name."""
    if not name:
        return lambda x: x
    text = name.decode("utf-8", "replace")
    if text not in ACTIVATION_ATTRS:
        known = ", ".join(ACTIVATION_ATTRS)
        raise InvalidGraph(f"activation must be one of {known}, got {text}")
    names = ACTIVATION_ATTRS[text]
    missing = [k for k in names if params.get(k) is None]
    if missing:
        raise InvalidGraph(f"activation {text} needs a value for {' and '.join(missing)}")
    values: dict[str, Any] = {k: params[k] for k in names}
    if text == "Clip":
        return lambda x: np.clip(x, x.dtype.type(values["min"]), x.dtype.type(values["max"]))
    if text == "ScaledTanh":
        return lambda x: values["alpha"] * np.tanh(values["beta"] * x)
    if text == "ParametricSoftplus":
        return lambda x: values["alpha"] * np.logaddexp(values["beta"] * x, 0, dtype=x.dtype)
    op = lookup(ONNX, text)
    assert op is not None
    return lambda x: np.asarray(op.run((x,), values)[0])


def _times(b: Builder, x: Value, factor: float) -> Value:
    """A value multiplied by a number."""
    return b.Mul(x, b.const(factor, x.tensor.dtype))


def activated(b: Builder, x: Value, node: Node) -> Value:
    """A value after the activation of a fused op."""
    name = (node.attrs["activation"] or b"").decode("utf-8", "replace")
    need(not name or x.tensor.dtype.is_float, "an activation of integers")
    need(name != "Clip", "bounds that the node has no attributes for")
    return activation(
        b, x, name, {k: node.attrs[f"activation_{k}"] for k in ACTIVATION_ATTRS.get(name, ())}
    )


def activation(b: Builder, x: Value, name: str, values: dict[str, Any]) -> Value:
    """A value after an activation with these attributes; the value itself without a name."""
    if not name:
        return x
    # alpha * f(beta * x): no standard ops.
    if name == "ScaledTanh":
        return _times(b, b.Tanh(_times(b, x, values["beta"])), values["alpha"])
    if name == "ParametricSoftplus":
        return _times(b, b.Softplus(_times(b, x, values["beta"])), values["alpha"])
    if name == "Clip":
        return b.Clip(x, *(b.const(values[k], x.tensor.dtype) for k in ("min", "max")))
    return b.node(name, x, **values).outputs[0]
