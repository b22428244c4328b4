"""Kernels of training: weights that are not constant, gradients by weights, MaxPool's indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx.graph.dtype import F32
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.ops.sliding_window import window_of
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from tests.kernels import run_splits
from tests.native.test_conv import CHANNELS, POOLS, SHAPES, Array, random


def node_of_inputs(op: str, arrays: list[Array], **attrs: Any) -> Node:
    """A node of an internal op whose operands are all inputs, as training has them."""
    graph = Graph()
    values = [Value(f"x{i}", Fact(F32, a.shape)) for i, a in enumerate(arrays)]
    graph.inputs.extend(values)
    return Builder(graph, graph.scope).node(op, *values, domain=INTERNAL, **attrs)


def outputs_of(node: Node, arrays: list[Array], kernel: str, isa: str) -> list[Array]:
    """The outputs of a kernel of this name."""
    call = lowered(node)
    assert isinstance(call, Call), call
    assert call.kernel == kernel
    return run_splits(call, node, dict(zip(node.inputs, arrays, strict=True)), isa)


def check_of_inputs(op: str, arrays: list[Array], kernel: str, **attrs: Any) -> None:
    """Compare a kernel with the reference in float64."""
    node = node_of_inputs(op, arrays, **attrs)
    expected = node.op.run([a.astype(np.float64) for a in arrays], node.attrs)[0]
    size = max(np.abs(expected).max(initial=0), 1e-30)
    least = (1e-5 if "winograd" in kernel else 4e-6) * size  # of any error
    for isa in native.isas:
        found = outputs_of(node, arrays, kernel, isa)[0]
        np.testing.assert_allclose(found, expected, 2e-5, least, err_msg=isa)


@pytest.mark.parametrize("shape", [s for s in SHAPES if "auto_pad" not in s[2]], ids=str)
@pytest.mark.parametrize(("group", "c", "o"), [(1, 1, 1), (1, 17, 33), (2, 3, 40)])
def test_gradient_by_weights(shape: Any, group: int, c: int, o: int) -> None:
    spatial, kernel, attrs = shape
    outs = window_of(kernel, {"auto_pad": b"NOTSET", "ceil_mode": 0, **attrs}).outs(spatial)
    x, dy = random(2, *spatial, c * group), random(2, *outs, o * group)
    kernel_name = "conv_weight_gradient_f32"
    if set(attrs) <= {"pads"} and group == 1 and c > 15 and kernel in ((3, 3), (5, 5)):
        kernel_name = "conv_winograd_gradient_f32"
    check_gradient(x, dy, kernel_name, kernel, group=group, **attrs)


def check_gradient(x: Array, dy: Array, kernel_name: str, kernel: Any, **attrs: Any) -> None:
    """Compare a kernel of the gradient by weights with the reference."""
    attrs |= {"kernel_shape": kernel, "channels_last": 1}
    check_of_inputs("ConvWeightGradient", [x, dy], kernel_name, **attrs)


@pytest.mark.parametrize(
    ("c", "o", "size"), [(3, 70, (31, 33)), (40, 9, (12, 50)), (300, 260, (6, 5))]
)
def test_gradient_by_weights_of_many_pixels(c: int, o: int, size: tuple[int, int]) -> None:
    """Sums over parts of the pixels, several blocks of rows and several of panels."""
    outs = [(n + 6 - 7) // 2 + 1 for n in size]
    x, dy = random(9, *size, c), random(9, *outs, o)
    attrs = {"strides": (2, 2), "pads": (3,) * 4}
    check_gradient(x, dy, "conv_weight_gradient_f32", (7, 7), **attrs)


def test_gradient_by_weights_of_an_empty_batch() -> None:
    x, dy = random(0, 5, 5, 3), random(0, 5, 5, 4)
    check_gradient(x, dy, "conv_weight_gradient_f32", (3, 3), pads=(1,) * 4)
    x, dy = random(0, 12, 12, 16), random(0, 12, 12, 16)
    check_gradient(x, dy, "conv_winograd_gradient_f32", (3, 3), pads=(1,) * 4)


@pytest.mark.parametrize(
    ("c", "o", "n", "size"),
    [
        (16, 16, 1, 12),
        (64, 64, 2, 14),
        (64, 64, 9, 30),
        (17, 33, 3, 13),
        (130, 70, 1, 7),
        (24, 260, 2, 9),
    ],
)
@pytest.mark.parametrize(("kernel", "pads"), [(3, 0), (3, 1), (5, 2), (5, 0)])
def test_gradient_by_weights_of_winograd(
    c: int, o: int, n: int, size: int, kernel: int, pads: int
) -> None:
    size += kernel - 1 - 2 * pads
    x, dy = (
        random(n, size, size + 1, c),
        random(n, size - kernel + 1 + 2 * pads, size + 2 - kernel + 2 * pads, o),
    )
    check_gradient(x, dy, "conv_winograd_gradient_f32", (kernel, kernel), pads=(pads,) * 4)


def test_gradient_by_weights_of_winograd_in_chunks() -> None:
    """Tiles that do not fit into the scratch memory at once."""
    x, dy = random(8, 113, 110, 512), random(8, 113, 110, 16)
    check_gradient(x, dy, "conv_winograd_gradient_f32", (3, 3), pads=(1,) * 4)


@pytest.mark.parametrize(("c", "o", "size"), [(16, 17, 13), (40, 33, 9), (512, 32, 7)])
@pytest.mark.parametrize("kernel", [3, 5])
def test_winograd_by_input_weights(c: int, o: int, size: int, kernel: int) -> None:
    x, w = random(2, size, size, c), random(o, c, kernel, kernel)
    pads = (kernel // 2,) * 4
    check_of_inputs("Conv", [x, w], "conv_winograd_unpacked_f32", pads=pads)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("group", "c", "o"), [(5, 1, 1), (18, 1, 2)])
def test_depthwise_by_input_weights(shape: Any, group: int, c: int, o: int) -> None:
    spatial, kernel, attrs = shape
    x, w = random(2, *spatial, c * group), random(o * group, c, *kernel)
    check_of_inputs("Conv", [x, w], "conv_depthwise_unpacked_f32", group=group, **attrs)


@pytest.mark.parametrize(
    ("spatial", "kernel", "attrs"),
    [
        ((5,), (4,), {"strides": [2]}),
        ((6, 5), (2, 2), {"strides": [2, 2]}),  # joined: windows do not overlap
        ((6, 5), (3, 3), {"strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 0]}),
        ((3, 4, 2), (2, 3, 2), {"dilations": [2, 1, 1], "pads": [3, 0, 0, 0, 0, 0]}),
    ],
    ids=str,
)
@pytest.mark.parametrize(("group", "c", "o"), [(1, 3, 5), (2, 17, 33)])
def test_transposed_by_input_weights(
    spatial: Any, kernel: Any, attrs: Any, group: int, c: int, o: int
) -> None:
    x, w = random(2, *spatial, c * group), random(c * group, o, *kernel)
    check_of_inputs("ConvTranspose", [x, w], "conv_transpose_unpacked_f32", group=group, **attrs)


@pytest.mark.parametrize(
    ("spatial", "kernel", "attrs"),
    [
        ((9,), (3,), {}),
        ((5, 6), (3, 2), {"pads": [1, 0, 2, 1]}),
        ((3, 4, 2), (2, 3, 2), {"dilations": [2, 1, 1]}),
    ],
    ids=str,
)
@pytest.mark.parametrize(("group", "c", "o"), [(1, 3, 5), (2, 17, 33)])
def test_flipped_by_input_weights(
    spatial: Any, kernel: Any, attrs: Any, group: int, c: int, o: int
) -> None:
    """A ConvTranspose of stride 1 is a convolution with flipped weights."""
    x, w = random(2, *spatial, c * group), random(c * group, o, *kernel)
    check_of_inputs("ConvTranspose", [x, w], "conv_flipped_unpacked_f32", group=group, **attrs)


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 2, 0)])
def test_flipped_by_input_weights_by_winograd(pads: Any) -> None:
    x, w = random(2, 14, 13, 17), random(17, 35, 3, 3)
    check_of_inputs("ConvTranspose", [x, w], "conv_winograd_flipped_unpacked_f32", pads=pads)


def check_max_pool(x: Array, kernel: Any, **attrs: Any) -> None:
    """Compare the maxima and their indices with the reference, exactly."""
    node = node_of_inputs("IndexedMaxPool", [x], outputs=2, kernel_shape=kernel, **attrs)
    expected = node.op.run([x], node.attrs)
    for isa in native.isas:
        found = outputs_of(node, [x], "max_pool_indices_f32", isa)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=isa)


@pytest.mark.parametrize("shape", POOLS, ids=str)
def test_max_pool_with_indices(shape: Any) -> None:
    spatial, kernel, attrs = shape
    for c in CHANNELS:
        check_max_pool(random(2, *spatial, c), kernel, **attrs)
    # Many equal elements: the first of them wins.
    check_max_pool(np.round(random(2, *spatial, 70)), kernel, **attrs)


def test_max_pool_with_indices_of_special_values() -> None:
    x = random(2, 6, 5, 67)
    x[0, 1, 1, 3], x[0, 1, 2, 3], x[0, 2, 2, 5], x[1, :, :, 66] = np.nan, np.nan, np.inf, -np.inf
    for pads in (0, 1):
        check_max_pool(x, (3, 2), strides=(2, 1), pads=(pads,) * 4)
    check_max_pool(x[:0], (3, 3))
    # Windows of padding alone.
    check_max_pool(x[:, :1, :1], (1, 1), pads=(2,) * 4)
