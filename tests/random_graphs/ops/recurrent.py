"""Recurrences."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder
from tests.random_graphs.ops.draw import Generator, types
from tests.random_graphs.value import Value

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = ("Tanh", "Relu", "Sigmoid", "Softsign", "HardSigmoid", "Affine", "LeakyRelu")


def recurrence(b: Builder, op: str) -> None:
    kinds = [t for t in types(b, op) if t != "bfloat16"]
    x = b.pick(kinds, lambda v: v.rank == 3 and 0 not in v.shape, lambda: b.new_shape(3))
    time, batch, width = x.shape
    hidden = b.rng.choice((1, 2, 3, 4, 8, 17))
    direction = b.rng.choice(("forward", "forward", "reverse", "bidirectional"))
    d, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    inputs: list[Value | None] = [
        x, _weight(b, x, (d, gates * hidden, width)), _weight(b, x, (d, gates * hidden, hidden)),
    ]  # fmt: skip
    inputs.append(_maybe(b, x, (d, 2 * gates * hidden)))
    lengths = None
    if b.rng.random() < 0.3:
        lengths = b.given(b.numbers.integers(1, time + 1, batch).astype(np.int32))
    inputs.append(lengths)
    inputs.append(_maybe(b, x, (d, batch, hidden)))
    if op == "LSTM":
        inputs.append(_maybe(b, x, (d, batch, hidden)))
        inputs.append(_maybe(b, x, (d, 3 * hidden)))
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU" and b.rng.random() < 0.5:
        attrs["linear_before_reset"] = 1
    if b.rng.random() < 0.15:
        attrs["clip"] = b.rng.choice((0.5, 2.0))
    if b.rng.random() < 0.15 and op == "RNN":
        attrs["activations"] = [b.rng.choice(ACTIVATIONS[:4]) for _ in range(d)]
    b.emit(op, inputs, b.rng.randint(1, 3 if op == "LSTM" else 2), **attrs)


def _weight(b: Builder, x: Value, shape: tuple[int, ...]) -> Value:
    style = b.rng.choice(("initializer", "initializer", "input"))
    return b.new(x.dtype, shape, -0.5, 0.5, style)


def _maybe(b: Builder, x: Value, shape: tuple[int, ...]) -> Value | None:
    return None if b.rng.random() < 0.5 else b.new(x.dtype, shape, -0.5, 0.5)


OPS: dict[str, Generator] = dict.fromkeys(GATES, recurrence)
