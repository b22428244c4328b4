"""Custom ops in Python and C: declaration, inference, execution, errors."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx import custom_op, native_op, unregister_custom_op
from sardonyx.custom_ops.native_op import C_FUNCTION
from sardonyx.errors import (
    InvalidArgument,
    InvalidGraph,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from sardonyx.graph.fact import Fact
from tests.session.acme import session

pytestmark = pytest.mark.usefixtures("unregistered_ops")


def run(text: str, **feeds: Any) -> list[Any]:
    return session(text).run(None, feeds)


def f32(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


def test_attributes_types_and_inputs_that_are_left_out() -> None:
    @custom_op(
        "acme",
        "Scale",
        inputs="x:T bias:T?",
        outputs="y:T",
        types={"T": "float double"},
        attrs={"factor": 2.0, "names": ["a", "b"], "mode": str},
        shape="first",
    )
    def scale(x: Any, bias: Any, *, factor: float, names: list[str], mode: str) -> Any:
        assert (names, mode) == (["a", "b"], "plain")
        return x * x.dtype.type(factor) + (0 if bias is None else bias)

    text = 'g (float[n] x) => (float[n] z) { y = acme.Scale<mode="plain">(x) z = Neg(y) }'
    assert run(text, x=f32(1, 2))[0].tolist() == [-2, -4]
    text = 'g (double[n] x) => (double[n] y) { y = acme.Scale<mode="plain", factor=3.0>(x, x) }'
    assert run(text, x=np.array([1.0, 2.0]))[0].tolist() == [4, 8]
    with pytest.raises(sardonyx.SardonyxError, match="needs the attribute mode"):
        session("g (float[n] x) => (float[n] y) { y = acme.Scale(x) }")
    with pytest.raises(sardonyx.SardonyxError, match="Scale"):
        session('g (int64[n] x) => (int64[n] y) { y = acme.Scale<mode="plain">(x) }')
    assert scale(f32(1), None, factor=5.0, names=["a", "b"], mode="plain").tolist() == [5]


def _facts(text: str) -> list[Any]:
    compiled = session(text)._compiled
    return [v for v in compiled.model.graph.outputs if isinstance(v.fact, Fact)]


def test_shape_rules_with_symbolic_sizes() -> None:
    @custom_op(
        "acme",
        "Pairs",
        inputs="x:float",
        outputs="y:float n:int64",
        shape=lambda x: [(x[0] // 2, x[1] * 2), ()],
    )
    def pairs(x: Any) -> Any:
        return x.reshape(len(x) // 2, -1), np.int64(len(x) // 2)

    text = "g (float[b,4] x) => (float[m,k] y, int64 n) { y, n = acme.Pairs(x) }"
    (y, n) = _facts(text)
    assert [str(d) for d in y.fact.shape] == ["div(b, 2)", "8"]
    assert n.fact.shape == ()
    y, n = run(text, x=np.arange(24, dtype=np.float32).reshape(6, 4))
    assert y.shape == (3, 8)
    assert n == 3


def test_without_a_shape_rule_sizes_depend_on_data() -> None:
    @custom_op("acme", "Positive", inputs="x:float", outputs="y:float")
    def positive(x: Any) -> Any:
        return x[x > 0]

    text = "g (float[n] x) => (float[m] z) { y = acme.Positive(x) z = Add(y, y) }"
    assert run(text, x=f32(-1, 2, 3))[0].tolist() == [4, 6]


def test_results_that_are_inputs_are_copied() -> None:
    custom_op("acme", "Same", inputs="x:float", outputs="y:float", shape="first")(lambda x: x)
    x = f32(1, 2)
    (y,) = run("g (float[2] x) => (float[2] y) { y = acme.Same(x) }", x=x)
    assert not np.may_share_memory(x, y)


BAD_RESULTS = {
    "type": (lambda x: x.astype(np.float64), "returned float64, and declares float"),
    "shape": (lambda x: x[:1], r"returned the shape \[1\], and its shape rule says f32\[2\]"),
    "number": (lambda x: (x, x), "returned 2 values, and has 1 outputs"),
    "raises": (lambda x: 1 // 0, "raised ZeroDivisionError"),
}


@pytest.mark.parametrize("name", BAD_RESULTS)
def test_errors_of_functions_name_the_node(name: str) -> None:
    function, said = BAD_RESULTS[name]
    custom_op("acme", "Bad", inputs="x:float", outputs="y:float", shape="first")(function)
    with pytest.raises(RuntimeException, match=said) as error:
        run("g (float[2] x) => (float[2] y) { [the_node] y = acme.Bad(x) }", x=f32(1, 2))
    assert "the_node" in str(error.value)


@pytest.mark.parametrize("size", [-1, 1.5, "n"])
def test_shape_rules_that_return_wrong_sizes(size: Any) -> None:
    custom_op("acme", "Odd", inputs="x:float", outputs="y:float", shape=lambda x: (size,))(abs)
    with pytest.raises(InvalidGraph, match="for a size"):
        session("g (float[2] x) => (float[2] y) { y = acme.Odd(x) }")


BAD_DECLARATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"inputs": "x"}, "has no type"),
    "no such type": ({"inputs": "x:flaot"}, "not an element type"),
    "loose letter": ({"outputs": "y:U"}, "that of no input"),
    "attribute": ({"attrs": {"a": True}}, "must be a number, a text"),
    "shape": ({"shape": "last"}, "one of first, broadcast"),
    "domain": ({"domain": ""}, "must have a name"),
    "ours": ({"domain": "com.microsoft", "name": "Gelu"}, "built in"),
}


@pytest.mark.parametrize("name", BAD_DECLARATIONS)
def test_declarations_that_are_refused(name: str) -> None:
    changed, said = BAD_DECLARATIONS[name]
    plain = {"domain": "acme", "name": "Op", "inputs": "x:T", "outputs": "y:T"}
    given: dict[str, Any] = {**plain, **changed}
    with pytest.raises(InvalidArgument, match=said):
        custom_op(given.pop("domain"), given.pop("name"), **given)(lambda x: x)


def test_a_new_function_is_used_by_new_sessions_only() -> None:
    text = "g (float[2] x) => (float[2] y) { y = acme.Step(x) }"
    custom_op("acme", "Step", inputs="x:float", outputs="y:float", shape="first")(lambda x: x + 1)
    old = session(text)
    custom_op("acme", "Step", inputs="x:float", outputs="y:float", shape="first")(lambda x: x + 2)
    assert session(text).run(None, {"x": f32(1, 2)})[0].tolist() == [3, 4]
    assert old.run(None, {"x": f32(1, 2)})[0].tolist() == [2, 3]
    unregister_custom_op("acme", "Step")
    with pytest.raises(NotImplemented, match="custom_op"):
        session(text)
    with pytest.raises(NotFound):
        unregister_custom_op("acme", "Step")


def _axpy(inputs: Any, n_in: int, outputs: Any, n_out: int, numbers: Any, n_numbers: int) -> int:
    """numbers[0] * x + y over floats; refuses more than eight of them."""
    x, y, z = inputs[0], inputs[1], outputs[0]
    count = int(np.prod([x.dims[i] for i in range(x.rank)]))
    if count > 8 or (x.type, n_in, n_out, n_numbers) != (1, 2, 1, 1):
        return 7
    arrays = [ctypes.cast(t.data or 0, ctypes.POINTER(ctypes.c_float)) for t in (x, y, z)]
    for i in range(count):
        arrays[2][i] = numbers[0] * arrays[0][i] + (arrays[1][i] if y.data else 0)
    return 0


AXPY = C_FUNCTION(_axpy)


def native() -> None:
    native_op(
        AXPY,
        "acme",
        "Axpy",
        inputs="x:float y:float?",
        outputs="z:float",
        attrs={"label": "none", "a": 1.0},
        shape="broadcast",
    )


def test_a_native_function_is_a_native_step() -> None:
    native()
    text = "g (float[n] x) => (float[n] z) { t = Neg(x) z = acme.Axpy<a=3.0>(t, x) }"
    made = session(text)
    assert not [s for s in made._compiled.program.nodes() if "numpy" in s]
    assert made.run(None, {"x": f32(1, 2)})[0].tolist() == [-2, -4]
    assert run("g (float[n] x) => (float[n] z) { z = acme.Axpy(x) }", x=f32(5))[0].tolist() == [5]
    with pytest.raises(sardonyx.SardonyxError, match="the function returned the error 7") as error:
        made.run(None, {"x": f32(*range(9))})
    assert "Axpy" in str(error.value)


def test_a_native_function_gets_no_strings() -> None:
    """It would be handed addresses of objects."""
    function = C_FUNCTION(lambda *_: 0)
    native_op(function, "acme", "Any", inputs="x:T", outputs="y:T", shape="first")
    with pytest.raises(InvalidGraph, match="here one of strings"):
        session("g (string[n] x) => (string[n] y) { y = acme.Any(x) }")


def test_a_native_function_over_a_rank_that_is_not_known() -> None:
    native()
    text = (
        "g (float[n] x, int64[r] s) => (float z) { t = Reshape(x, s) z = acme.Axpy<a=2.0>(t, t) }"
    )
    got = session(text.replace("(float z)", "(float[a,b] z)")).run(
        None, {"x": f32(1, 2), "s": np.array([1, 2])}
    )
    assert got[0].tolist() == [[3, 6]]


@pytest.mark.parametrize("function", ["text", 0, None])
def test_native_op_refuses_what_is_not_a_function(function: Any) -> None:
    with pytest.raises(InvalidArgument):
        native_op(function, "acme", "N", inputs="x:T", outputs="y:T", shape="first")
