"""Optimizers of ai.onnx.preview.training: one update of any number of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import F32, F64, I64
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import TRAINING, Op, required
from sardonyx.ops.arrays import Array, float32, one_int

# (rate, count, x, gradient, state...; attrs) -> new x, new state...
Update = Callable[..., tuple[Array, ...]]

_REALS: Final = frozenset((F32, F64))
_TYPES: Final = {"T1": _REALS, "T2": frozenset((I64,)), "T3": _REALS}


def optimizer(name: str, **attrs: Any) -> Op:
    """Declare an optimizer; its inputs are lists: values, gradients, then each state."""
    groups, update = UPDATES[name]
    slots = ("R:T1 T:T2 inputs:T3*", "outputs:T3*")
    op = Op(name, 1, *slots, domain=TRAINING, attrs=attrs, types=_TYPES, unranked=True)

    @op.infer
    def _(g: Scope, rate: Fact, count: Fact, *facts: Fact, **_: Any) -> tuple[Fact, ...]:
        n = _tensors(name, len(facts), groups)
        if rate.shape is not None:
            g.equal(product(rate.dims), 1, "the learning rate R is one number")
        for i, fact in enumerate(facts):
            first = facts[i % n]
            if fact.dtype is not first.dtype:
                raise InvalidGraph(f"input {i + 2} is {fact}, and the tensor it is for is {first}")
            _same_shape(g, fact, first)
        return tuple(f.without_contents() for f in (*facts[:n], *facts[2 * n :]))

    @op.reference
    def _(rate: Array, count: Array, *xs: Array, **hyperparameters: Any) -> tuple[Array, ...]:
        n = _tensors(name, len(xs), groups)
        step = one_int(count, "the update count T")
        updated = []
        with np.errstate(all="ignore"):
            for i in range(n):
                tensors = xs[i::n]  # a value, its gradient and its states
                dtype = tensors[0].dtype
                new = update(rate.reshape(()).astype(dtype), step, tensors, **hyperparameters)
                updated.append([a.astype(dtype) for a in new])
        # All values first, then all first states, and so on.
        return tuple(m[k] for k in range(groups - 1) for m in updated)

    return op


def _tensors(name: str, count: int, groups: int) -> int:
    if not count or count % groups:
        raise InvalidGraph(f"{name} needs {groups} inputs for each tensor, got {count}")
    return count // groups


def _same_shape(g: Scope, a: Fact, b: Fact) -> None:
    if a.shape is None or b.shape is None:
        return
    if a.rank != b.rank:
        raise InvalidGraph(
            f"a tensor and its gradient or state must have the same shape, got {b} and {a}"
        )
    for x, y in zip(a.shape, b.shape, strict=True):
        g.equal(x, y, "a tensor and its gradient or state differ in shape")


def _adagrad(
    rate: Array, count: int, xs: tuple[Array, ...], /, **attrs: float
) -> tuple[Array, ...]:
    x, gradient, squares = xs
    r = rate / (1 + count * attrs["decay_factor"])
    gradient = attrs["norm_coefficient"] * x + gradient
    squares = squares + gradient * gradient
    return x - r * gradient / (squares**0.5 + attrs["epsilon"]), squares


def _adam(rate: Array, count: int, xs: tuple[Array, ...], /, **attrs: float) -> tuple[Array, ...]:
    x, gradient, mean, squares = xs
    alpha, beta = attrs["alpha"], attrs["beta"]
    gradient = attrs["norm_coefficient"] * x + gradient
    mean = alpha * mean + (1 - alpha) * gradient
    squares = beta * squares + (1 - beta) * gradient * gradient
    if count > 0:  # Adam's bias correction of both moments
        correction = np.sqrt(1 - np.float64(beta) ** count) / (1 - np.float64(alpha) ** count)
        rate = rate * float(correction)
    x = x - rate * mean / (squares**0.5 + attrs["epsilon"])
    return (1 - attrs["norm_coefficient_post"]) * x, mean, squares


def _momentum(rate: Array, count: int, xs: tuple[Array, ...], /, **attrs: Any) -> tuple[Array, ...]:
    x, gradient, velocity = xs
    mode, alpha = attrs["mode"], attrs["alpha"]
    if mode not in (b"nesterov", b"standard"):
        raise InvalidGraph(f"mode must be nesterov or standard, got {mode!r}")
    gradient = attrs["norm_coefficient"] * x + gradient
    velocity = alpha * velocity + (attrs["beta"] if count > 0 else 1) * gradient
    # Nesterov's step looks ahead along the new velocity.
    direction = gradient + alpha * velocity if mode == b"nesterov" else velocity
    return x - rate * direction, velocity


# The number of input lists, and the update: operators only, which torch tensors have as well.
UPDATES: Final[dict[str, tuple[int, Update]]] = {
    "Adagrad": (3, _adagrad),
    "Adam": (4, _adam),
    "Momentum": (3, _momentum),
}
_EPSILON: Final = float32(1e-6)
_ADAM: Final = {"alpha": float32(0.9), "beta": float32(0.999), "norm_coefficient_post": 0.0}
_MOMENTUM: Final = {
    **dict.fromkeys(("alpha", "beta", "norm_coefficient"), required("float")),
    "mode": required("bytes"),
}
OPS: Final = (
    optimizer("Adagrad", decay_factor=0.0, epsilon=_EPSILON, norm_coefficient=0.0),
    optimizer("Adam", epsilon=_EPSILON, norm_coefficient=0.0, **_ADAM),
    optimizer("Momentum", **_MOMENTUM),
)
