"""Gradient nodes inside models, as ai.onnx.preview.training defines them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.errors import InvalidGraph, NotImplemented

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1, "com.microsoft": 1]>'


def run(text: str, **feeds: Any) -> list[Any]:
    """The outputs of a model in ONNX's text form, which inference of onnx need not know."""
    model = onnx.parser.parse_model(f"{HEAD} {text}".replace("Gradient", f"{TRAINING}.Gradient"))
    session = sardonyx.InferenceSession(model.SerializeToString())
    arrays = {name: np.asarray(a, np.float32) for name, a in feeds.items()}
    return [a.tolist() for a in session.run(None, arrays)]


TRAINING = "ai.onnx.preview.training"
CUBE = "t = Mul(x, x) y = Mul(t, x)"
# By what they show: graph, feeds, outputs.
CASES: dict[str, tuple[str, dict[str, Any], list[Any]]] = {
    "at its own values": (
        f'g (float[2] x) => (float[2] d) {{ {CUBE} d = Gradient<xs=["x"], y="y">(x) }}',
        {"x": [1, 2]},
        [[3, 12]],
    ),
    "at another value": (
        (
            f"g (float[2] x, float[2] p) => (float[2] y, float[2] d) "
            f'{{ {CUBE} d = Gradient<xs=["x"], y="y">(p) }}'
        ),
        {"x": [1, 2], "p": [3, 4]},
        [[1, 8], [27, 48]],
    ),
    "of a value in between": (
        (
            f"g (float[2] x) => (float[2] d, float[2] e) "
            f'{{ {CUBE} d, e = Gradient<xs=["t", "x"], y="y">(t, x) }}'
        ),
        {"x": [1, 2]},
        [[1, 2], [1, 4]],
    ),
    "others are held": (
        (
            "g (float[2] x, float[2] w) => (float[2] d) "
            '{ y = Mul(x, w) d = Gradient<xs=["w"], zs=["x"], y="y">(w, x) }'
        ),
        {"x": [5, 6], "w": [1, 1]},
        [[5, 6]],
    ),
    "twice": (
        (
            f'g (float[2] x) => (float[2] e) {{ {CUBE} d = Gradient<xs=["x"], y="y">(x) '
            'e = Gradient<xs=["x"], y="d">(x) }'
        ),
        {"x": [1, 2]},
        [[6, 12]],
    ),
    "of what does not depend": (
        (
            "g (float[2] x, float[3] w) => (float[3] d) "
            '{ y = Neg(x) d = Gradient<xs=["w"], zs=["x"], y="y">(w, x) }'
        ),
        {"x": [5, 6], "w": [1, 1, 1]},
        [[0, 0, 0]],
    ),
    "used further on": (
        (
            f"g (float[2] x) => (float[2] z) "
            f'{{ {CUBE} d = Gradient<xs=["x"], y="y">(x) z = Sub(x, d) }}'
        ),
        {"x": [1, 2]},
        [[-2, -10]],
    ),
    "an open size": (
        (
            "g (float[n] x) => (float[n] d) "
            '{ y = ReduceSumSquare(x) d = Gradient<xs=["x"], y="y">(x) }'
        ),
        {"x": [1, 2, 3]},
        [[2, 4, 6]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str) -> None:
    text, feeds, want = CASES[name]
    assert run(text, **feeds) == want


def test_in_a_branch() -> None:
    text = """g (float[2] x, bool c) => (float[2] r) {
        r = If (c) <
          then_branch = a () => (float[2] d) { y = Mul(x, x) d = Gradient<xs=["x"], y="y">(x) },
          else_branch = b () => (float[2] e) { e = Neg(x) }
        > }""".replace("Gradient", f"{TRAINING}.Gradient")
    session = sardonyx.InferenceSession(onnx.parser.parse_model(f"{HEAD} {text}"))
    x = np.float32([1, 2])
    assert session.run(None, {"x": x, "c": np.array(True)})[0].tolist() == [2, 4]
    assert session.run(None, {"x": x, "c": np.array(False)})[0].tolist() == [-1, -2]


def test_of_a_loop_at_another_value() -> None:
    text = """g (float[2] x, float[2] p) => (float[2] d) {
        n = Constant<value = int64 {3}>()
        y = Loop (n, , x) <body = b (int64 i, bool c, float[2] s) => (bool e, float[2] t)
            { e = Identity(c) t = Mul(s, x) }>
        d = Gradient<xs=["x"], y="y">(p) }"""
    assert run(text, x=[1, 2], p=[2, 3]) == [[32, 108]]


def test_the_trained_weight_may_be_a_constant() -> None:
    text = (
        "g (float[2] x) => (float[2] d) <float[2] w = {2, 3}> { y = Mul(x, w) "
        'd = Gradient<xs=["w"], zs=["x"], y="y">(w, x) }'
    )
    assert run(text, x=[5, 6]) == [[5, 6]]


REFUSED = {
    "no such value": ('d = Gradient<xs=["x"], y="nothing">(x)', "'nothing', which nothing"),
    "no y": ('d = Gradient<xs=["x"]>(x)', "needs the attributes xs and y"),
    "too few inputs": ('d = Gradient<xs=["x"], zs=["y"], y="y">(x)', "names 2 values in xs and zs"),
    "too many outputs": ('d, e = Gradient<xs=["x"], y="y">(x)', "2 outputs, and names 1"),
    "no floats": ('i = Cast<to=7>(x) d = Gradient<xs=["i"], y="y">(i)', "to have a gradient"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    made, said = REFUSED[name]
    with pytest.raises(InvalidGraph, match=said):
        run(f"g (float[2] x) => (float[2] d) {{ y = Mul(x, x) {made} }}", x=[1, 2])


def test_an_op_without_a_gradient_is_named() -> None:
    with pytest.raises(NotImplemented, match=r"Inverse has no gradient"):
        run(
            """g (float[2, 2] x) => (float[2, 2] d) {
                y = com.microsoft.Inverse(x) d = Gradient<xs=["x"], y="y">(x) }""",
            x=np.eye(2),
        )
