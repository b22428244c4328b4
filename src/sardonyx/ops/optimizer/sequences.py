"""Optimizers of onnxruntime-training, over sequences of tensors, and its gradient accumulator.

A model of onnxruntime-training names no updated weights: it updates the arrays that it is fed.
Loading gives such nodes the op `...InPlace`; the other one returns new sequences. float32 tensors
are updated by the native kernels of `sardonyx.train.optim`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, ShapeError
from sardonyx.graph.dtype import BOOL, F32, FLOATS, I64
from sardonyx.graph.fact import AnyFact, Fact, SequenceFact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import GRADIENT, Op
from sardonyx.ops.arrays import Array, float32, wide
from sardonyx.ops.optimizer.native_step import adamw_step, sgd_step

_TYPES: Final = {"L": frozenset((F32,)), "I": frozenset((I64,)), "B": frozenset((BOOL,))}
_ADAM: Final = {
    "alpha": float32(0.9), "beta": float32(0.999), "epsilon": float32(1e-8),
    "weight_decay": float32(1e-2), "correct_bias": 1, "adam_mode": 0,
}  # fmt: skip
Lists = list[list[Array]]  # of weights and states, one array per parameter
# (rate, step, gradients, weights and states, attrs): updates the arrays in place
Update = Callable[[float, int, list[Array], Lists, dict[str, Any]], None]


def _optimizer(
    name: str, inputs: str, updated: dict[int, int], update: Update, attrs: dict[str, Any]
) -> tuple[Op, Op]:
    """Declare an optimizer in both forms; `updated` has the inputs that outputs are made of."""
    has_step = "step" in inputs
    outputs = " ".join(("updated_flag:B", *(f"updated{i}?" for i in updated)))

    def infer(g: Scope, rate: Fact, *facts: AnyFact | None, **_: Any) -> tuple[AnyFact, ...]:
        flag = facts[0] if has_step and isinstance(facts[0], Fact) else rate
        sequences = [(rate, *facts)[i] for i in updated.values()]
        if not all(isinstance(s, SequenceFact) for s in sequences):
            raise InvalidGraph(f"the weights and states of {name} are sequences")
        return flag.with_dtype(BOOL), *(s for s in sequences if s is not None)

    def declare(suffix: str, copies: Callable[[Any], list[Array]], is_in_place: bool) -> Op:
        op = Op(
            f"{name}{suffix}", 1, inputs, outputs, attrs=attrs, types=_TYPES, domain=GRADIENT,
            updates=updated if is_in_place else None,
        )  # fmt: skip
        op.infer(infer)

        @op.reference
        def _(rate: Array, *operands: Any, **given: Any) -> tuple[Any, ...]:
            step = operands[0] if has_step else None
            lists = [copies((rate, *operands)[i]) for i in updated.values()]
            grads, signal = list(operands[2 if has_step else 1]), operands[-1]
            _check_lists(name, grads, lists)
            is_updated = signal is None or bool(np.all(signal))
            if is_updated:
                count = 1 if step is None else int(step.reshape(-1)[0])
                update(float(rate.reshape(-1)[0]), count, grads, lists, given)
            like = rate if step is None else step
            return np.full(like.shape, is_updated), *lists

        return op

    copying = declare("", lambda arrays: [a.copy() for a in arrays], False)
    return copying, declare("InPlace", list, True)


def _check_lists(name: str, grads: list[Array], lists: Lists) -> None:
    """Raise if sequences differ in length, or tensors of a parameter in shape or type."""
    for each in lists:
        if len(each) != len(grads):
            raise ShapeError(f"{name} has {len(grads)} gradients and {len(each)} tensors for them")
        for i, (grad, tensor) in enumerate(zip(grads, each, strict=True)):
            if grad.shape != tensor.shape or grad.dtype != tensor.dtype:
                raise ShapeError(
                    f"gradient {i} of {name} is {grad.dtype}{list(grad.shape)}, and its weight or "
                    f"state {tensor.dtype}{list(tensor.shape)}"
                )


def _adamw(rate: float, step: int, grads: list[Array], lists: Lists, attrs: dict[str, Any]) -> None:
    fast, others = _split(grads, lists)
    if fast:
        adamw_step(fast, rate, step, attrs)
    beta1, beta2, decay = attrs["alpha"], attrs["beta"], attrs["weight_decay"]
    corrects = bool(attrs["correct_bias"])
    root = math.sqrt(1 - beta2**step) if corrects else 1.0
    # Mode 1 adds epsilon to the root of the moment before its correction, and decays last.
    is_mode1 = attrs["adam_mode"] == 1
    eps = attrs["epsilon"] / root if is_mode1 else attrs["epsilon"]
    for param, grad, mean, square in others:
        g, p = wide(grad), wide(param)
        mean[...] = beta1 * wide(mean) + (1 - beta1) * g
        square[...] = beta2 * wide(square) + (1 - beta2) * g * g
        scale = rate / (1 - beta1**step if corrects else 1.0)
        moved = scale * wide(mean) / (np.sqrt(wide(square)) / root + eps)
        kept = p if is_mode1 else p * (1 - rate * decay)
        param[...] = (kept - moved) * (1 - rate * decay) if is_mode1 else kept - moved


def _sgd(rate: float, step: int, grads: list[Array], lists: Lists, attrs: dict[str, Any]) -> None:
    fast, others = _split(grads, lists)
    if fast:
        sgd_step(fast, rate)
    for param, grad in others:
        param[...] = wide(param) - rate * wide(grad)


def _split(grads: list[Array], lists: Lists) -> tuple[Lists, Lists]:
    """Return weight, gradient and states of each parameter: those of float32, and all others."""
    fast: Lists = []
    others: Lists = []
    for grad, weight, *states in zip(grads, *lists, strict=True):
        is_fast = grad.dtype == np.float32
        tensors = [weight, np.ascontiguousarray(grad) if is_fast else grad, *states]
        (fast if is_fast else others).append(tensors)
    return fast, others


adamw, adamw_in_place = _optimizer(
    "AdamWSequences",
    "lr:L step:I weights gradients momentums_1 momentums_2 update_signal:B?",
    {1: 2, 2: 4, 3: 5},
    _adamw,
    _ADAM,
)
sgd, sgd_in_place = _optimizer(
    "SGDSequences", "lr:L weights gradients update_signal:B?", {1: 1}, _sgd, {}
)

clip = Op(
    "ClipSequence", 1, "gradients", "clipped", attrs={"max_norm": 1.0}, domain=GRADIENT
)  # fmt: skip


@clip.infer
def _(g: Scope, gradients: AnyFact, **_: Any) -> AnyFact:
    if not isinstance(gradients, SequenceFact):
        raise InvalidGraph(f"the gradients to clip must be a sequence, got {gradients}")
    return gradients


@clip.reference
def _(gradients: list[Array], *, max_norm: float) -> tuple[list[Array]]:
    squares = sum(float(np.sum(np.square(wide(g), dtype=np.float64))) for g in gradients)
    factor = min(max_norm / (math.sqrt(squares) + 1e-6), 1.0)
    return ([(wide(g) * wide(g).dtype.type(factor)).astype(g.dtype) for g in gradients],)


accumulate = Op(
    "AccumulateInPlace",
    1,
    "buffer:T value:T overwrite:B?",
    "updated:B new_buffer:T",
    types={"T": FLOATS, "B": frozenset((BOOL,))},
    domain=GRADIENT,
    updates={1: 0},
)


@accumulate.infer
def _(g: Scope, buffer: Fact, value: Fact, overwrite: Fact | None) -> tuple[Fact, Fact]:
    if buffer.rank != value.rank:
        raise ShapeError(f"{value} is added to {buffer}")
    for a, b in zip(buffer.dims, value.dims, strict=True):
        g.equal(a, b, "a gradient and the buffer it is added to differ in shape")
    for size in () if overwrite is None else overwrite.dims:
        g.equal(size, 1, "overwrite_flag is one bool")
    return Fact(BOOL, (1,)), buffer


@accumulate.reference
def _(buffer: Array, value: Array, overwrite: Array | None) -> tuple[Array, Array]:
    is_new = overwrite is not None and bool(overwrite.reshape(-1)[0])
    buffer[...] = value if is_new else wide(buffer) + wide(value)
    return np.ones(1, bool), buffer


OPS: Final = (adamw, adamw_in_place, sgd, sgd_in_place, clip, accumulate)
