"""Cases of GRU, LSTM and RNN."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, bf16, case, f16, f32, f64, fails, of

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTH, BATCH, SIZE, HIDDEN = 5, 3, 4, 6


def layer(
    op: str,
    dtype: Any = f32,
    *,
    lens: list[int] | None = None,
    peepholes: bool = False,
    **options: Any,
) -> Case:
    """A layer with every input that it may have."""
    n = 2 if options.get("direction") == "bidirectional" else 1
    gates = GATES[op] * HIDDEN
    state = dtype(n, BATCH, HIDDEN)
    x = dtype(LENGTH, BATCH, SIZE)
    if options.get("layout"):
        x, state = x.swapaxes(0, 1).copy(), state.swapaxes(0, 1).copy()
    inputs = [
        x,
        (dtype(n, gates, SIZE) * 0.5).astype(x.dtype),
        (dtype(n, gates, HIDDEN) * 0.4).astype(x.dtype),
        dtype(n, 2 * gates),
        None if lens is None else of(lens, np.int32),
        state,
    ]
    if op == "LSTM":
        inputs += [(state * 0.5).astype(x.dtype), dtype(n, 3 * HIDDEN) if peepholes else None]
    options.setdefault("outputs", 3 if op == "LSTM" else 2)
    options.setdefault("opset", 14)
    options.setdefault("why", "five steps feed on each other")
    return case(op, *inputs, hidden_size=HIDDEN, ulps=16, **options)


def bare(op: str, **options: Any) -> Case:
    """A layer with no more than its weights."""
    gates = GATES[op] * HIDDEN
    x, w, r = f32(LENGTH, BATCH, SIZE), f32(1, gates, SIZE), f32(1, gates, HIDDEN)
    return case(op, x, w, r, hidden_size=HIDDEN, opset=14, ulps=32, why="as above", **options)


EVERY = [
    row
    for op in GATES
    for row in (
        bare(op),
        layer(op),
        layer(op, direction="reverse"),
        layer(op, direction="bidirectional"),
        layer(op, lens=[5, 2, 3]),
        layer(op, lens=[4, 0, 1], direction="reverse"),
        layer(op, lens=[1, 5, 3], direction="bidirectional"),
        layer(op, lens=[0, 0, 0]),
        layer(op, clip=0.3),
        layer(op, layout=1, oracle="onnx", why="onnxruntime has layout 0 only"),
        layer(op, layout=1, direction="bidirectional", oracle="onnx"),
        layer(op, f64, oracle="onnx", opset=22),
        layer(op, f16, oracle="none", opset=22),
        layer(op, bf16, oracle="none", opset=22),
        layer(op, opset=7),
        layer(op, opset=6, output_sequence=1, oracle="none"),
    )
]

CASES = [
    *EVERY,
    case("RNN", f32(0, 2, 3), f32(1, 4, 3), f32(1, 4, 4), hidden_size=4, oracle="none", outputs=2),
    case("RNN", f32(2, 0, 3), f32(1, 4, 3), f32(1, 4, 4), hidden_size=4, oracle="none", outputs=2),
    layer("GRU", linear_before_reset=1),
    layer("GRU", linear_before_reset=1, direction="bidirectional", lens=[2, 5, 1]),
    layer("GRU", linear_before_reset=1, clip=0.2),
    layer("LSTM", peepholes=True),
    layer("LSTM", peepholes=True, direction="bidirectional", lens=[2, 5, 1]),
    layer("LSTM", peepholes=True, input_forget=1),
    layer("LSTM", input_forget=1, direction="reverse"),
    layer("LSTM", peepholes=True, clip=0.2),
    layer("RNN", activations=["Relu"]),
    layer("RNN", activations=["Affine"], activation_alpha=[0.3], activation_beta=[0.1]),
    layer("RNN", activations=["Affine"], oracle="none", why="onnxruntime takes 0 for both"),
    layer("RNN", activations=["ThresholdedRelu"], activation_alpha=[0.2]),
    layer("RNN", activations=["LeakyRelu"]),
    layer("RNN", activations=["Softplus"]),
    layer(
        "RNN",
        activations=["Tanh", "LeakyRelu"],
        activation_alpha=[0.3],
        direction="bidirectional",
    ),
    layer("GRU", activations=["HardSigmoid", "Softsign"]),
    layer(
        "LSTM",
        activations=["HardSigmoid", "Elu", "ScaledTanh"],
        activation_alpha=[0.3, 0.4, 0.5],
        activation_beta=[0.6, 0.7],
    ),
    fails("LSTM", f32(2, 3), f32(1, 8, 3), f32(1, 8, 2), match="rank 3"),
    fails("LSTM", f32(2, 1, 3), f32(1, 8, 4), f32(1, 8, 2), match="W must have shape"),
    fails("GRU", f32(2, 1, 3), f32(1, 6, 3), f32(1, 6, 2), hidden_size=3, match="hidden_size"),
    fails("RNN", f32(2, 1, 3), f32(1, 2, 3), f32(1, 2, 2), direction="sideways", match="sideways"),
    fails("RNN", f32(2, 1, 3), f32(1, 2, 3), f32(1, 2, 2), activations=["Cube"], match="got cube"),
    fails(
        "RNN",
        f32(2, 1, 3),
        f32(2, 2, 3),
        f32(2, 2, 2),
        direction="bidirectional",
        activations=["Relu"],
        match="names 1 functions",
    ),
    fails(
        "RNN",
        f32(2, 1, 3),
        f32(1, 2, 3),
        f32(1, 2, 2),
        None,
        of([3], np.int32),
        match=r"holds 3, outside \[0, 2\]",
    ),
]
