"""Gradients through control flow, sequences and optionals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest

import sardonyx
from sardonyx.autodiff.recompute import RECOMPUTED
from sardonyx.errors import NotImplemented
from sardonyx.graph.verify import verify
from sardonyx.save import SaveOptions, save
from sardonyx.train import gradient
from tests.train.flow import BRANCHES, CONSTANTS, FLOWS, LOOPS, SCANS, YES
from tests.train.test_gradient import model_of

STEP = 1e-5
BY = ["x", "w"]


def model_with(name: str, dim: str = "4", output: str = "double loss") -> Any:
    """A model whose y is what the flow makes of x and w; the loss is a sum that weighs y."""
    inputs, nodes, _ = FLOWS[name]
    more = f", {inputs}" if inputs else ""
    return model_of(
        f"""g (double[{dim}] x, double[{dim}] w{more}) => ({output}) {{ {CONSTANTS} {nodes}
        weighted = Sin(y) loss = ReduceSum<keepdims=0>(weighted) }}"""
    )


def feeds_of(name: str) -> list[dict[str, Any]]:
    rng = np.random.default_rng(len(name))
    floats = {"x": rng.uniform(0.3, 1.3, 4), "w": rng.uniform(-1.2, 1.2, 4)}
    return [floats | more for more in FLOWS[name][2]]


def session_of(model: Any) -> Any:
    return sardonyx.InferenceSession(model)


@pytest.mark.parametrize("dim", ["4", "m"], ids=["fixed", "open"])
@pytest.mark.parametrize("name", FLOWS)
def test_differences(name: str, dim: str) -> None:
    made = gradient(model_with(name, dim), "loss", BY)
    verify(made.graph)
    session = session_of(made)
    rng = np.random.default_rng(1)
    for feeds in feeds_of(name):
        _, *grads = session.run(None, feeds)
        for by, grad in zip(BY, grads, strict=True):
            direction = rng.standard_normal(4)
            ends = [
                session.run(["loss"], feeds | {by: feeds[by] + s * STEP * direction})[0]
                for s in (1, -1)
            ]
            np.testing.assert_allclose(
                (ends[0] - ends[1]) / (2 * STEP), grad @ direction, 1e-7, 1e-7
            )


# Gradients of sequences are carried by the first backward loop, which would have to collect them.
NOT_TWICE = ("earlier elements read in a loop", "a sequence from outside, read in a loop")


@pytest.mark.parametrize("name", NOT_TWICE)
def test_sequences_of_each_iteration_are_not_collected(name: str) -> None:
    first = gradient(model_with(name), "loss", ["x"])
    with pytest.raises(NotImplemented, match=r"(?s)in each iteration.*node.*Loop.*hint"):
        gradient(first, "x_grad", BY, seeds=True)


@pytest.mark.parametrize("name", [n for n in FLOWS if n not in NOT_TWICE])
def test_second_derivatives(name: str) -> None:
    first = gradient(model_with(name), "loss", ["x"])
    made = gradient(first, "x_grad", BY, seeds=True)
    session = session_of(made)
    rng = np.random.default_rng(2)
    seed = rng.standard_normal(4)
    for feeds in feeds_of(name):
        fed = feeds | {"x_grad_grad": seed}
        found = session.run(["x_grad_grad_grad", "w_grad"], fed)
        for by, grad in zip(BY, found, strict=True):
            direction = rng.standard_normal(4)
            ends = [
                session.run(["x_grad"], fed | {by: feeds[by] + s * STEP * direction})[0] @ seed
                for s in (1, -1)
            ]
            np.testing.assert_allclose(
                (ends[0] - ends[1]) / (2 * STEP), grad @ direction, 1e-6, 1e-6
            )


@pytest.mark.parametrize("name", FLOWS)
def test_seeds(name: str) -> None:
    """A seed has the shape of its output, whose sizes may be known only when the model runs."""
    model = model_with(name, "m", "double loss, y")
    summed = session_of(gradient(model, "loss", BY))
    seeded = session_of(gradient(model, "y", BY, seeds=True))
    names = ["x_grad", "w_grad"]
    for feeds in feeds_of(name):
        y, *wanted = summed.run(["y", *names], feeds)
        found = seeded.run(names, feeds | {"y_grad": np.cos(y)})
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, 1e-12, 1e-12)


# onnxruntime wants a condition, if an empty one.
ELSEWHERE = [n for n in (*BRANCHES, *LOOPS, *SCANS) if n != "a trip count alone"]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_saved_graphs_run_elsewhere(name: str, tmp_path: Path) -> None:
    made = gradient(model_with(name), "loss", BY)
    save(made, SaveOptions(str(tmp_path / "gradient.onnx")))
    other = onnxruntime.InferenceSession(str(tmp_path / "gradient.onnx"))
    session = session_of(made)
    for feeds in feeds_of(name):
        for a, b in zip(session.run(None, feeds), other.run(None, feeds), strict=True):
            np.testing.assert_allclose(a, b, 1e-12, 1e-12)


def unrolled(name: str, n: int) -> Any:
    """The graph of one of LOOPS below, written out for a trip count."""
    return model_of(
        "g (double[4] x, double[4] w) => (double loss) { s0 = Identity(x) "
        + " ".join(UNROLLED[name][1][i % 2].format(i=i, j=i + 1) for i in range(n))
        + f" y = Identity(s{n}) weighted = Sin(y) loss = ReduceSum<keepdims=0>(weighted) }}"
    )


_HEAD = "y = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t)"
# The nodes of a loop, and those of iterations of even and odd numbers.
UNROLLED = {
    "a product": (
        _HEAD + " { d = Identity(c) m = Mul(s, w) t = Tanh(m) }>",
        ["m{i} = Mul(s{i}, w) s{j} = Tanh(m{i})"] * 2,
    ),
    "a branch by the iteration": (
        _HEAD
        + """ { d = Identity(c) m = Mod(k, two) e = Equal(m, one)
            t = If (e) <then_branch = th () => (double[4] a) { p = Mul(s, w) a = Sin(p) },
                        else_branch = el () => (double[4] b1) { b1 = Softmax(s) }> }>""",
        ["s{j} = Softmax(s{i})", "p{i} = Mul(s{i}, w) s{j} = Sin(p{i})"],
    ),
}


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("name", UNROLLED)
def test_unrolled(name: str, n: int) -> None:
    nodes, _ = UNROLLED[name]
    loop = model_of(
        f"""g (double[4] x, double[4] w, int64 n) => (double loss) {{ {CONSTANTS} {nodes}
        weighted = Sin(y) loss = ReduceSum<keepdims=0>(weighted) }}"""
    )
    feeds = feeds_of("both branches")[0]
    del feeds["c"]
    found = session_of(gradient(loop, "loss", BY)).run(None, feeds | {"n": np.array(n)})
    text = unrolled(name, n)
    is_read = any("w" in node.input for node in text.graph.node)
    wanted = session_of(gradient(text, "loss", BY if is_read else ["x"])).run(None, feeds)
    for a, b in zip(found, wanted if is_read else [*wanted, np.zeros(4)], strict=True):
        np.testing.assert_allclose(a, b, 1e-13, 1e-13)


def test_weights_that_bodies_read_are_trained() -> None:
    text = f"""g (float[4] x, int64 n) => (float loss) {{ {YES}
        y = Loop (n, yes, x) <body = b (int64 k, bool c, float[4] s) => (bool d, float[4] t)
             {{ d = Identity(c) m = Mul(s, w) t = Add(m, v) }}> loss = ReduceSum<keepdims=0>(y)
               }}"""
    made = gradient(model_of(text, w=np.float32([1, 2, 3, 4]), v=np.zeros(4, np.float32)))
    assert [d.name for d in made.outputs] == ["loss", "w_grad", "v_grad"]
    x = np.float32([1, 1, 2, 1])
    _, w_grad, v_grad = session_of(made).run(None, {"x": x, "n": np.array(2)})
    np.testing.assert_array_equal(w_grad, [2, 4, 12, 8])
    np.testing.assert_array_equal(v_grad, [2, 3, 4, 5])


DRAWN = {
    "loop": """y, r = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) =>
        (bool d, double[4] t, double[4] q) { d = Identity(c) q = RandomNormalLike(s) t = Mul(s,
          q) }>""",
    "branch": """c = Less(zero, n) y, r = If (c) <
        then_branch = th () => (double[4] a, double[4] q) { q = RandomNormalLike(x) a = Mul(x, q) },
        else_branch = el () => (double[4] b, double[4] p) { b = Identity(x) p = Identity(w) }>""",
}


@pytest.mark.parametrize("name", DRAWN)
def test_random_numbers_are_those_of_the_forward_part(name: str) -> None:
    """y is a product of x and numbers that are drawn, which the second output has."""
    text = f"""g (double[4] x, double[4] w, int64 n) => (double loss, double[k, 4] r)
        {{ {CONSTANTS} {DRAWN[name]} loss = ReduceSum<keepdims=0>(y) }}"""
    session = session_of(gradient(model_of(text), "loss", ["x"]))
    _, drawn, grad = session.run(None, {"x": np.ones(4), "w": np.ones(4), "n": np.array(3)})
    np.testing.assert_allclose(grad, np.prod(drawn.reshape(-1, 4), axis=0), 1e-13)


REFUSED = {
    "random numbers in a body of a body": (
        """y = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t) {
             d = Identity(c)
             t = If (c) <then_branch = th () => (double[4] a) { q = RandomNormalLike(s) a =
               Mul(s, q) },
                         else_branch = el () => (double[4] b1) { b1 = Identity(s) }> }>""",
        "If in a body has no gradient: recomputing its RandomNormalLike would draw",
    ),
    "a sequence in the body of a SequenceMap": (
        """s = SequenceConstruct(x, w)
           m = SequenceMap <body = b (double[4] v) => (double[4] q)
             { e = SequenceAt(s, n) q = Mul(v, e) }> (s) y = SequenceAt(m, n)""",
        "SequenceMap has no gradient with respect to the sequence s",
    ),
    "random numbers for each element": (
        """s = SequenceConstruct(x, w)
           m = SequenceMap <body = b (double[4] v) => (double[4] q)
             { r = RandomNormalLike(v) q = Mul(v, r) }> (s) y = SequenceAt(m, n)""",
        "SequenceMap with random numbers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    nodes, said = REFUSED[name]
    text = f"""g (double[4] x, double[4] w, int64 n) => (double loss) {{ {CONSTANTS} {nodes}
        loss = ReduceSum<keepdims=0>(y) }}"""
    with pytest.raises(NotImplemented, match=rf"(?s){said}.*node"):
        gradient(model_of(text), "loss", BY)


FLEX = """<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview": 1]>
    g (double[1, 2, 3, 4] q, double[1, 1, 5, 4] k, double[1, 1, 5, 2] v, double[5] w) => (double
      loss) {
        y = ai.onnx.preview.FlexAttention <
            score_mod = s (double[1, 2, 3, 5] a) => (double[1, 2, 3, 5] b) { c = Mul(a, w) b =
              Sin(c) },
            prob_mod = p (double[1, 2, 3, 5] d) => (double[1, 2, 3, 5] e) { e = Mul(d, d) }
        > (q, k, v)
        z = Sin(y) loss = ReduceSum<keepdims=0>(z) }"""


def test_flex_attention() -> None:
    """The modifiers have gradients, and so has what they read from outside."""
    rng = np.random.default_rng(0)
    shapes = {"q": (1, 2, 3, 4), "k": (1, 1, 5, 4), "v": (1, 1, 5, 2), "w": (5,)}
    feeds = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    session = session_of(gradient(onnx.parser.parse_model(FLEX), "loss", list(shapes)))
    _, *grads = session.run(None, feeds)
    for by, grad in zip(shapes, grads, strict=True):
        direction = rng.standard_normal(shapes[by])
        ends = [
            session.run(["loss"], feeds | {by: feeds[by] + s * STEP * direction})[0]
            for s in (1, -1)
        ]
        wanted = (ends[0] - ends[1]) / (2 * STEP)
        np.testing.assert_allclose(np.sum(grad * direction), wanted, 1e-7, 1e-7)


def test_bodies_read_recomputed_values() -> None:
    text = f"""g (double[4] x, double[4] w, int64 n) => (double loss) {{ {YES}
        a = Mul(x, w) u = Sin(a)
        y = Loop (n, yes, x) <body = b (int64 k, bool c, double[4] s) => (bool d, double[4] t)
             {{ d = Identity(c) m = Mul(s, u) t = Tanh(m) }}> loss = ReduceSum<keepdims=0>(y) }}"""
    feeds = feeds_of("both branches")[0] | {"n": np.array(3)}
    del feeds["c"]
    plain = gradient(model_of(text), "loss", BY)
    again = gradient(model_of(text), "loss", BY, recompute=lambda node: True)
    names = [node.op.name for node in again.graph.nodes]
    assert names.count("Sin") == 2
    loop = [node for node in again.graph.nodes if node.op.name == "Loop"][1]
    (sine,) = (v for v in loop.reads() if v.op == "Sin")
    assert sine.node is not None
    assert sine.node.priority == RECOMPUTED
    for a, b in zip(*(session_of(made).run(None, feeds) for made in (plain, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_elements_that_are_stacked_are_a_scan_output() -> None:
    """Without sequences, all of it runs natively."""
    made = gradient(model_with("one appended per iteration, then stacked"), "loss", BY)
    assert not any("Sequence" in node.op.name for node in made.graph.all_nodes())
