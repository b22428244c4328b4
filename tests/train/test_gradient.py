"""The arguments, results and errors of `gradient`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument, NotImplemented, SardonyxError
from sardonyx.graph.verify import verify
from sardonyx.load.graph_text import parse
from sardonyx.load.model import Declared, Model
from sardonyx.train import gradient
from tests.train import models


def model_of(text: str, **weights: Any) -> onnx.ModelProto:
    """A model of ONNX's text form, with initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    return model


def run(model: Any, **feeds: Any) -> dict[str, Any]:
    session = sardonyx.InferenceSession(model)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def f32(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


SQUARE = (
    "g (float[n] x) => (float loss) { y = Mul(x, w) z = Mul(y, y) loss = ReduceSum<keepdims=0>(z) }"
)


def test_outputs_come_first_and_weights_may_be_fed() -> None:
    made = gradient(model_of(SQUARE, w=f32(2)))
    session = sardonyx.InferenceSession(made)
    assert [o.name for o in session.get_outputs()] == ["loss", "w_grad"]
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [i.name for i in session.get_overridable_initializers()] == ["w"]
    loss, grad = session.run(None, {"x": f32(1, 2)})
    assert (loss, grad.tolist()) == (20, [20])
    loss, grad = session.run(None, {"x": f32(1, 2), "w": f32(3)})
    assert (loss, grad.tolist()) == (45, [30])


def test_initializers_that_are_inputs_have_the_same_default() -> None:
    """Statistics and scalars are not differentiated by, whether runs may feed them or not."""
    text = """g (float[2, 3] x) => (float loss) {
        y = BatchNormalization(x, s, b, m, v) z = Mul(y, half)
        loss = ReduceSumSquare<keepdims=0>(z) }"""
    weights = {n: np.ones(3, np.float32) for n in "sbmv"} | {"half": np.float32(0.5)}
    model = model_of(text, **weights)
    expected = [d.name for d in gradient(model).outputs]
    for name, w in weights.items():
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, w.shape))
    assert [d.name for d in gradient(model).outputs] == expected == ["loss", "s_grad", "b_grad"]
    assert "v_grad" in [d.name for d in gradient(model, by=["v"]).outputs]


def test_gradients_by_inputs_exclude_weights() -> None:
    made = gradient(model_of(SQUARE, w=f32(2)), "loss", ["x"])
    assert not made.overridable
    assert run(made, x=f32(1, 2))["x_grad"].tolist() == [8, 16]


def test_several_outputs_add_up() -> None:
    text = "g (float x) => (float a, float b) { a = Mul(x, x) b = Mul(a, x) }"
    assert run(gradient(model_of(text), ["a", "b"], ["x"]), x=np.float32(2))["x_grad"] == 16


def test_seeds_are_fed() -> None:
    text = "g (float[n, 2] x) => (float[m] y) { s = Constant<value_ints=[-1]>() y = Reshape(x, s) }"
    made = gradient(model_of(text), by=["x"], seeds=True)
    x, seed = np.ones((3, 2), np.float32), f32(1, 2, 3, 4, 5, 6)
    assert run(made, x=x, y_grad=seed)["x_grad"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_paths_that_carry_no_floats_end() -> None:
    text = """g (float[4] x) => (float loss) {
        i = ArgMax<keepdims=0>(x) p = Gather(x, i) k = Cast<to=7>(x) f = Cast<to=1>(k)
        m = Mul(x, f) s = ReduceSum<keepdims=0>(m) loss = Add(s, p) }"""
    found = run(gradient(model_of(text), by=["x"]), x=f32(1.5, 2.5, 3.5, -1.5))
    assert found["x_grad"].tolist() == [1, 2, 4, -1]


def test_a_gradient_can_be_differentiated() -> None:
    text = "g (float x) => (float y) { a = Mul(x, x) y = Mul(a, x) }"
    first = gradient(model_of(text), "y", ["x"])
    first.outputs[1] = Declared("slope", first.outputs[1].fact, first.outputs[1].dims)
    second = gradient(first, "slope", ["x"])
    assert run(second, x=np.float32(2))["x_grad"] == 12


def test_a_model_is_left_as_it_was() -> None:
    plain = gradient(model_of(SQUARE, w=f32(2)), "loss", ["x"])
    before = len(plain.graph.nodes), list(plain.outputs)
    gradient(plain, "loss", ["w"])
    assert before == (len(plain.graph.nodes), list(plain.outputs))
    session = sardonyx.InferenceSession(plain)
    session.set_providers(["CPUExecutionProvider"])  # compiles it once more
    assert session.run(["x_grad"], {"x": f32(1)})[0].tolist() == [8]


def test_dims_can_be_fixed() -> None:
    made = gradient(model_of(SQUARE, w=f32(2)), dims={"n": 3})
    with pytest.raises(SardonyxError, match="x has 2 in dim 0, but the model expects 3"):
        run(made, x=f32(1, 2))


def test_free_dimensions_of_a_session() -> None:
    options = sardonyx.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    session = sardonyx.InferenceSession(gradient(model_of(SQUARE, w=f32(2))), options)
    with pytest.raises(SardonyxError, match="x has 3 in dim 0"):
        session.run(None, {"x": f32(1, 2, 3)})


def test_sizes_of_equal_names_are_equal() -> None:
    text = "g (float[n] x, float[n] z) => (float y) { a = Add(x, z) y = ReduceSum<keepdims=0>(a) }"
    made = gradient(model_of(text), by=["x", "z"])
    verify(made.graph)
    with pytest.raises(InvalidArgument, match="the dims named n differ in size"):
        run(made, x=f32(1), z=f32(1, 2, 3))


def test_sizes_of_other_names_may_broadcast() -> None:
    text = "g (float[n] x, float[m] z) => (float y) { a = Mul(x, z) y = ReduceSum<keepdims=0>(a) }"
    session = sardonyx.InferenceSession(gradient(model_of(text), by=["x", "z"]))
    for x, z in (((2,), (1, 2, 3)), ((1, 2), (3,)), ((1, 2), (3, 4))):
        _, dx, dz = session.run(None, {"x": f32(*x), "z": f32(*z)})
        assert dx.tolist() == ([sum(z)] if len(x) < len(z) else list(np.broadcast_to(z, len(x))))
        assert dz.tolist() == ([sum(x)] if len(z) < len(x) else list(np.broadcast_to(x, len(z))))


def test_dropout_drops_the_same_elements() -> None:
    text = """g (float[n] x) => (float[n] y) {
        r = Constant<value_float=0.25>() t = Constant<value=bool {1}>() y = Dropout(x, r, t) }"""
    found = run(
        gradient(model_of(text), by=["x"], seeds=True),
        x=np.ones(1000, np.float32),
        y_grad=np.ones(1000, np.float32),
    )
    np.testing.assert_array_equal(found["x_grad"], found["y"])
    assert 0 < np.count_nonzero(found["y"]) < 1000


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_half_types_keep_their_type(kind: int) -> None:
    text = """g (float16[2, 3] x) => (float16 loss) {
        y = LayerNormalization(x, w) z = Gelu(y) p = Softmax(z) q = Mul(p, x)
        loss = ReduceSum<keepdims=0>(q) }"""
    model = model_of(text)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = numpy_helper.from_array(np.array([1, 2, 3]).astype(dtype), "w")
    model.graph.initializer.append(weight)
    model.graph.input[0].type.tensor_type.elem_type = kind
    model.graph.output[0].type.tensor_type.elem_type = kind
    x = np.random.default_rng(0).standard_normal((2, 3))
    found = run(gradient(model, by=["x", "w"]), x=x.astype(dtype))
    wide = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (wide.graph.input[0], wide.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    wide.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([1.0, 2, 3]), "w"))
    exact = run(gradient(wide, by=["x", "w"]), x=x.astype(dtype).astype(np.float64))
    for name in ("x_grad", "w_grad"):
        assert found[name].dtype == dtype
        close = found[name].astype(np.float64)
        np.testing.assert_allclose(close, exact[name], atol=0.06 if kind == 16 else 0.01)


# Means over more elements than float16 counts to, and over a number that bfloat16 rounds to 256.
COUNTED = [
    ("y = ReduceMean(x)", (1, 1, 257, 257)),
    ("y = GlobalAveragePool(x)", (1, 1, 257, 257)),
    ("y = AveragePool<kernel_shape = [257, 257]>(x)", (1, 1, 257, 257)),
    ("y = ReduceMax(x)", (1, 1, 257, 257)),
    ("y = GlobalMaxPool(x)", (1, 1, 257, 257)),
    ("y = ReduceMean(x)", (1, 1, 1, 257)),
    ("y = ReduceMax(x)", (1, 1, 1, 257)),
]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("sizes", ["static", "symbolic"])
@pytest.mark.parametrize(("node", "shape"), COUNTED)
def test_counts_are_not_rounded_to_half_types(
    node: str, shape: tuple[int, ...], sizes: str, kind: int
) -> None:
    dims = ", ".join(map(str, shape)) if sizes == "static" else "a, b, c, d"
    model = model_of(f"g (float16[{dims}] x) => (float16[p, q, r, s] y) {{ {node} }}")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = kind
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    made = gradient(model, by=["x"], seeds=True)
    y_grad = np.full((1, 1, 1, 1), 2048, dtype)
    found = run(made, x=np.ones(shape, dtype), y_grad=y_grad)["x_grad"]
    rounding = 2**-9 if kind == TensorProto.BFLOAT16 else 2**-11
    np.testing.assert_allclose(found.astype(float), 2048 / np.prod(shape), rtol=rounding)


@pytest.mark.parametrize("name", ["HardSigmoid", "Elu", "LeakyRelu", "Softsign"])
def test_recurrent_layers_keep_their_type(name: str) -> None:
    text = f"""g (float[3, 2, 4] x) => (float loss) {{
        y, h = RNN<hidden_size = 5, activations = ["{name}"], clip = 1.0>(x, w, r)
        loss = ReduceSum<keepdims=0>(h) }}"""
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, 5, n)).astype(np.float32) for n in (4, 5))
    found = run(gradient(model_of(text, w=w, r=r)), x=rng.standard_normal((3, 2, 4)).astype("f"))
    assert [found[n].dtype for n in ("w_grad", "r_grad")] == [np.float32] * 2


def test_a_power_of_0_is_constant() -> None:
    text = "g (float[3] x) => (float[3] y) <float p = {0}> { y = Pow(x, p) }"
    found = run(
        gradient(model_of(text), by=["x"], seeds=True), x=f32(0, 1, -2), y_grad=f32(1, 2, 3)
    )
    assert found["x_grad"].tolist() == [0, 0, 0]


def test_repeats_that_are_fed() -> None:
    model = model_of("g (float[1, 4] x, int64[2] r) => (float[a, b] y) { y = Tile(x, r) }")
    made = gradient(model, "y", ["x"], seeds=True)
    feeds = {"r": np.array([3, 2]), "y_grad": np.ones((3, 8), np.float32)}
    assert run(made, x=np.zeros((1, 4), np.float32), **feeds)["x_grad"].tolist() == [[6, 6, 6, 6]]


# Tensors that go through sequences of known elements, optionals, and the branch that is taken.
AROUND = [
    """s = SequenceConstruct(x, y) t = SequenceInsert(s, y, zero) u = SequenceErase(t, one)
       e = SequenceAt(u, one)""",
    "s = SplitToSequence<axis = 0>(y) e = ConcatFromSequence<axis = 0>(s)",
    "s = SplitToSequence<keepdims = 0>(y) e = ConcatFromSequence<axis = 0, new_axis = 1>(s)",
    "s = Optional(y) e = OptionalGetElement(s)",
    "s = SequenceConstruct(x, y) o = Optional(s) t = OptionalGetElement(o) e = SequenceAt(t, one)",
    """e = If (yes) <then_branch = t () => (float[4] a) { a = Identity(y) },
                     else_branch = f () => (float[4] b) { b = Mul(y, x) }>""",
]


@pytest.mark.parametrize("path", AROUND)
def test_tensors_that_pass_through_known_elements(path: str) -> None:
    text = f"""g (float[4] x) => (float loss) {{
        zero = Constant<value = int64 {{0}}>() one = Constant<value = int64 {{1}}>()
        yes = Constant<value = bool {{1}}>() y = Mul(x, w) {path}
        p = Mul(e, y) loss = ReduceSum<keepdims=0>(p) }}"""
    w, x = f32(1, 2, 3, 4), f32(5, 6, 7, 8)
    found = run(gradient(model_of(text, w=w)), x=x)
    np.testing.assert_array_equal(found["w_grad"], 2 * w * x * x)


# Paths from a weight to the loss beside y itself, each with the node where the gradient is lost.
CUT = [
    ("q = QuantizeLinear(y, tenth, none) e = Cast<to = 1>(q)", "QuantizeLinear"),
    ("q = QuantizeLinear(y, tenth, none) r = Identity(q) e = Cast<to = 1>(r)", "Identity"),
    ("q = QuantizeLinear(y, tenth, none) p = MatMulInteger(q, q) e = Cast<to = 1>(p)", "MatMulI"),
]


@pytest.mark.parametrize("names", [None, ["w"]], ids=["all", "w"])
@pytest.mark.parametrize(("path", "op"), CUT)
def test_a_path_that_is_cut_is_an_error(path: str, op: str, names: list[str] | None) -> None:
    text = f"""g (float[4] x) => (float loss) {{
        tenth = Constant<value = float {{0.1}}>() none = Constant<value = int8 {{0}}>()
        y = Mul(x, w)
        {path} a = ReduceSum<keepdims=0>(e) b = ReduceSum<keepdims=0>(y)
        loss = Add(a, b) }}"""
    said = rf"(?s)(has no gradient|gradients flow only through).*node +.*{op}.*hint"
    with pytest.raises(NotImplemented, match=said):
        gradient(model_of(text, w=f32(1, 2, 3, 4)), by=names)


def test_an_element_type_without_gradients_is_an_error() -> None:
    text = """g (float[4] x) => (float loss) {
        y = Mul(x, w) q = Cast<to = 17>(y) e = Cast<to = 1>(q) p = Mul(e, y)
        loss = ReduceSum<keepdims=0>(p) }"""
    with pytest.raises(NotImplemented, match=r"(?s)depends on q:f8e4m3fn.*flow only.*Cast"):
        gradient(model_of(text, w=f32(1, 2, 3, 4)))


def test_values_outside_the_loss_need_no_gradient() -> None:
    text = """g (float[4] x) => (float loss, seq(float[4]) s) {
        y = Mul(x, w) s = SequenceConstruct(y, x) n = SequenceLength(s) m = Cast<to = 1>(n)
        p = Mul(y, m) loss = ReduceSum<keepdims=0>(p) }"""
    found = run(gradient(model_of(text, w=f32(1, 2, 3, 4)), "loss"), x=f32(1, 2, 3, 4))
    assert found["w_grad"].tolist() == [2, 4, 6, 8]


TWO = "g (float[n] x, int64[n] i) => (float[n] y, int64[n] k) { y = Mul(x, w) k = Identity(i) }"
ONE = "g (float x, float v) => (float y) { y = Mul(x, w) }"
OBSERVED = "g (float[2] x) => (float y) { q, y, z = DynamicQuantizeLinear(x) }"
STEPS = "g (float x) => (float y) { a = Floor(x) y = Mul(a, w) }"
BARE = "g (float x) => (float y) { y = Mul(x, x) }"
TAKEN = "g (float x, float x_grad) => (float y) { y = Mul(x, x_grad) }"
BY_X = {"by": ["x"]}
ERRORS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    (TWO, {}, InvalidArgument, "the model has 2 outputs: y, k"),
    (TWO, {"of": "z"}, InvalidArgument, "no output 'z'; it has y, k"),
    (TWO, {"of": "k"}, InvalidArgument, "output k must be f16.*got i64"),
    (TWO, {"of": "y", "by": ["i"]}, InvalidArgument, "i must be f16.*got i64"),
    (TWO, {"of": "y", "by": ["v"]}, InvalidArgument, "no input or initializer 'v'"),
    (TWO, {"of": "y", **BY_X}, InvalidArgument, "(?s)a loss must have one element.*seeds=True"),
    (ONE, {"by": ["v"]}, InvalidArgument, "(?s)y does not depend on v.*leave it out"),
    (ONE, {"recompute": "layer"}, InvalidArgument, "recompute must be 'layers'.*got 'layer'"),
    (ONE, {"recompute": ["mul"]}, InvalidArgument, "recompute names 'mul'"),
    (STEPS, BY_X, InvalidArgument, "y does not depend on x"),
    (OBSERVED, BY_X, InvalidArgument, "y does not depend on x"),
    (BARE, {}, InvalidArgument, "y depends on no initializer"),
    (ONE, {"by": []}, InvalidArgument, "`by` is empty"),
]


@pytest.mark.parametrize(("text", "options", "kind", "match"), ERRORS)
def test_errors(text: str, options: dict[str, Any], kind: type[Exception], match: str) -> None:
    with pytest.raises(kind, match=match):
        gradient(model_of(text, w=f32(2)), **options)


def test_name_collisions() -> None:
    twice = gradient(model_of(TAKEN, w=f32(2)), **BY_X)
    assert [d.name for d in twice.outputs] == ["y", "x_grad_grad"]
    once = gradient(model_of("g (float x) => (float y) { z = Mul(x, x) y = Mul(z, x) }"), **BY_X)
    assert run(gradient(once, "x_grad", ["x"]), x=np.float32(2))["x_grad_grad"] == 12


def test_initializers_of_a_gradient_model_are_kept() -> None:
    options = sardonyx.SessionOptions()
    options.add_initializer("w", sardonyx.OrtValue.ortvalue_from_numpy(f32(1)))
    with pytest.raises(InvalidArgument, match="the initializer w cannot be replaced"):
        sardonyx.InferenceSession(gradient(model_of(SQUARE, w=f32(2))), options)


def test_a_text_graph_is_a_model_too() -> None:
    graph = parse("in x: f32[3]\ny = Mul(x, x)\nz = ReduceSum(y, keepdims=0)\nout z\n")
    outputs = [Declared("z", None, None)]
    inputs = [Declared("x", graph.inputs[0].fact, (3,))]
    made = gradient(Model(graph, 10, {"": 21}, inputs, outputs, []), by=["x"])
    assert run(made, x=f32(1, 2, 3))["x_grad"].tolist() == [2, 4, 6]


def test_unused_saved_values_are_removed() -> None:
    """A gradient by the bias alone needs neither the statistics nor the indices."""
    proto, _ = models.image_net()
    graph = gradient(proto, "loss", ["head.b"]).graph
    assert all(len(n.outputs) == 1 for n in graph.nodes if n.op.name == "MaxPool")
