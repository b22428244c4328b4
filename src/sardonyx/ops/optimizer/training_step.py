"""The nodes of a training step: updates of parameters in place, and what these read.

`StepControl` decides once per run what all updates do: a vector of `CONTROL` that they read.
Parameters, their states, accumulated gradients and running statistics are inputs of the model,
which the nodes write to; the outputs `new_*` are these inputs after the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F64, FLOATS, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.arrays import Array, wide

# The elements of the vectors, as native/kernels/optimizer/params.h and training_step.cc have them.
SETTINGS: Final = ("lr", "count", "scale", "updates", "keep", "run")
CONTROL: Final = ("lr", "count", "factor", "updates", "keep", "writes")
_TYPES: Final = {"T": FLOATS, "D": frozenset((F64,)), "F": frozenset((U8,))}


def _op(
    name: str,
    inputs: str,
    outputs: str,
    attrs: Mapping[str, Any] | None = None,
    updates: Mapping[int, int] | None = None,
) -> Op:
    return Op(name, 1, inputs, outputs, attrs=attrs, types=_TYPES, domain=GRADIENT, updates=updates)


def _vector(fact: Fact, n: int, what: str) -> None:
    if fact.dims != (n,):
        raise InvalidGraph(f"the {what} must be {n} numbers, got {fact}")


def _same_shapes(g: Scope, a: Fact, *others: Fact | None) -> None:
    """Check that all tensors of a parameter have its shape."""
    for b in others:
        if b is None:
            continue
        if a.rank != b.rank:
            raise InvalidGraph(f"a parameter is {a}, and its gradient or state {b}")
        for x, y in zip(a.dims, b.dims, strict=True):
            g.equal(x, y, "a parameter and its gradient or state differ in shape")


control = _op(
    "StepControl", "settings:D loss:D norm:D?", "control:D", {"max_norm": -1.0, "skips": 0}
)


@control.infer
def _(g: Scope, settings: Fact, loss: Fact, norm: Fact | None, **attrs: Any) -> Fact:
    _vector(settings, len(SETTINGS), "settings of a step")
    for fact in (loss, norm):
        for size in () if fact is None else fact.dims:
            g.equal(size, 1, "the loss and the norm are one number")
    return Fact(F64, (len(CONTROL),))


@control.reference
def _(settings: Array, loss: Array, norm: Array | None, *, max_norm: float, skips: int) -> Array:
    lr, count, scale, updates, keep, _ = settings.tolist()
    total = 0.0 if norm is None else float(norm.reshape(())) * scale
    is_valid = bool(np.isfinite(total if skips else loss).all())
    clip = 1.0
    if norm is not None and max_norm >= 0:
        clip = max_norm / (total + 1e-6)
        clip = 1.0 if clip > 1 else clip
    writes = 1.0 if skips or is_valid else 0.0
    return np.array([lr, count, scale * clip, updates * is_valid, keep, writes])


norm = _op("GradientNorm", "grads:T*", "norm:D")


@norm.infer
def _(g: Scope, *grads: Fact) -> Fact:
    return Fact(F64, ())


@norm.reference
def _(*grads: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(sum(np.sum(wide(g) ** 2, dtype=np.float64) for g in grads)))


accumulate = _op("AccumulateGradient", "control:D sum:T grad:T", "new_sum:T", updates={0: 1})


@accumulate.infer
def _(g: Scope, control: Fact, total: Fact, grad: Fact) -> Fact:
    _vector(control, len(CONTROL), "controls")
    _same_shapes(g, total, grad)
    return total


@accumulate.reference
def _(control: Array, total: Array, grad: Array) -> Array:
    *_, keep, writes = control.tolist()
    if writes:
        total[...] = total + grad if keep else grad
    return total


store = _op("StoreState", "control:D state:T value:T", "written:F new_state:T", updates={1: 1})


@store.infer
def _(g: Scope, control: Fact, state: Fact, value: Fact) -> tuple[Fact, Fact]:
    _vector(control, len(CONTROL), "controls")
    _same_shapes(g, state, value)
    return Fact(U8, (1,)), state


@store.reference
def _(control: Array, state: Array, value: Array) -> tuple[Array, Array]:
    writes = control[-1] != 0
    if writes:
        state[...] = value
    return np.array([writes], np.uint8), state


def _update_facts(g: Scope, control: Fact, param: Fact, grad: Fact, *states: Any) -> Any:
    """Infer an update whose states have the shape of the parameter."""
    _vector(control, len(CONTROL), "controls")
    _same_shapes(g, param, grad, *states)
    return Fact(U8, (1,)), param, *(s for s in states if s is not None)


def _flag(updates: float) -> Array:
    return np.array([updates != 0], np.uint8)


_ADAM: Final = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "decoupled": 1}
adam = _op(
    "AdamUpdate",
    "control:D param:T grad:T mean:T square:T",
    "updated:F new_param:T new_mean:T new_square:T",
    _ADAM,
    {1: 1, 2: 3, 3: 4},
)


@adam.infer
def _(g: Scope, *facts: Fact, **_: Any) -> Any:
    return _update_facts(g, *facts)


@adam.reference
@np.errstate(all="ignore")
def _(
    control: Array, param: Array, grad: Array, mean: Array, square: Array, **attrs: Any
) -> tuple[Array, ...]:
    lr, count, factor, updates = control.tolist()[:4]
    if updates:
        beta1, beta2, decay = attrs["beta1"], attrs["beta2"], attrs["weight_decay"]
        p, g = wide(param), wide(grad) * factor
        if not attrs["decoupled"]:
            g = g + decay * p
        mean[...] = beta1 * wide(mean) + (1 - beta1) * g
        square[...] = beta2 * wide(square) + (1 - beta2) * (g * g)
        root = np.sqrt(wide(square)) / np.sqrt(1 - beta2**count)
        kept = p * (1 - lr * decay) if attrs["decoupled"] else p
        param[...] = kept - lr / (1 - beta1**count) * wide(mean) / (root + attrs["eps"])
    return _flag(updates), param, mean, square


sgd = _op(
    "SGDUpdate",
    "control:D param:T grad:T momentum_buffer:T?",
    "updated:F new_param:T new_momentum_buffer:T?",
    {"momentum": 0.0, "nesterov": 0, "weight_decay": 0.0},
    {1: 1, 2: 3},
)


@sgd.infer
def _(g: Scope, *facts: Any, **_: Any) -> Any:
    return _update_facts(g, *facts)


@sgd.reference
@np.errstate(all="ignore")
def _(
    control: Array, param: Array, grad: Array, buffer: Array | None, **attrs: Any
) -> tuple[Array, ...]:
    lr, _, factor, updates = control.tolist()[:4]
    if updates:
        g = wide(grad) * factor
        if attrs["weight_decay"]:
            g = g + attrs["weight_decay"] * wide(param)
        if buffer is not None:
            buffer[...] = attrs["momentum"] * wide(buffer) + g
            g = g + attrs["momentum"] * wide(buffer) if attrs["nesterov"] else wide(buffer)
        param[...] = wide(param) - lr * g
    return _flag(updates), param, *(() if buffer is None else (buffer,))


adafactor = _op(
    "AdafactorUpdate",
    "control:D param:T grad:T moments:T*",
    "updated:F new_param:T new_moments:T*",
    {"beta2_decay": -0.8, "eps1": -1.0, "eps2": 1e-3, "weight_decay": 0.0, "d": 1.0},
    {1: 1, 2: 3, 3: 4},
)


@adafactor.infer
def _(g: Scope, control: Fact, param: Fact, grad: Fact, *moments: Fact, **_: Any) -> Any:
    _vector(control, len(CONTROL), "controls")
    _same_shapes(g, param, grad)
    shapes = moment_shapes(param.dims)
    if len(moments) != len(shapes):
        raise InvalidGraph(f"the second moment of {param} is {len(shapes)} tensors")
    for shape, moment in zip(shapes, moments, strict=True):
        _same_shapes(g, param.shaped(shape), moment)
    return Fact(U8, (1,)), param, *moments


def moment_shapes(shape: Shape) -> tuple[Shape, ...]:
    """Return the shapes of Adafactor's second moment: by rows and by columns, or of a vector."""
    if len(shape) < 2:
        return (shape,)
    return (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])


@adafactor.reference
@np.errstate(all="ignore")
def _(
    control: Array,
    param: Array,
    grad: Array,
    *moments: Array,
    **attrs: Any,
) -> tuple[Array, ...]:
    lr, count, factor, updates = control.tolist()[:4]
    if not updates or not param.size:
        return _flag(updates), param, *moments
    p, g = wide(param), wide(grad) * factor
    weight = count ** attrs["beta2_decay"]
    eps1 = _epsilon(param.dtype) if attrs["eps1"] < 0 else attrs["eps1"]
    if len(moments) > 1:
        row, column = moments
        row[...] = _lerp(wide(row), np.mean(g * g, -1, keepdims=True), weight)
        column[...] = _lerp(wide(column), np.mean(g * g, -2, keepdims=True), weight)
        means = np.maximum(np.mean(wide(row), -2, keepdims=True), eps1)
        moment = wide(row) * wide(column) / means
    else:
        (square,) = moments
        square[...] = _lerp(wide(square), g * g, weight)
        moment = wide(square)
    update = g / np.sqrt(np.maximum(moment, eps1 * eps1))
    size = max(attrs["eps2"], float(np.sqrt(np.mean(p * p)))) * min(lr, 1 / np.sqrt(count))
    excess = max(1.0, float(np.sqrt(np.mean(update * update))) / attrs["d"])
    param[...] = p * (1 - lr * attrs["weight_decay"]) - size / excess * update
    return _flag(updates), param, *moments


def _epsilon(dtype: Any) -> float:
    """Return the machine epsilon of a float type."""
    import ml_dtypes  # costs milliseconds, and few parameters are updated by the reference

    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).eps)


def _lerp(old: Array, new: Array, weight: float) -> Array:
    return old + weight * (new - old)


UPDATES: Final = (adam, sgd, adafactor)
OPS: Final = (control, norm, accumulate, store, *UPDATES)
