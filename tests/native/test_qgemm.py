"""int8 GEMM and convolution kernels: packed weights, extreme numbers, odd sizes, every ISA."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.dtype import I8, U8, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Value
from sardonyx.graph.infer import infer
from sardonyx.graph.op import INTERNAL
from sardonyx.load import load
from sardonyx.ops.builder import Builder
from sardonyx.place.lowered import Call, Packed
from sardonyx.providers.cpu import lowered
from sardonyx.providers.cpu.quantize import packed_bytes
from sardonyx.weights.layouts import tensor
from tests.kernels import run_splits
from tests.op_cases import Case, case, of
from tests.oracle import difference, feeds_of, model_of

EXTREME = {np.uint8: (0, 255), np.int8: (-128, 127)}
SIDES = [(a, b) for a in EXTREME for b in EXTREME]


def numbers(dtype: Any, *shape: int) -> Any:
    """Numbers of the whole range, most of them at its ends."""
    rng = np.random.default_rng(sum(shape))
    low, high = EXTREME[dtype]
    ends = rng.choice([low, high], shape)
    return np.where(rng.random(shape) < 0.7, ends, rng.integers(low, high + 1, shape)).astype(dtype)


def graph_of(case: Case, constants: tuple[str, ...]) -> Graph:
    graph = load(model_of(case, constants=constants).SerializeToString()).graph
    infer(graph)
    return graph


def check(case: Case, *constants: str) -> Call:
    """A case by its kernel against its reference, on every ISA and in parts."""
    graph = graph_of(case, constants)
    (node,) = graph.nodes
    call = lowered(node)
    assert isinstance(call, Call), call
    arrays = [None if v is None else feeds_of(case)[v.name] for v in node.inputs]
    values = {v: a for v, a in zip(node.inputs, arrays, strict=True) if v is not None}
    expected = list(node.op.run(arrays, node.attrs))
    for isa in native.isas:
        assert not difference(run_splits(call, node, values, isa), expected, case.ulps), isa
    return call


@pytest.mark.parametrize(("a", "b"), SIDES)
@pytest.mark.parametrize("is_const", [True, False])
@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (1, 1, 1),
        (2, 3, 31),
        (5, 7, 32),
        (13, 64, 33),
        (12, 65, 64),
        (97, 130, 70),
        (25, 259, 5),
        (101, 36, 131),
    ],
)
def test_sums_are_exact(a: Any, b: Any, is_const: bool, m: int, k: int, n: int) -> None:
    zeros = numbers(a, 1), numbers(b, n)
    c = case("MatMulInteger", numbers(a, m, k), numbers(b, k, n), *zeros)
    call = check(c, *(("x1", "x3") if is_const else ()))
    assert isinstance(call.inputs[1], Packed) is is_const


def test_a_long_sum_is_exact() -> None:
    a, b = np.full((3, 8191), 255, np.uint8), np.full((8191, 40), -128, np.int8)
    check(case("MatMulInteger", a, b), "x1")


def test_zero_points_of_zero_are_dropped() -> None:
    c = case("MatMulInteger", numbers(np.uint8, 4, 9), numbers(np.int8, 9, 5), None,
               np.zeros(5, np.int8))  # fmt: skip
    assert check(c, "x1", "x3").inputs[5] is None


@pytest.mark.parametrize("a", list(EXTREME))
@pytest.mark.parametrize("y", list(EXTREME))
@pytest.mark.parametrize("n", [1, 33])
def test_results_are_rounded_and_saturated(a: Any, y: Any, n: int) -> None:
    scales = np.linspace(0.0001, 0.01, n).astype(np.float32)
    c = case(
        "QLinearMatMul", numbers(a, 11, 37), of(0.5), of(3, a), numbers(np.int8, 37, n), scales,
        np.zeros(n, np.int8), of(0.7), of(5, y),
    )  # fmt: skip
    check(c, "x3", "x4", "x5")


def test_stacks() -> None:
    check(case("MatMulInteger", numbers(np.uint8, 2, 3, 5, 9), numbers(np.uint8, 2, 3, 9, 7)))
    check(case("MatMulInteger", numbers(np.uint8, 2, 3, 5, 9), numbers(np.uint8, 9, 7)), "x1")


@pytest.mark.parametrize("k", [9, 12])
@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 2)])
def test_a_matrix_by_stacked_matrices(k: int, batch: tuple[int, ...]) -> None:
    zeros = of(7, np.int8), of(250, np.uint8)
    right = numbers(np.uint8, *batch, k, 37)
    check(case("MatMulInteger", numbers(np.int8, 5, k), right, *zeros), "x0", "x2", "x3")


@pytest.mark.parametrize("shape", [((0, 3), (3, 5)), ((4, 3), (3, 0)), ((2, 0), (0, 5))])
def test_empty_matrices(shape: Any) -> None:
    check(case("MatMulInteger", numbers(np.uint8, *shape[0]), numbers(np.int8, *shape[1])), "x1")


def internal(name: str, inputs: list[Any], constants: tuple[int, ...], **attrs: Any) -> Call:
    """A node of our own by its kernel against its reference, on every ISA and in parts."""
    graph = Graph()
    build = Builder(graph, graph.scope)
    operands: list[Value | None] = []
    for i, array in enumerate(inputs):
        if array is None:
            operands.append(None)
        elif i in constants:
            operands.append(build.const(array))
        else:
            dtype = by_numpy(array.dtype)
            assert dtype is not None
            operands.append(Value(f"x{i}", Fact(dtype, array.shape)))
    node = build.node(name, *operands, domain=INTERNAL, **attrs)
    call = lowered(node)
    assert isinstance(call, Call), call
    values = {v: a for v, a in zip(operands, inputs, strict=True) if v is not None}
    (expected,) = node.op.run(inputs, node.attrs)
    for isa in native.isas:
        (found,) = run_splits(call, node, values, isa)
        assert found.dtype == expected.dtype
        if expected.dtype.itemsize == 1:  # one step where rounding once or twice makes a difference
            gap = np.abs(found.astype(int) - expected.astype(int))
            assert gap.max(initial=0) <= 1, isa
            assert np.count_nonzero(gap) <= gap.size // 50, isa
        else:
            assert not difference([found], [expected], 8), isa
    return call


I32, F32, U8_CODE, I8_CODE = 6, 1, 2, 3
CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one tap": ((2, 5, 6, 64), (33, 64, 1, 1), {}),
    "one tap, strided": ((1, 5, 6, 7), (40, 7, 1, 1), {"strides": (2, 2)}),
    "three taps": ((2, 9, 8, 3), (32, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "seven taps": ((1, 15, 15, 3), (8, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    "dilated": ((1, 9, 9, 5), (6, 5, 3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    "grouped": ((1, 7, 7, 12), (16, 3, 3, 3), {"group": 4, "pads": (1, 0, 1, 0)}),
    "long rows": ((2, 5, 30, 3), (33, 3, 3, 3), {"pads": (1, 2, 0, 1)}),
    "long rows, strided": (
        (1, 6, 61, 4),
        (24, 4, 3, 3),
        {"pads": (1, 1, 1, 1), "strides": (2, 2)},
    ),
    "long rows, no padding": ((1, 4, 53, 8), (17, 8, 1, 3), {"strides": (1, 2)}),
    "long rows, apart": ((1, 9, 26, 4), (16, 4, 3, 3), {"dilations": (3, 1)}),
    "long rows, dilated": ((1, 7, 34, 8), (17, 8, 3, 2), {"dilations": (2, 8)}),
    "long rows, dilated, padded": (
        (2, 5, 31, 4),
        (33, 4, 3, 3),
        {"dilations": (1, 3), "pads": (1, 3, 1, 3)},
    ),
    "same size": ((1, 8, 7, 4), (6, 4, 3, 2), {"auto_pad": b"SAME_LOWER", "strides": (2, 2)}),
    "a line": ((2, 11, 6), (9, 6, 5), {"pads": (2, 2)}),
    "a volume": ((1, 4, 5, 3, 2), (3, 2, 2, 3, 2), {"pads": (1, 1, 1, 0, 1, 1)}),
    "all padding": ((1, 1, 1, 2), (3, 2, 3, 3), {"pads": (3, 3, 3, 3)}),
    "groups of 2": ((2, 6, 9, 20), (20, 2, 3, 3), {"group": 10, "pads": (1, 1, 1, 1)}),
    "groups of 4": ((1, 9, 21, 28), (28, 4, 3, 3), {"group": 7, "dilations": (2, 1)}),
    "groups of 8": ((2, 19, 40), (40, 8, 5), {"group": 5, "pads": (2, 2), "strides": (2,)}),
    "groups of 16": ((1, 5, 9, 48), (12, 16, 3, 2), {"group": 3, "pads": (1, 0, 0, 1)}),
    "groups of 24": ((1, 4, 15, 48), (48, 24, 1, 1), {"group": 2}),
    "groups of 32": ((1, 3, 14, 64), (110, 32, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    "groups of 40": ((1, 5, 11, 80), (86, 40, 3, 2), {"group": 2, "dilations": (1, 2)}),
    "groups of 1": ((1, 6, 11, 20), (40, 1, 3, 3), {"group": 20, "pads": (1, 2, 1, 0)}),
    "groups of 3": ((1, 5, 7, 24), (40, 3, 2, 2), {"group": 8, "strides": (2, 1)}),
    "groups of 6": ((1, 4, 9, 24), (20, 6, 1, 3), {"group": 4, "pads": (0, 1, 0, 1)}),
    "far groups": (
        (1, 3, 4, 8),
        (12, 4, 3, 3),
        {"group": 2, "dilations": (130, 130), "pads": (130,) * 4},
    ),
    "far rows": ((1, 2, 30, 3), (5, 3, 3, 3), {"dilations": (900, 1), "pads": (900, 1, 900, 1)}),
    "groups, no image": ((0, 4, 9, 24), (24, 4, 1, 3), {"group": 6}),
    "groups, all padding": ((1, 1, 1, 8), (12, 4, 3, 3), {"group": 2, "pads": (3, 3, 3, 3)}),
    "apart": ((2, 6, 7, 70), (70, 1, 3, 3), {"group": 70, "pads": (1, 1, 1, 1)}),
    "apart, in steps": (
        (1, 9, 8, 130),
        (130, 1, 3, 3),
        {"group": 130, "pads": (1, 1, 1, 1), "strides": (2, 2)},
    ),
    "apart, in leaps": ((1, 9, 11, 33), (33, 1, 2, 3), {"group": 33, "strides": (1, 3)}),
    "apart, dilated": ((1, 7, 9, 16), (16, 1, 3, 3), {"group": 16, "dilations": (1, 2)}),
    "apart, deep": ((1, 3, 4, 5, 20), (20, 1, 2, 2, 3), {"group": 20, "pads": (1, 0, 1, 0, 1, 1)}),
    "apart, few": ((1, 6, 7, 5), (5, 1, 3, 2), {"group": 5, "strides": (2, 1)}),
    "apart, a line": ((2, 19, 21), (21, 1, 5), {"group": 21, "pads": (2, 2)}),
    "apart, no image": ((0, 5, 6, 9), (9, 1, 3, 3), {"group": 9}),
    "apart, many": ((1, 5, 5, 193), (193, 1, 5, 5), {"group": 193, "pads": (2, 2, 2, 2)}),
}


@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("x_type", list(EXTREME))
@pytest.mark.parametrize("out", [I32, F32, U8_CODE, I8_CODE])
def test_convolutions(name: str, x_type: Any, out: int) -> None:
    x_shape, w_shape, attrs = CONVS[name]
    filters = w_shape[0]
    is_bytes = out in (U8_CODE, I8_CODE)
    y_type = np.uint8 if out == U8_CODE else np.int8
    call = internal(
        "QConv",
        [
            numbers(x_type, *x_shape), numbers(np.int8, *w_shape), of(0.02), of(9, x_type),
            np.linspace(0.01, 0.02, filters).astype(np.float32), np.zeros(filters, np.int8),
            np.arange(filters).astype(np.int32 if out == I32 else np.float32),
            of(3.5) if is_bytes else None, of(11, y_type) if is_bytes else None,
        ],
        (1, 4, 5, 6),
        dtype=out, channels_last=1, low=-5.0 if out != I32 else -np.inf, **attrs,
    )  # fmt: skip
    assert (call.kernel == "qdepthwise") is name.startswith("apart")
    assert (call.kernel == "qgrouped") is name.startswith("group")


@pytest.mark.parametrize("zero", [0, 128, 77])
@pytest.mark.parametrize("name", ["three taps", "apart", "grouped"])
def test_unsigned_weights(name: str, zero: int) -> None:
    x_shape, w_shape, attrs = CONVS[name]
    call = internal(
        "QConv",
        [numbers(np.int8, *x_shape), numbers(np.uint8, *w_shape), None, of(-3, np.int8), None,
         of(zero, np.uint8), None, None, None],
        (1, 5), dtype=I32, channels_last=1, **attrs,
    )  # fmt: skip
    assert (call.inputs[5] is None) is (zero == 128)


@pytest.mark.parametrize("zero", ["low", "high", "channels"])
@pytest.mark.parametrize(("x_type", "w_type"), SIDES)
@pytest.mark.parametrize("name", CONVS)
def test_zero_points(name: str, x_type: Any, w_type: Any, zero: str) -> None:
    """Accumulators are exact with zero points at the ends of the types, and per channel."""
    x_shape, w_shape, attrs = CONVS[name]
    low, high = np.iinfo(w_type).min, np.iinfo(w_type).max
    w_zero = {"low": low, "high": high, "channels": np.linspace(low, high, w_shape[0])}[zero]
    x_zero = np.iinfo(x_type).max if zero == "low" else np.iinfo(x_type).min
    internal(
        "QConv",
        [numbers(x_type, *x_shape), numbers(w_type, *w_shape), None, of(x_zero, x_type), None,
         np.asarray(w_zero).astype(w_type), None, None, None],
        (1, 5) if zero == "low" else (1,), dtype=I32, channels_last=1, **attrs,
    )  # fmt: skip


@pytest.mark.parametrize("n", [1, 3, 15, 16, 17, 63, 65, 16390])
@pytest.mark.parametrize(("a", "b"), SIDES)
def test_quantized_add(a: Any, b: Any, n: int) -> None:
    internal(
        "QAdd",
        [numbers(a, 1, n), of(0.02), of(5, a), numbers(b, 1, n), of(0.03), of(7, b), of(0.05),
         of(9, b)],
        (), dtype=U8_CODE if b is np.uint8 else I8_CODE, low=-1.0, high=2.0,
    )  # fmt: skip


BROADCAST = {
    "channel": ((2, 7, 5, 6), (7, 1, 1)),
    "pixel": ((2, 7, 5, 6), (1, 1, 5, 6)),
    "row": ((2, 7, 5, 17), (17,)),
    "column": ((3, 4, 65), (4, 1)),
    "both": ((3, 1, 5, 1), (2, 1, 33)),
    "batch of the second": ((1, 4, 9), (3, 4, 9)),
    "number": ((4, 70), ()),
    "long rows": ((2, 33000), (2, 1)),
    "nothing": ((2, 0, 3), (1, 3)),
}


@pytest.mark.parametrize("name", BROADCAST)
@pytest.mark.parametrize(("a", "b"), SIDES)
def test_quantized_add_with_broadcasting(a: Any, b: Any, name: str) -> None:
    shape, other = BROADCAST[name]
    for left, right in ((shape, other), (other, shape)):
        internal(
            "QAdd",
            [numbers(a, *left), of(0.02), of(5, a), numbers(b, *right), of(0.03), of(7, b),
             of(0.05), of(9, a)],
            (), dtype=U8_CODE if a is np.uint8 else I8_CODE,
        )  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [(1, 7, 7, 65), (2, 1, 3, 1), (1, 3, 3, 300), (3, 4, 31), (2, 50, 29, 260), (1, 3, 2, 4200)],
)
@pytest.mark.parametrize("x_type", list(EXTREME))
@pytest.mark.parametrize("channels_last", [0, 1])
def test_quantized_average_pool(x_type: Any, shape: tuple[int, ...], channels_last: int) -> None:
    internal(
        "QMean", [numbers(x_type, *shape), of(0.02), of(5, x_type), of(0.011), of(9, np.uint8)],
        (), dtype=U8_CODE, channels_last=channels_last,
    )  # fmt: skip


@pytest.mark.parametrize("channels", [1, 5, 19, 64, 70])
def test_depthwise_accumulators(channels: int) -> None:
    internal(
        "QConv",
        [numbers(np.uint8, 1, 6, 5, channels), numbers(np.uint8, channels, 1, 3, 3), None,
         of(5, np.uint8), None, of(100, np.uint8), None, None, None],
        (1, 5), dtype=I32, channels_last=1, group=channels, pads=(1, 1, 1, 1),
    )  # fmt: skip


@pytest.mark.parametrize("is_transposed", [False, True])
def test_bias(is_transposed: bool) -> None:
    w = numbers(np.int8, 33, 17) if is_transposed else numbers(np.int8, 17, 33)
    internal(
        "QMatMul",
        [numbers(np.uint8, 5, 17), w, of(0.02), of(100, np.uint8), of(0.01), None,
         np.linspace(-9, 9, 33).astype(np.float32), None, None],
        (1, 6), dtype=F32, trans_w=int(is_transposed), low=0.0,
    )  # fmt: skip


# Dims of weights in their order in memory: n columns, l lines, t taps, c channels.
LAYOUTS = ("nclt", "ltcn", "cltn", "ltnc")


def panels(weights: Any, order: str, flip: int) -> Any:
    """Panels of 32 columns in groups of four rows, then the sums of columns."""
    transposed = np.transpose(weights, [order.index(axis) for axis in "ltcn"])
    lines, taps, channels, columns = transposed.shape
    rows = np.ascontiguousarray(transposed).view(np.uint8) ^ np.uint8(flip)
    deep, wide = -(-taps * channels // 4) * 4, -(-columns // 32) * 32
    filled = np.zeros((lines, deep, wide), np.uint8)
    filled[:, : taps * channels, :columns] = rows.reshape(lines, -1, columns)
    grouped = filled.reshape(lines * deep // 4, 4, wide // 32, 32).transpose(2, 0, 3, 1)
    sums = filled.view(np.int8).sum((0, 1), dtype=np.int32)
    return np.concatenate([grouped.reshape(-1), sums.view(np.uint8)])


@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("dtype", EXTREME)
@pytest.mark.parametrize("channels", [1, 3, 4, 60, 260])
@pytest.mark.parametrize("columns", [1, 16, 31, 32, 70])
@pytest.mark.parametrize(("lines", "taps"), [(1, 1), (1, 5), (3, 3)])
def test_packed_weights(
    order: str, dtype: Any, channels: int, columns: int, lines: int, taps: int
) -> None:
    sizes = {"l": lines, "t": taps, "c": channels, "n": columns}
    weights = numbers(dtype, *(sizes[axis] for axis in order))
    kind, flip = (U8, 128) if dtype is np.uint8 else (I8, 0)
    expected = panels(weights, order, flip)
    assert expected.size == packed_bytes(taps * channels, columns, lines)
    ints = [1, lines, taps, channels, columns, 0]
    ints += [weights.strides[order.index(axis)] for axis in "ltcn"]
    for isa in native.isas:
        found = np.full(expected.size, 7, np.uint8)
        given = [tensor(weights, kind.onnx)], [tensor(found, U8.onnx)]
        assert not native.call("qgemm_pack", *given, ints, [], 1, isa)
        assert found.tobytes() == expected.tobytes(), isa
