"""n-bit weights: which matmuls and gathers read them as stored, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.graph.const import SourceConst
from sardonyx.graph.graph import Graph
from sardonyx.passes import PassOptions
from tests.passes.nbits_models import (
    REAL,
    TYPES,
    K,
    Model,
    N,
    by_onnxruntime,
    feeds_of,
    lowered,
    near,
    ops,
    run,
)

FUSED = {"MatMulNBits": 1}
KINDS = [
    (kind, zero, spec)
    for kind in TYPES
    for zero in (False, True)
    for spec in (
        {"axis": 0, "block": 16},
        {"axis": 0, "block": 32},
        {},
        {"axis": 1, "scales": (N,)},
    )
]


@pytest.mark.parametrize(("kind", "zero", "spec"), KINDS, ids=str)
def test_every_type(kind: str, zero: bool, spec: dict[str, Any]) -> None:
    m = Model()
    model = m.finished(m.node("MatMul", "x", m.weight(kind, zero=zero, **spec)))
    assert ops(lowered(model)) == FUSED
    found = run(model, feeds_of())
    near(found, by_onnxruntime(model, feeds_of()))
    near(found, run(model, feeds_of(), is_plain=True))


Build = Callable[[Model], str]
# A product of x [B,K], and what is left of it but views.
SHAPES: dict[str, tuple[Build, dict[str, int]]] = {
    "columns follow each other": (
        lambda m: m.node("MatMul", "x", m.transposed(m.weight("u4", (N, K), axis=1, block=16))),
        FUSED,
    ),
    "a scale for each stored row": (
        lambda m: m.node("MatMul", "x", m.transposed(m.weight("i8", (N, K), axis=0, scales=(N,)))),
        FUSED,
    ),
    "one scale, transposed": (
        lambda m: m.node("MatMul", "x", m.transposed(m.weight("i4", (N, K), zero=True))),
        FUSED,
    ),
    "transposed twice": (
        lambda m: m.node(
            "MatMul", "x", m.transposed(m.transposed(m.weight("u4", axis=0, block=32)))
        ),
        FUSED,
    ),
    "blocks are an axis": (
        lambda m: m.node(
            "MatMul",
            "x",
            m.transposed(m.reshaped(m.weight("u4", (N, 4, 16), axis=2, block=16, zero=True), N, K)),
        ),
        FUSED,
    ),
    "blocks are the first axis": (
        lambda m: m.node(
            "MatMul",
            "x",
            m.reshaped(m.weight("u4", (4, 16, N), axis=1, block=16, zero=True), K, N),
        ),
        FUSED,
    ),
    "halves of blocks are an axis": (
        lambda m: m.node(
            "MatMul", "x", m.reshaped(m.weight("i4", (4, 16, N), axis=1, block=8), -1, N)
        ),
        FUSED,
    ),
    "transposed, then reshaped": (
        lambda m: m.node(
            "MatMul",
            "x",
            m.reshaped(
                m.transposed(m.weight("u4", (N, 4, 16), axis=2, block=16, zero=True), 1, 2, 0), K, N
            ),
        ),
        FUSED,
    ),
    "an axis of one place": (
        lambda m: m.node(
            "MatMul", "x", m.reshaped(m.weight("u4", (1, K, N), axis=1, block=16), K, N)
        ),
        FUSED,
    ),
    "the last block is short": (
        lambda m: m.node("MatMul", "x", m.weight("u4", axis=0, block=48, zero=True)),
        FUSED,
    ),
    "one block": (lambda m: m.node("MatMul", "x", m.weight("u4", axis=0, block=K)), FUSED),
    "one column": (
        lambda m: m.node("MatMul", "x", m.weight("u4", (K, 1), axis=0, block=16, zero=True)),
        FUSED,
    ),
    "scales along the rows": (
        lambda m: m.node("MatMul", "x", m.weight("i8", axis=0, scales=(K,))),
        {"Mul": 1, "MatMulNBits": 1},
    ),
    "scales along the rows, transposed": (
        lambda m: m.node("MatMul", "x", m.transposed(m.weight("i4", (N, K), axis=1, scales=(K,)))),
        {"Mul": 1, "MatMulNBits": 1},
    ),
    "zero points along the rows": (
        lambda m: m.node("MatMul", "x", m.weight("i8", axis=0, scales=(K,), zero=True)),
        {"MatMul": 1},
    ),
    "blocks along the columns": (
        lambda m: m.node("MatMul", "x", m.weight("u4", axis=1, block=8, zero=True)),
        {"MatMul": 1},
    ),
    "axes are mixed": (
        lambda m: m.node(
            "MatMul", "x", m.reshaped(m.transposed(m.weight("u4", axis=0, block=16)), K, N)
        ),
        {"DequantizeLinear": 1, "MatMul": 1},
    ),
    "gemm": (
        lambda m: m.node(
            "Gemm", "x", m.weight("u4", axis=0, block=16), m.floats(N), alpha=0.5, beta=2.0
        ),
        FUSED,
    ),
    "gemm, its right transposed": (
        lambda m: m.node(
            "Gemm", "x", m.weight("u4", (N, K), axis=1, block=16), m.floats(1, N), transB=1
        ),
        FUSED,
    ),
    "gemm with a dequantized bias": (
        lambda m: m.node(
            "Gemm",
            "x",
            m.weight("u4", (N, K), axis=1, block=16),
            m.weight("i8", (N,), axis=0),
            transB=1,
        ),
        FUSED,
    ),
    "gemm, its left transposed": (
        lambda m: m.node(
            "Gemm", m.transposed("x"), m.weight("u4", axis=0, block=16), m.floats(N), transA=1
        ),
        FUSED,
    ),
    "a factor and an activation": (
        lambda m: m.node(
            "Relu",
            m.node(
                "Mul",
                m.node("MatMul", "x", m.weight("u4", axis=0, block=16)),
                m.const(np.float32(0.3)),
            ),
        ),
        FUSED,
    ),
    "a bias": (
        lambda m: m.node(
            "Add", m.node("MatMul", "x", m.weight("u4", axis=0, block=16)), m.floats(N)
        ),
        FUSED,
    ),
    "on the right of weights": (
        lambda m: m.node("MatMul", m.weight("u4", (N, K), axis=1, block=16), m.transposed("x")),
        {"DequantizeLinear": 1, "MatMul": 1},
    ),
    "a table": (
        lambda m: m.node("Gather", m.weight("u4", (N, K), axis=1, block=16, zero=True), "i"),
        {"GatherDequantized": 1},
    ),
    "a table in columns": (
        lambda m: m.node("Gather", m.weight("i4", (K, N), axis=0, block=16), "i", axis=1),
        {"GatherDequantized": 1},
    ),
    "a table with one scale": (
        lambda m: m.node("Gather", m.weight("i2", (N, K), zero=True), "i"),
        {"GatherDequantized": 1},
    ),
    "a table with a scale for each row": (
        lambda m: m.node("Gather", m.weight("u8", (N, K), axis=0, scales=(N,), zero=True), "i"),
        {"GatherDequantized": 1},
    ),
    "a table of blocks": (
        lambda m: m.node(
            "Gather", m.reshaped(m.weight("u4", (N, 4, 16), axis=2, block=16, zero=True), N, K), "i"
        ),
        {"GatherDequantized": 1},
    ),
    "a table that is transposed": (
        lambda m: m.node("Gather", m.transposed(m.weight("u4", (K, N), axis=0, block=16)), "i"),
        {"DequantizeLinear": 1, "Gather": 1},
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape(name: str) -> None:
    build, wanted = SHAPES[name]
    m = Model()
    model = m.finished(build(m))
    assert ops(lowered(model)) == wanted
    found = run(model, feeds_of())
    near(found, by_onnxruntime(model, feeds_of()))
    near(found, run(model, feeds_of(), is_plain=True))


@pytest.mark.parametrize("real", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["gemm", "scales along the rows", "a table", "a bias"])
def test_float16_types(name: str, real: str) -> None:
    m = Model(real)
    model = m.finished(SHAPES[name][0](m))
    assert ops(lowered(model)).keys() & {"MatMulNBits", "GatherDequantized"}
    tolerance = 2e-3 if real == "f16" else 2e-2
    wanted = run(model, feeds_of(real=real), is_plain=True)
    near(run(model, feeds_of(real=real)), wanted, tolerance)


@pytest.mark.parametrize(("real", "to"), [("f16", "f32"), ("bf16", "f32"), ("f32", "f16")])
def test_casts_after_dequantization(real: str, to: str) -> None:
    m = Model(real)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(REAL[to]))
    weight = m.cast(m.weight("u4", (N, K), axis=1, block=16, zero=True), kind)
    product = m.node("MatMul", m.cast("x", kind), m.transposed(weight))
    total = m.node("ReduceSum", m.node("Gather", weight, "i"))
    model = m.finished(m.node("Add", product, total))
    counts = ops(lowered(model))
    assert counts["MatMulNBits"] == counts["GatherDequantized"] == 1
    assert not counts["DequantizeLinear"]
    tolerance = 2e-3 if "bf16" not in (real, to) else 2e-2
    near(run(model, feeds_of(real=real)), run(model, feeds_of(real=real), is_plain=True), tolerance)


def test_batches_of_rows() -> None:
    m = Model()
    model = m.finished(m.node("MatMul", "x", m.weight("u4", axis=0, block=16)), ("A", "B", 2, K))
    feeds = feeds_of((2, 3, 2, K))
    assert ops(lowered(model)) == FUSED
    near(run(model, feeds), by_onnxruntime(model, feeds))


def test_a_vector() -> None:
    m = Model()
    model = m.finished(m.node("MatMul", "x", m.weight("u4", axis=0, block=16)), (K,))
    assert ops(lowered(model))["MatMulNBits"] == 1
    near(run(model, feeds_of((K,))), by_onnxruntime(model, feeds_of((K,))))


def test_a_weight_for_a_gather_and_a_matmul() -> None:
    m = Model()
    weight = m.weight("u4", (N, K), axis=1, block=16, zero=True)
    rows = m.node("Gather", weight, "i")
    model = m.finished(m.node("MatMul", m.node("Add", rows, rows), m.transposed(weight)))
    graph = lowered(model)
    assert ops(graph) == {"GatherDequantized": 1, "Add": 1, "MatMulNBits": 1}
    consts = {n.inputs[j].const for n in graph.nodes for j in (0, 1) if n.inputs[j].is_const}
    assert len({(c.source, c.offset) for c in consts if isinstance(c, SourceConst)}) == 1
    near(run(model, feeds_of()), by_onnxruntime(model, feeds_of()))


@pytest.mark.parametrize("is_transposed", [False, True], ids=["reshaped", "transposed"])
def test_a_weight_transposed_before_dequantization(is_transposed: bool) -> None:
    """Folding must not make it a constant that takes reading it."""
    m = Model()
    steps = m.reshaped(m.steps("u4", (N, 4, 16)), N, K)
    steps = m.transposed(steps) if is_transposed else steps
    scales, axis = ((4, N), 0) if is_transposed else ((N, 4), 1)
    weight = m.node("DequantizeLinear", steps, m.floats(*scales), axis=axis, block_size=16)
    model = m.finished(m.node("MatMul", "x", weight if is_transposed else m.transposed(weight)))
    graph = lowered(model)
    assert ops(graph) == FUSED
    (q,) = (n.inputs[1] for n in graph.nodes if n.op.name in FUSED)
    assert isinstance(q.const, SourceConst)
    near(run(model, feeds_of()), run(model, feeds_of(), is_plain=True))


def test_a_weight_that_is_also_an_output() -> None:
    m = Model()
    weight = m.weight("u4", (K, K), axis=0, block=16)
    model = m.finished(m.node("Add", m.node("MatMul", "x", weight), m.node("ReduceSum", weight)))
    assert ops(lowered(model))["MatMulNBits"] == 1
    near(run(model, feeds_of()), by_onnxruntime(model, feeds_of()))


def test_a_matmul_in_a_body() -> None:
    m = Model()
    weight = m.weight("u4", (N, K), axis=1, block=16)
    transposed = m.transposed(weight)
    bodies = {}
    for name, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        nodes = [
            helper.make_node("MatMul", ["x", transposed], [f"{name}.m"]),
            helper.make_node(op, [f"{name}.m"], [f"{name}.y"]),
        ]
        out = [helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, ["B", N])]
        bodies[name] = helper.make_graph(nodes, name, [], out)
    many = m.node("Greater", m.node("Size", "i"), m.const(np.array(2)))
    model = m.finished(m.node("If", many, **bodies))
    counts = ops(lowered(model))
    assert counts["MatMulNBits"] == 2
    assert not counts["DequantizeLinear"]
    for n in (1, 4):
        feeds = {**feeds_of(), "i": np.zeros(n, np.int64)}
        near(run(model, feeds), by_onnxruntime(model, feeds))


@pytest.mark.parametrize("kind", ["u4", "i8"])
def test_computed_scales_are_not_rewritten(kind: str) -> None:
    m = Model()
    scale = m.node("ReduceMax", "x", keepdims=0)
    weight = m.node("DequantizeLinear", m.steps(kind, (K, N)), scale, axis=1)
    model = m.finished(m.node("MatMul", "x", weight))
    assert not ops(lowered(model))["MatMulNBits"]
    near(run(model, feeds_of()), by_onnxruntime(model, feeds_of()))


def test_8_bit_matmuls_stay_integer() -> None:
    m = Model()
    steps = m.node("QuantizeLinear", "x", m.const(np.float32(0.02)), m.const(np.uint8(128)))
    x = m.node("DequantizeLinear", steps, m.const(np.float32(0.02)), m.const(np.uint8(128)))
    model = m.finished(m.node("MatMul", x, m.weight("i8", axis=1, scales=(N,))))
    assert ops(lowered(model)) == {"QuantizeLinear": 1, "QMatMul": 1}


@pytest.mark.parametrize("maps", [5, 33000])  # above 4 MB of float weights
def test_a_conv_with_nbit_weights_runs(maps: int) -> None:
    m = Model()
    weight = m.weight("i4", (maps, 4, 3, 3), axis=0, scales=(maps,))
    model = m.finished(m.node("Conv", "x", weight), ("B", 4, 6, 6))
    feeds = feeds_of((2, 4, 6, 6))
    assert ops(lowered(model))["DequantizeLinear"] == (maps > 5)
    near(run(model, feeds), by_onnxruntime(model, feeds))


def test_few_weights_for_many_rows_become_floats() -> None:
    m = Model()
    weight = m.weight("i8", axis=1, scales=(N,))
    model = m.finished(m.node("MatMul", "x", weight), (64, K))
    assert ops(lowered(model)) == {"MatMul": 1}
    near(run(model, feeds_of((64, K))), by_onnxruntime(model, feeds_of((64, K))))


def test_weights_with_other_readers_are_kept() -> None:
    m = Model()
    weight = m.weight("i8", (5, 4, 3, 3), axis=0, scales=(5,))
    conv = m.node("Conv", "x", weight)
    model = m.finished(m.node("Add", conv, m.node("ReduceMax", weight, keepdims=0)), (2, 4, 6, 6))
    assert ops(lowered(model))["DequantizeLinear"] == 1


def test_disabled_by_name() -> None:
    m = Model()
    model = m.finished(m.node("MatMul", "x", m.weight("u4", axis=0, block=16)))
    for name in ("read_weights", "DQMatMulNBitsFusion"):
        options = PassOptions(disabled=frozenset((name,)))
        assert ops(lowered(model, options)) == {"DequantizeLinear": 1, "MatMul": 1}


def stored(level: int = 0) -> bytes:
    m = Model()
    inputs = [m.steps("u8", (N, 2, 16)), m.floats(N, 2), m.steps("u8", (N, 1)), "", m.floats(N)]
    attrs = {"K": K, "N": N, "bits": 4, "block_size": 32, "accuracy_level": level}
    y = m.node("MatMulNBits", "x", *inputs, domain="com.microsoft", **attrs)
    return m.finished(m.node("Relu", y))


def level_of(graph: Graph) -> int:
    (level,) = (n.attrs["level"] for n in graph.nodes if n.op.name == "MatMulNBits")
    return int(level)


@pytest.mark.parametrize(("asked", "level"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 4)])
def test_matmul_nbits_of_com_microsoft(asked: int, level: int) -> None:
    graph = lowered(stored(asked))
    assert ops(graph) == FUSED
    assert level_of(graph) == level
    wanted = by_onnxruntime(stored(), feeds_of())
    near(run(stored(asked), feeds_of()), wanted, 2e-6 if level == 0 else 2e-2)


def test_com_microsoft_ops_are_native_at_every_level() -> None:
    m = Model()
    table = m.node(
        "GatherBlockQuantized", m.steps("u8", (N, K // 2)), "i", m.floats(N, 4),
        domain="com.microsoft", block_size=16,
    )  # fmt: skip
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL
    for model in (stored(), m.finished(table)):
        session = sardonyx.InferenceSession(model, options)
        assert session._compiled.program.python_steps == 0


@pytest.mark.parametrize(("asked", "level"), [(0, 0), (1, 0), (4, 4)])
def test_the_level_of_dequantized_weights(asked: int, level: int) -> None:
    m = Model()
    model = m.finished(m.node("MatMul", "x", m.weight("u4", axis=0, block=16)))
    graph = lowered(model, PassOptions(weight_level=asked))
    assert level_of(graph) == level
    found = run(model, feeds_of(), accuracy_level=str(asked))
    near(found, by_onnxruntime(model, feeds_of()), 2e-6 if level == 0 else 2e-2)


@pytest.mark.parametrize(("asked", "k", "block"), [(0, 64, 32), (128, 64, 128), (-1, 192, 64),
                                                   (-1, 1024, 256), (-1, 10, 16)])  # fmt: skip
def test_block_size_of_weights_without_blocks(asked: int, k: int, block: int) -> None:
    m = Model()
    model = m.finished(m.node("MatMul", "x", m.weight("u4", (k, N))), ("B", k))
    (node,) = (
        n for n in lowered(model, PassOptions(weight_block=asked)).nodes if n.op.name in FUSED
    )
    assert node.attrs["block_size"] == block
    feeds = feeds_of((2, k))
    near(run(model, feeds, block_size=str(asked)), by_onnxruntime(model, feeds))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"accuracy_level": "5"}, "0 to 3 for float activations or 4"),
        ({"accuracy_level": "high"}, "got 'high'"),
        ({"block_size": "24"}, "power of two from 16 on"),
        ({"block_size": "-2"}, "got '-2'"),
    ],
)
def test_wrong_settings(config: dict[str, str], match: str) -> None:
    with pytest.raises(SardonyxError, match=match):
        run(stored(), feeds_of(), **config)


def test_indices_out_of_range() -> None:
    """Standard ops refuse them, com.microsoft's reads zeros."""
    m = Model()
    model = m.finished(m.node("Gather", m.weight("u4", (N, K), axis=1, block=16), "i"))
    with pytest.raises(SardonyxError, match=f"index {N} at position 1 is outside"):
        run(model, {**feeds_of(), "i": np.array([0, N])})
    m = Model()
    table = m.node(
        "GatherBlockQuantized", m.steps("u8", (N, K // 2)), "i", m.floats(N, 4),
        domain="com.microsoft", block_size=16,
    )  # fmt: skip
    model = m.finished(table)
    assert ops(lowered(model)) == {"GatherDequantized": 1}
    feeds = {**feeds_of(), "i": np.array([0, N, -N - 1, 2])}
    near(run(model, feeds), by_onnxruntime(model, feeds))
