"""Convolution and pooling kernels (channels-last) against their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.const import ArrayConst, Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import F32, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value, input_of
from sardonyx.graph.op import INTERNAL
from sardonyx.ops import lookup
from sardonyx.ops.arrays import as_bf16
from sardonyx.ops.builder import Builder
from sardonyx.ops.sliding_window import window_of
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No
from sardonyx.providers.cpu import lowered
from sardonyx.providers.cpu.conv import _is_winograd
from sardonyx.weights.layouts import WeightLayout, prepack, tensor
from tests.kernels import run_call, run_splits

Array = np.ndarray[Any, np.dtype[Any]]


def random(*shape: int, dtype: Any = np.float32) -> Array:
    rng = np.random.default_rng(sum(shape) + len(shape))
    if np.dtype(dtype).kind != "f":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max + 1, shape, dtype)
    return rng.standard_normal(shape).astype(dtype)


def node_of(op: str, x: Array, w: Array | None, **attrs: Any) -> Node:
    """A node of an internal op on an input and constant weights."""
    graph = Graph()
    dtype = by_numpy(x.dtype)
    assert dtype is not None
    value = Value("x", Fact(dtype, x.shape))
    graph.inputs.append(value)
    constants = [] if w is None else [constant(ArrayConst(w))]
    return Builder(graph, graph.scope).node(op, value, *constants, domain=INTERNAL, **attrs)


def check(op: str, x: Array, w: Array | None = None, kernel_name: str = "", **attrs: Any) -> None:
    node = node_of(op, x, w, **attrs)
    call = lowered(node)
    assert isinstance(call, Call), call
    assert not kernel_name or call.kernel == kernel_name
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in (x, w) if a is not None]
    expected = node.op.run(wide, node.attrs)[0]
    size = max(np.abs(expected).max(initial=0), 1e-30) if np.isfinite(expected).all() else 1
    for isa in native.isas:
        found = run_splits(call, node, {node.inputs[0]: x}, isa)
        if call.writes_rows:
            apart = run_splits(call, node, {node.inputs[0]: x}, isa, gap=7)
            assert apart[0].tobytes() == found[0].tobytes(), isa
        least = (1e-5 if call.kernel == "conv_winograd_f32" else 2e-6) * size  # of any error
        np.testing.assert_allclose(found[0], expected, 2e-5, least, err_msg=isa)


SHAPES = [  # spatial sizes, kernel, attributes
    ((9,), (3,), {}),
    ((17,), (4,), {"strides": [3], "pads": [2, 1]}),
    ((1,), (1,), {}),
    ((40,), (5,), {"dilations": [3], "auto_pad": b"SAME_LOWER"}),
    ((7, 7), (3, 3), {"pads": [1, 1, 1, 1]}),
    ((8, 9), (3, 2), {"pads": [1, 2, 0, 1], "strides": [2, 3], "dilations": [2, 1]}),
    ((15, 13), (1, 1), {}),
    ((15, 13), (1, 1), {"strides": [2, 2]}),
    ((5, 6), (1, 1), {"pads": [1, 0, 2, 1]}),
    ((11, 12), (5, 5), {"auto_pad": b"SAME_UPPER", "strides": [2, 2]}),
    ((14, 15), (7, 7), {"pads": [3, 3, 3, 3]}),
    ((4, 5), (3, 3), {"pads": [9, 9, 9, 9]}),
    ((6, 20), (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
    ((5, 6, 7), (2, 3, 2), {"pads": [1, 0, 1, 0, 1, 1]}),
    ((4, 5, 6), (3, 3, 3), {"pads": [1] * 6, "strides": [2, 1, 2]}),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("c", "o"), [(1, 1), (3, 16), (17, 33), (4, 40)])
def test_conv(shape: Any, c: int, o: int) -> None:
    spatial, kernel, attrs = shape
    check("Conv", random(2, *spatial, c), random(o, c, *kernel), **attrs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("group", "c", "o"), [(2, 17, 16), (3, 4, 35)])
def test_grouped_conv(shape: Any, group: int, c: int, o: int) -> None:
    spatial, kernel, attrs = shape
    x, w = random(1, *spatial, c * group), random(o * group, c, *kernel)
    check("Conv", x, w, "conv_f32", group=group, **attrs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("group", "c", "o"), [(1, 1, 13), (1, 3, 40), (2, 17, 16), (1, 70, 33)])
def test_conv_rounded_to_bf16(
    shape: Any, group: int, c: int, o: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sardonyx.providers.cpu.conv.MULTIPLIES_BF16", True)
    spatial, kernel, attrs = shape
    x, w = random(2, *spatial, c * group), random(o * group, c, *kernel)
    node = node_of("Conv", x, w, group=group, **attrs)
    window = window_of(kernel, node.attrs)
    is_winograd = _is_winograd(node, window, input_of(node, 0), node.outputs[0])
    name = "conv_winograd_f32" if is_winograd else "conv_bf16"
    check("Conv", *((as_bf16(x), as_bf16(w)) if is_winograd else (x, w)), name, bf16=1,
          group=group, **attrs)  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("group", "c", "o"),
    [
        (1, 1, 1),
        (5, 1, 1),
        (35, 1, 1),
        (64, 1, 1),
        (33, 1, 2),
        (9, 4, 4),
        (5, 8, 8),
        (3, 3, 15),
        (6, 5, 2),
    ],
)
def test_narrow_groups(shape: Any, group: int, c: int, o: int) -> None:
    spatial, kernel, attrs = shape
    x, w = random(2, *spatial, c * group), random(o * group, c, *kernel)
    check("Conv", x, w, "conv_depthwise_f32" if group > 1 else "", group=group, **attrs)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("c", "o"), [(1, 1), (1, 4), (2, 3), (3, 2), (21, 1), (5, 7), (6, 11)])
def test_few_output_channels(shape: Any, c: int, o: int) -> None:
    spatial, kernel, attrs = shape
    stride = attrs.get("strides", [1])[-1]
    name = "conv_few_channels_f32" if stride <= kernel[-1] else "conv_f32"
    check("Conv", random(2, *spatial, c), random(o, c, *kernel), name, **attrs)


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 6, 17])
@pytest.mark.parametrize("size", [30, 128, 1029, 5000])
def test_one_long_row(stride: int, size: int) -> None:
    x, w = random(1, 1, size, 1), random(1, 1, 1, 28)
    check("Conv", x, w, "conv_few_channels_f32", strides=[1, stride], pads=[0, 13, 0, 15])


@pytest.mark.parametrize("out_channels", [5, 6, 8, 9, 12])
@pytest.mark.parametrize("dilation", [1, 2, 40])
def test_few_output_channels_with_dilation(out_channels: int, dilation: int) -> None:
    """Input rows that several output rows read, in bands; and taps too far apart for that."""
    attrs = {"dilations": [dilation, 1], "pads": [2, 1, 2 * dilation, 1]}
    x, w = random(1, 90, 63, 10), random(out_channels, 10, 4, 3)
    check("Conv", x, w, "conv_few_channels_f32", **attrs)


def test_infinity_and_nan_with_few_output_channels() -> None:
    x = random(1, 9, 40, 3)
    x[0, 2, 3, 1], x[0, 8, 39, 2] = np.inf, np.nan
    check("Conv", x, random(2, 3, 3, 3), "conv_few_channels_f32", pads=[1, 1, 1, 1])


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("size", [3, 8, 29, 150])
def test_depthwise(stride: int, kernel: int, size: int) -> None:
    half = kernel // 2
    attrs = {"strides": [stride] * 2, "pads": [half] * 4, "group": 21}
    check("Conv", random(1, size // 2 + 1, size, 21), random(21, 1, kernel, kernel), **attrs)


@pytest.mark.parametrize("pads", [[0, 2, 1, 0], [2, 0, 0, 4], [0, 0, 0, 0], [6, 9, 5, 8]], ids=str)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)])
@pytest.mark.parametrize("channels", [48, 512])
def test_depthwise_at_borders(channels: int, kernel: int, stride: int, pads: list[int]) -> None:
    """Windows that extend beyond the image on one side or on both, next to what is not finite."""
    x = random(2, 9, 19, channels)
    x[0, 0, 0, 1], x[1, 8, 18, 2] = np.inf, np.nan
    attrs = {"strides": [stride] * 2, "pads": pads, "group": channels}
    check("Conv", x, random(channels, 1, kernel, kernel), "conv_depthwise_f32", **attrs)


@pytest.mark.parametrize("tap", [(0, 1), (1, 0), (2, 2)])
def test_depthwise_channels_meet_padding_alike(tap: tuple[int, int]) -> None:
    """Weights that are not finite say whether zeros around an image are multiplied."""
    x, w = np.repeat(random(1, 9, 19, 1), 49, 3), np.repeat(random(1, 1, 3, 3), 49, 0)
    w[:, 0, tap[0], tap[1]] = np.inf
    node = node_of("Conv", x, w, pads=[1, 1, 1, 1], group=49)
    call = lowered(node)
    assert isinstance(call, Call)
    for isa in native.isas:
        y = run_call(call, node, {node.inputs[0]: x}, {}, isa, 2)[0]
        assert np.isnan(y).any()
        np.testing.assert_array_equal(y, np.repeat(y[..., :1], 49, -1), err_msg=isa)


def test_many_channels_and_pixels() -> None:
    check("Conv", random(1, 12, 13, 70), random(130, 70, 3, 3), pads=[1, 1, 1, 1])
    check("Conv", random(1, 3, 3, 600), random(40, 600, 1, 1))


@pytest.mark.parametrize(("c", "o"), [(16, 16), (17, 33), (40, 80), (512, 35)])
@pytest.mark.parametrize(("height", "width"), [(12, 16), (13, 17), (15, 14), (31, 50)])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [2, 3, 1, 5]])
def test_winograd(c: int, o: int, height: int, width: int, pads: list[int]) -> None:
    check("Conv", random(2, height, width, c), random(o, c, 3, 3), "conv_winograd_f32", pads=pads)


@pytest.mark.parametrize(("c", "o"), [(16, 16), (21, 35), (300, 33)])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3), (5, 1)])
def test_winograd_with_dilation(c: int, o: int, kernel: int, dilation: tuple[int, int]) -> None:
    attrs = {"dilations": list(dilation), "pads": [4, 5, 6, 7]}
    x, w = random(2, 23, 26, c), random(o, c, kernel, kernel)
    check("Conv", x, w, "conv_winograd_f32", **attrs)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool"])
def test_empty_batch(op: str) -> None:
    w = random(6, 6, 3, 3) if "Conv" in op else None
    attrs = {} if "Conv" in op else {"kernel_shape": [3, 3]}
    check(op, random(0, 5, 5, 6), w, **attrs)


TRANSPOSED = [
    ((9,), (3,), {}),
    ((5, 6), (3, 3), {"pads": [1, 0, 2, 1]}),
    ((5, 6), (2, 2), {"pads": [2, 0, 0, 2]}),  # crops more than a window of stride 1 reaches
    ((5, 6), (3, 3), {"dilations": [2, 1]}),
    ((9,), (3,), {"strides": [5]}),
    ((16, 5), (2, 2), {"strides": [2, 2]}),
    ((9,), (3,), {"strides": [3]}),
    ((3, 4), (2, 3), {"strides": [2, 3]}),
    ((3, 2, 4), (1, 2, 2), {"strides": [1, 2, 2]}),
    ((4, 5), (2, 2), {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
    ((4, 5), (3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    ((4, 5), (3, 3), {"strides": [2, 3], "output_padding": [1, 2]}),
    ((4, 5), (4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((4, 5), (3, 5), {"dilations": [2, 3], "strides": [2, 2]}),
    ((4, 5), (3, 5), {"dilations": [4, 3], "strides": [6, 2], "pads": [2, 1, 0, 3]}),
    ((4, 5), (3, 3), {"strides": [2, 2], "output_shape": [8, 10]}),
    ((4, 5), (3, 3), {"strides": [2, 3], "auto_pad": b"SAME_UPPER"}),
    ((4, 5), (3, 3), {"strides": [2, 3], "auto_pad": b"SAME_LOWER"}),
    ((3, 2, 4), (2, 3, 2), {"strides": [1, 2, 1]}),
]


@pytest.mark.parametrize("shape", TRANSPOSED, ids=str)
@pytest.mark.parametrize(("group", "c", "o"), [(1, 1, 1), (1, 7, 33), (2, 16, 5), (3, 1, 1)])
def test_conv_transpose(shape: Any, group: int, c: int, o: int) -> None:
    spatial, kernel, attrs = shape
    x, w = random(2, *spatial, c * group), random(c * group, o, *kernel)
    check("ConvTranspose", x, w, group=group, **attrs)


def test_conv_transpose_by_winograd() -> None:
    x, w = random(2, 14, 13, 17), random(17, 35, 3, 3)
    check("ConvTranspose", x, w, "conv_winograd_f32", pads=[1, 0, 1, 2])


POOLS = [*SHAPES, ((7, 7), (3, 3), {"strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 0, 0]})]
CHANNELS = (1, 15, 16, 17, 67)


@pytest.mark.parametrize("shape", POOLS, ids=str)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pool(op: str, shape: Any) -> None:
    spatial, kernel, attrs = shape
    for c in CHANNELS:
        check(op, random(2, *spatial, c), kernel_shape=list(kernel), **attrs)


@pytest.mark.parametrize("shape", POOLS, ids=str)
def test_average_pool_including_padding(shape: Any) -> None:
    spatial, kernel, attrs = shape
    x = random(1, *spatial, 5)
    check("AveragePool", x, kernel_shape=list(kernel), count_include_pad=1, **attrs)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(p: int) -> None:
    check("LpPool", random(1, 5, 5, 20), kernel_shape=[3, 3], p=p)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_integers(dtype: Any) -> None:
    check("MaxPool", random(1, 9, 9, 70, dtype=dtype), kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def test_nan_and_infinity_in_pools() -> None:
    x = random(1, 4, 4, 17)
    x[0, 1, 1, 3], x[0, 2, 2, 5], x[0, 0, 0] = np.nan, np.inf, -np.inf
    for op in ("MaxPool", "AveragePool"):
        check(op, x, kernel_shape=[2, 2])


@pytest.mark.parametrize(("group", "c", "o"), [(1, 20, 40), (4, 5, 3), (2, 1, 33)])
def test_weights_that_are_not_constants(group: int, c: int, o: int) -> None:
    x, w = random(2, 7, 6, c * group), random(o * group, c, 3, 2)
    graph = Graph()
    values = [Value(name, Fact(F32, a.shape)) for name, a in (("x", x), ("w", w))]
    graph.inputs.extend(values)
    node = Builder(graph, graph.scope).node("Conv", *values, domain=INTERNAL, group=group)
    call = lowered(node)
    assert isinstance(call, Call), call
    expected = node.op.run([x, w], node.attrs)[0]
    for isa in native.isas:
        found = run_splits(call, node, dict(zip(values, (x, w), strict=True)), isa)[0]
        np.testing.assert_allclose(found, expected, 2e-5, 1e-5, err_msg=isa)


def test_winograd_is_not_used_for_nearly_empty_tiles() -> None:
    x, w = random(1, 20, 20, 16), random(16, 16, 3, 3)
    check("Conv", x, w, "conv_f32", dilations=[9, 9], pads=[9] * 4)


def test_windows_beyond_the_image() -> None:
    x = random(1, 5, 6, 7)
    attrs = {"kernel_shape": [70, 1000], "pads": [40, 600, 40, 600], "strides": [9, 99]}
    check("MaxPool", x, **attrs)
    check("AveragePool", x, **attrs, count_include_pad=1)
    far = {"dilations": [300, 300], "pads": [300] * 4, "group": 7}
    check("Conv", x, random(7, 1, 3, 3), "conv_f32", **far)


def test_refusals() -> None:
    x, w = random(1, 4, 4, 4, 4, 3), random(2, 3, 2, 2, 2, 2)
    assert isinstance(lowered(node_of("Conv", x, w)), No)
    x, w = random(1, 4, 4, 3, dtype=np.float64), random(2, 3, 2, 2, dtype=np.float64)
    assert isinstance(lowered(node_of("Conv", x, w)), No)


@pytest.mark.parametrize(
    ("out_channels", "channels", "kernel", "group"),
    [(5, 3, (3, 3), 1), (33, 17, (1, 1), 1), (70, 8, (3, 2), 2), (64, 4, (17, 16), 1)],
)
def test_weights_are_scaled_while_packing(
    out_channels: int, channels: int, kernel: tuple[int, int], group: int
) -> None:
    weights, factors = random(out_channels, channels, *kernel), random(out_channels, 1, 1, 1)
    factors[:2] = np.array([np.inf, np.nan], np.float32).reshape(2, 1, 1, 1)
    depth = channels * kernel[0] * kernel[1]
    size = group * -(-out_channels // group // 32) * 32 * depth

    def packed(isa: str, *given: Any) -> Any:
        out = np.full(size, 7, np.float32)
        operands = [tensor(x, F32.onnx) for x in given], [tensor(out, F32.onnx)]
        assert not native.call("conv_pack", *operands, [group], [], 3, isa)
        return out

    for isa in native.isas:
        assert np.array_equal(
            packed(isa, weights, factors), packed(isa, weights * factors), equal_nan=True
        ), isa


@pytest.mark.parametrize("shape", [(6, 1, 1, 1), (1, 4, 1, 1), (1, 1, 1, 1), (6, 4, 3, 3)])
def test_recipes_are_packed_as_their_values(shape: tuple[int, ...]) -> None:
    weights, factors = random(6, 4, 3, 3), random(*shape)
    mul = lookup("", "Mul")
    assert mul is not None
    recipe = Recipe(mul, (ArrayConst(weights), ArrayConst(factors)), {}, 0, (F32, weights.shape))
    found = prepack(WeightLayout(recipe, "conv_pack", 32 * 36 * 4, (1,)))
    expected = prepack(WeightLayout(ArrayConst(weights * factors), "conv_pack", 32 * 36 * 4, (1,)))
    assert found.tobytes() == expected.tobytes()
