"""NHWC layout propagation: which nodes are converted, what it costs, that results stay."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.graph.graph import Graph
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.passes.layout.propagate import propagate_layout
from sardonyx.passes.replace import prune
from sardonyx.passes.shape_arithmetic import lower_sizes
from tests.graphs import canonical, random_feeds, run_graph

X = "in x: f32[B,4,6,6]\nconst w: f32[4,4,1,1]\nconst v: f32[4,4,1,1]\n"


def propagated(text: str) -> Graph:
    """The graph of a text with its channels last, which computes the same as before."""
    before, after = parse(text), parse(text)
    lower_sizes(after)
    propagate_layout(after)
    prune(after)
    verify(after)
    names = [v.name for v in before.outputs]
    assert [v.name for v in after.outputs] == names
    feeds = random_feeds(before)
    for want, got in zip(run_graph(before, feeds), run_graph(after, feeds), strict=True):
        assert want.dtype == got.dtype
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return after


def check(text: str, into: str) -> None:
    """A text becomes another one."""
    assert canonical(propagated(text)) == canonical(parse(into))


def moves(graph: Graph) -> int:
    """Return the number of Transposes in a graph and its bodies."""
    return sum(n.op.name == "Transpose" for n in graph.all_nodes())


def test_a_conv_becomes_conv_and_add() -> None:
    check(
        X + "const c: f32[4]\ny = Conv(x, w, c)\nout y",
        X
        + "const c: f32[4]\na = Transpose(x, perm=[0, 2, 3, 1])\nb = sardonyx.Conv(a, w)\n"
        + "d = Add(b, c)\ny = Transpose(d, perm=[0, 3, 1, 2])\nout y",
    )


def test_fused_conv_is_decomposed() -> None:
    check(
        X + "const c: f32[4]\n"
        "y = com.microsoft.FusedConv(x, w, c, x, activation='Clip', activation_params=[0.0, 6.0])\n"
        "out y",
        X
        + "const c: f32[4]\na = Transpose(x, perm=[0, 2, 3, 1])\nb = sardonyx.Conv(a, w)\n"
        + "d = Add(b, c)\ne = Add(d, a)\nf = Clip(e, 0.0, 6.0)\n"
        + "y = Transpose(f, perm=[0, 3, 1, 2])\nout y",
    )


BETWEEN = {
    "activation": "b = Sigmoid(a)",
    "constant per channel": "const k: f32[1,4,1,1]\nb = Mul(a, k)",
    "constant without batch": "const k: f32[4,1,1]\nb = Sub(k, a)",
    "constant per pixel": "const k: f32[6,6]\nb = Add(a, k)",
    "constant of images": "const k: f32[1,4,6,6]\nb = Max(a, k)",
    "scalar": "b = Pow(a, 2.0)",
    "two images": "c = Relu(a)\nb = Mul(a, c)",
    "concat": "c = Relu(a)\nd = Concat(a, c, axis=1)\nb = Slice(d, [2], [6], [1])",
    "concat of rows": "c = Concat(a, a, axis=2)\nb = Slice(c, [0], [6], [-2])",
    "split": "c, d = Split(a, axis=-3, num_outputs=2)\nb = Concat(d, c, axis=1)",
    "slice of all axes": "c = Slice(a, [0, 0, 1, 2], [9, 9, 9, 9])\nb = Sum(c, 1.0)",
    "pad": "b = Pad(a, [0, 1, 2, 0, 0, -1, 0, 3], 0.5)",
    "pad of axes": "b = Pad(a, [1, 2], 0.5, [-1])",
    "softmax": "b = Softmax(a, axis=1)",
    "nearest": "b = Resize(a, _, [1.0, 1.0, 2.0, 2.0], _)",
    "linear by sizes": "b = Resize(a, _, _, [3, 4, 5, 9], mode='linear')",
    "resize of axes": "b = Resize(a, _, [2.0, 0.5], _, axes=[3, 2])",
    "squeeze and excite": "c = ReduceMean(a, [2, 3])\nd = Conv(c, v)\ne = Relu(d)\nf = Conv(e, w)\n"
    "g = Sigmoid(f)\nb = Mul(a, g)",
    "global pool": "c = ReduceMean(a, [2, 3])\nb = Mul(a, c)",
    "max pool": "b = MaxPool(a, kernel_shape=[2, 2], strides=[2, 2])",
    "average pool": "b = AveragePool(a, kernel_shape=[3, 3], pads=[1, 1, 1, 1])",
    "transposed convolution": "const t: f32[4,4,2,2]\nb = ConvTranspose(a, t, strides=[2, 2])",
    "normalization": "const s: f32[4]\nb = BatchNormalization(a, s, [1.0, 2.0, 3.0, 4.0], s, "
    "[1.0, 2.0, 3.0, 4.0])",
    "instance normalization": "const s: f32[4]\nb = InstanceNormalization(a, s, s)",
    "layer norm between": "const s: f32[4]\nc = Transpose(a, perm=[0, 2, 3, 1])\n"
    "d = LayerNormalization(c, s, s)\ne = Transpose(d, perm=[0, 3, 1, 2])\nb = Add(e, a)",
    "quantized": "c = QuantizeLinear(a, [0.5, 0.25, 0.125, 1.0], [1, 2, 3, 4]:u8)\n"
    "b = DequantizeLinear(c, [0.5, 0.25, 0.125, 1.0], [1, 2, 3, 4]:u8)",
    "pixels as tokens": "c = Reshape(a, [0, 4, 36])\nd = Transpose(c, perm=[0, 2, 1])\n"
    "const s: f32[4]\ne = LayerNormalization(d, s, s)\nf = Transpose(e, perm=[0, 2, 1])\n"
    "b = Reshape(f, [0, 4, 6, 6])",
    "tile": "b = Tile(a, [1, 1, 2, 1])",
    "where": "c = Greater(a, 0.0)\nb = Where(c, a, 0.5)",
    "cast": "c = Cast(a, to=11)\nd = Exp(c)\nb = Cast(d, to=1)",
    "squeezed row": "c = ReduceMax(a, [2], keepdims=0)\nd = Relu(c)\nb = Unsqueeze(d, [2])",
    "largest channel": "c = ArgMax(a, axis=1, keepdims=0)\nd = Cast(c, to=1)\n"
    "e = Unsqueeze(d, [1])\nb = Mul(a, e)",
}


@pytest.mark.parametrize("name", BETWEEN)
def test_ops_that_follow_nhwc(name: str) -> None:
    """Nodes between two convolutions need no Transposes."""
    graph = propagated(X + f"a = Conv(x, w)\n{BETWEEN[name]}\ny = Conv(b, v)\nout y")
    assert moves(graph) == (3 if name == "largest channel" else 2)


ENDS = {
    "mean and product": "b = ReduceMean(a, [2, 3])\nc = Flatten(b)\nconst m: f32[4,3]\n"
    "y = MatMul(c, m)",
    "mean without dims": "y = ReduceMean(a, [2, 3], keepdims=0)",
    "reshape of one pixel": "b = ReduceMean(a, [2, 3])\ny = Reshape(b, [0, -1])",
    "squeeze of one pixel": "b = ReduceMean(a, [2, 3])\ny = Squeeze(b, [2, 3])",
    "classes": "y = ArgMax(a, axis=1, keepdims=0)",
    "channels asked for last": "y = Transpose(a, perm=[0, 2, 3, 1])",
    "one map": "const o: f32[1,4,1,1]\nb = Conv(a, o)\ny = Reshape(b, [0, 36])",
}


@pytest.mark.parametrize("name", ENDS)
def test_ops_that_keep_nchw(name: str) -> None:
    assert moves(propagated(X + f"a = Conv(x, w)\n{ENDS[name]}\nout y")) == 1


def test_depth_to_space() -> None:
    for mode in ("DCR", "CRD"):
        text = f"a = Conv(x, w)\ny = DepthToSpace(a, blocksize=2, mode='{mode}')\nout y"
        assert moves(propagated(X + text)) == 3  # blocks are moved once, images at both ends
    text = "a = Conv(x, w)\nb = SpaceToDepth(a, blocksize=2)\nc = ReduceMax(b, [2, 3])\nout c"
    moves(propagated(X + text))


def test_other_ranks() -> None:
    line = "in x: f32[B,4,L]\nconst w: f32[4,4,3]\na = Conv(x, w, pads=[1, 1])\nb = Relu(a)\n"
    assert moves(propagated(line + "y = Conv(b, w)\nout y")) == 2
    volume = "in x: f32[B,2,3,4,5]\nconst w: f32[2,2,1,1,1]\na = Conv(x, w)\n"
    volume += "const k: f32[2,1,1,1]\nb = Mul(a, k)\n"
    assert moves(propagated(volume + "y = Conv(b, w)\nout y")) == 2


def test_transposes_move_few_bytes() -> None:
    """Images move before they grow and after they shrink."""
    grown = propagated(X + "a = Conv(x, w)\ny = Resize(a, _, [1.0, 1.0, 3.0, 3.0], _)\nout y")
    (resize,) = [n for n in grown.nodes if n.op.name == "Resize"]
    assert resize.outputs[0] is grown.outputs[0]
    bytes_in = propagated("in x: u8[B,4,6,6]\nconst w: f32[4,4,1,1]\na = Cast(x, to=1)\n"
                      "b = Relu(a)\ny = Conv(b, w)\nout y")  # fmt: skip
    assert bytes_in.sorted_nodes()[0].op.name == "Transpose"


def test_each_layout_is_computed_once() -> None:
    graph = propagated(
        X + "a = Conv(x, w)\nb = Relu(a)\nc = Conv(b, v)\nd = Reshape(b, [0, -1])\n"
        "e = Reshape(b, [-1])\nout a, c, d, e"
    )
    assert moves(graph) == 4  # x, a, b and c


def test_bodies_read_nchw() -> None:
    graph = propagated(
        X
        + "in k: bool[]\na = Conv(x, w)\nb = Relu(a)\ny = If(k) { then_branch: { t = Neg(b) out t }"
        " else_branch: { u = Conv(b, v) out u } }\nz = Conv(b, v)\nout y, z"
    )
    assert moves(graph) == 4  # x, b for the first branch, and both results


def test_symbolic_sizes() -> None:
    graph = propagated(
        "in x: f32[B,4,H,W]\nconst w: f32[4,4,1,1]\na = Conv(x, w)\ns = Shape(a)\n"
        "b = Slice(s, [0], [2])\nc = Concat(b, [-1], axis=0)\nd = Reshape(a, c)\n"
        "y = Transpose(d, perm=[0, 2, 1])\nout y"
    )
    assert moves(graph) == 1


def test_graphs_without_convolutions_are_unchanged() -> None:
    text = "in x: f32[B,4,6]\na = Transpose(x, perm=[0, 2, 1])\ny = Relu(a)\nout y"
    check(text, text)
    half = "in x: f16[B,4,6,6]\nconst w: f16[4,4,1,1]\ny = Conv(x, w)\nout y"
    check(half, half)
    indices = X + "y, i = MaxPool(x, kernel_shape=[2, 2], storage_order=1)\nout y, i"
    check(indices, indices)


def test_indices_of_max_pool_are_permuted_with_the_maxima() -> None:
    graph = propagated(X + "y, i = MaxPool(x, kernel_shape=[2, 2])\nout y, i")
    assert [n.op.name for n in graph.nodes if n.op.domain] == ["IndexedMaxPool"]
    assert moves(graph) == 3


def test_weight_gradients_are_channels_last() -> None:
    graph = propagated(
        "in x: f32[2,4,6,7]\nin g: f32[2,5,4,5]\na = Relu(g)\n"
        "y = sardonyx.ConvWeightGradient(x, a, kernel_shape=[3, 3])\nout y"
    )
    assert [n.attrs["channels_last"] for n in graph.nodes if n.op.domain] == [1]
    assert moves(graph) == 2


def test_a_constant_image_keeps_its_batch() -> None:
    propagated("const x: f32[1,4,6,6]\nin w: f32[4,4,3,3]\ny = Conv(x, w)\nout y")
