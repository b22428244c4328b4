"""Adapters: where they go, that they start without an effect, train, are saved, loaded, merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.graph.verify import verify
from sardonyx.ort.matmul_nbits_quantizer import quantized_blocks
from sardonyx.save import SaveOptions, save
from sardonyx.train import gradient, lora, merge

K, N = 32, 6
RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((K, N)).astype(np.float32)
BIAS = RNG.standard_normal(N).astype(np.float32)
X = RNG.standard_normal((5, K)).astype(np.float32)
GOAL = RNG.standard_normal((5, N)).astype(np.float32)


def model_of(nodes: list[Any], **weights: Any) -> onnx.ModelProto:
    """A model of a layer with the result y, followed by the mean squared error to `goal`."""
    nodes = [
        *nodes,
        helper.make_node("Sub", ["y", "goal"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", K]),
            helper.make_tensor_value_info("goal", TensorProto.FLOAT, ["n", N]),
        ],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", N]),
        ],
        [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def plain() -> onnx.ModelProto:
    return model_of(
        [helper.make_node("MatMul", ["x", "q.weight"], ["y"], "q")], **{"q.weight": WEIGHT}
    )


def gemm() -> onnx.ModelProto:
    node = helper.make_node(
        "Gemm", ["x", "q.weight", "q.bias"], ["y"], "q", transB=1, alpha=0.5, beta=2.0
    )
    return model_of([node], **{"q.weight": WEIGHT.T.copy(), "q.bias": BIAS})


def transposed() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Transpose", ["q.weight"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"], "q"),
    ]
    return model_of(nodes, **{"q.weight": WEIGHT.T.copy()})


def qdq() -> onnx.ModelProto:
    scale = (np.abs(WEIGHT).max(0) / 127).astype(np.float32)
    codes = np.rint(WEIGHT / scale).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["q.weight", "scale", "zero"], ["w"], axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"], "q"),
    ]
    zero = np.zeros(N, np.int8)
    return model_of(nodes, **{"q.weight": codes, "scale": scale, "zero": zero})


def nbits(bits: int = 4, symmetric: bool = False, float_zeros: bool = False) -> onnx.ModelProto:
    codes, scales, zeros = quantized_blocks(WEIGHT, 16, bits, symmetric)
    weights = {"q.weight": codes, "q.scales": scales, "q.bias": BIAS}
    if not symmetric:
        weights["q.zeros"] = zeros
    if float_zeros:
        weights["q.zeros"] = np.full(scales.shape, 7.25, np.float32)
    inputs = ["x", "q.weight", "q.scales", "" if symmetric else "q.zeros", "", "q.bias"]
    node = helper.make_node(
        "MatMulNBits",
        inputs,
        ["y"],
        "q",
        domain="com.microsoft",
        K=K,
        N=N,
        bits=bits,
        block_size=16,
    )
    return model_of([node], **weights)


MODELS = {
    "MatMul": plain,
    "Gemm": gemm,
    "Transpose": transposed,
    "QDQ": qdq,
    "4 bits": nbits,
    "8 bits": lambda: nbits(8),
    "symmetric": lambda: nbits(symmetric=True),
    "float zeros": lambda: nbits(float_zeros=True),
}


def run(model: Any, adapter: Any = None, **feeds: Any) -> Any:
    session = sardonyx.InferenceSession(model)
    options = sardonyx.RunOptions()
    if adapter is not None:
        options.add_active_adapter(adapter)
    return session.run(["y"], {"x": X, "goal": GOAL} | feeds, options)[0]


def dense(model: onnx.ModelProto) -> tuple[Any, Any]:
    """The weight and the bias that a model computes with, by running it."""
    session = sardonyx.InferenceSession(model)
    none = {"goal": np.zeros((1, N), np.float32)}
    bias = session.run(["y"], {"x": np.zeros((1, K), np.float32)} | none)[0][0]
    rows = session.run(["y"], {"x": np.eye(K, dtype=np.float32), "goal": np.zeros((K, N), "f")})[0]
    return rows - bias, bias


def trained(adapted: Any) -> dict[str, Any]:
    """Parameters that are not the initial ones."""
    rng = np.random.default_rng(9)
    return {
        n: (a + 0.3 * rng.standard_normal(a.shape)).astype(a.dtype)
        for n, a in adapted.parameters.items()
    }


def expected(weight: Any, bias: Any, p: dict[str, Any], kind: str, scale: float) -> Any:
    w = weight.astype(np.float64)
    if kind == "ia3":
        return X @ (w * p["q.weight.scale"]) + bias
    w = w + scale * (p["q.weight.lora_A"].astype(np.float64) @ p["q.weight.lora_B"])
    if kind == "dora":
        w = w * (p["q.weight.magnitude"] / np.linalg.norm(w, axis=0))
    return X @ w + bias


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
@pytest.mark.parametrize("name", MODELS)
def test_adapters_of_every_weight(name: str, kind: str, tmp_path: Path) -> None:
    """No effect at first; then training model, session with adapter, and merged model agree."""
    source = MODELS[name]()
    before, (weight, bias) = run(source), dense(source)
    adapted = lora(source, ["q*"], rank=4, alpha=6, kind=kind)
    verify(adapted.model.graph)
    np.testing.assert_allclose(run(adapted.model), before, rtol=1e-5, atol=1e-5)
    optional = adapted.to_model()
    verify(optional.graph)
    np.testing.assert_allclose(run(optional), before, rtol=1e-5, atol=1e-5)

    parameters = trained(adapted)
    want = expected(weight, bias, parameters, kind, 1.5)
    assert not np.allclose(want, before, atol=0.1)
    np.testing.assert_allclose(run(adapted.model, **parameters), want, rtol=1e-4, atol=1e-4)
    adapted.save(tmp_path / "a.onnx_adapter", parameters)
    adapter = sardonyx.LoraAdapter()
    adapter.Load(tmp_path / "a.onnx_adapter")
    np.testing.assert_allclose(run(optional, adapter), want, rtol=1e-4, atol=1e-4)
    merged = merge(source, tmp_path / "a.onnx_adapter")
    verify(merged.graph)
    assert not merged.overridable
    np.testing.assert_allclose(run(merged), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
@pytest.mark.parametrize("name", ["MatMul", "Gemm", "QDQ", "4 bits", "8 bits", "float zeros"])
def test_gradients_train_the_adapter(name: str, kind: str) -> None:
    adapted = lora(MODELS[name](), ["q*"], rank=4, kind=kind)
    parameters = {n: a.copy() for n, a in adapted.parameters.items()}
    session = sardonyx.InferenceSession(gradient(adapted.model, "loss", list(parameters)))
    names = [o.name for o in session.get_outputs()]
    losses = []
    for _ in range(30):
        results = session.run(None, {"x": X, "goal": GOAL} | parameters)
        found = dict(zip(names, results, strict=True))
        losses.append(float(found["loss"]))
        for n in parameters:
            parameters[n] = parameters[n] - 0.02 * found[n + "_grad"]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_pass_through_frozen_weights(name: str) -> None:
    """By the activations: dy times the weight that the model computes with."""
    source = MODELS[name]()
    made = gradient(source, "y", ["x"], seeds=True)
    session = sardonyx.InferenceSession(made)
    found = session.run(["x_grad"], {"x": X, "goal": GOAL, "y_grad": GOAL})[0]
    np.testing.assert_allclose(found, GOAL @ dense(source)[0].T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["4 bits", "8 bits", "symmetric", "float zeros"])
def test_requantized_weights_stay_n_bit(name: str) -> None:
    source = MODELS[name]()
    adapted = lora(source, ["q*"], rank=2)
    folded = adapted.folded(trained(adapted))
    merged = merge(source, folded, requantize=True)
    ops = [node.op.name for node in merged.graph.nodes]
    assert "MatMulNBits" in ops
    assert "MatMul" not in ops
    exact = run(merge(source, folded))
    step = np.abs(exact).max() * (0.01 if name == "8 bits" else 0.15)
    np.testing.assert_allclose(run(merged), exact, atol=step)


def test_requantizing_needs_blocks() -> None:
    adapted = lora(qdq(), ["q*"])
    with pytest.raises(InvalidArgument, match="cannot be quantized again"):
        merge(qdq(), adapted.folded(adapted.parameters), requantize=True)


def test_a_saved_model_runs_in_onnxruntime(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    adapted = lora(plain(), ["q*"], rank=4)
    save(adapted.to_model(), SaveOptions(str(tmp_path / "m.onnx")))
    parameters = trained(adapted)
    adapted.save(tmp_path / "a.onnx_adapter", parameters)
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(str(tmp_path / "a.onnx_adapter"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(adapter)
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"))
    y = session.run(["y"], {"x": X, "goal": GOAL}, options)[0]
    want = run(adapted.model, **parameters)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-4)


def test_a_tied_weight_has_one_adapter() -> None:
    """Both products read the adapter; the Gather of the same weight does not."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["b"]),
        helper.make_node("Gather", ["w", "i"], ["c"]),
        helper.make_node("Sum", ["a", "b", "c"], ["y"]),
    ]
    source = model_of(nodes, w=WEIGHT, i=np.array(1))
    adapted = lora(source, ["w"], rank=2)
    assert list(adapted.parameters) == ["w.lora_A", "w.lora_B"]
    parameters = trained(adapted)
    delta = 8 * parameters["w.lora_A"] @ parameters["w.lora_B"]
    want = 2 * X @ (WEIGHT + delta) + WEIGHT[1]
    np.testing.assert_allclose(run(adapted.model, **parameters), want, rtol=1e-4, atol=1e-4)
    merged = merge(source, adapted.folded(parameters))
    np.testing.assert_allclose(run(merged), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float16, 4e-3)])
def test_other_precisions(dtype: Any, rtol: float, kind: str) -> None:
    """Columns have norms above 256, whose squares float16 does not hold."""
    element = {np.float64: "double", np.float16: "float16"}[dtype]
    head = f"g ({element}[5, {K}] x) => ({element}[5, {N}] y) {{ y = MatMul(x, w) }}"
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {head}')
    weight = (WEIGHT.astype(np.float64) * 80 + 1e-7).astype(dtype)
    source.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    feeds = {"x": X.astype(dtype)}

    def y(model: Any, **parameters: Any) -> Any:
        return sardonyx.InferenceSession(model).run(["y"], feeds | parameters)[0]

    adapted = lora(source, ["w"], rank=2, kind=kind)
    before = y(source)
    limits = {"rtol": rtol, "atol": rtol * np.abs(before).max()}
    np.testing.assert_allclose(y(adapted.model), before, **limits)
    parameters = trained(adapted)
    want, folded = y(adapted.model, **parameters), adapted.folded(parameters)
    np.testing.assert_allclose(y(adapted.to_model(), **folded), want, **limits)
    np.testing.assert_allclose(y(merge(source, folded)), want, **limits)


def test_a_model_for_inference_is_in_inference_form() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio", "training"], ["b"]),
        helper.make_node(
            "BatchNormalization", ["b", "one", "zero", "zero", "one"], ["y"], training_mode=1
        ),
    ]
    scalars = {"ratio": np.float32(0.5), "training": np.array(True)}
    vectors = {"one": np.ones(N, np.float32), "zero": np.zeros(N, np.float32)}
    adapted = lora(model_of(nodes, w=WEIGHT, **scalars, **vectors), ["w"])
    norm = 1 / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(run(adapted.to_model()), X @ WEIGHT * norm, rtol=1e-4, atol=1e-4)


TIED = {
    "transB": "a = MatMul(x, w) y = Gemm<transB = 1>(a, w)",
    "alpha": "a = Gemm(x, w) y = Gemm<alpha = 3.0>(a, w)",
    "a transpose": "t = Transpose<perm = [1, 0]>(w) a = MatMul(x, w) y = MatMul(a, t)",
}


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
@pytest.mark.parametrize("name", TIED)
def test_a_weight_that_is_read_in_two_ways_has_two_adapters(name: str, kind: str) -> None:
    head = '<ir_version: 10, opset_import: ["": 21]> g (float[2, 4] x) => (float[2, 4] y)'
    source = onnx.parser.parse_model(f"{head} {{ {TIED[name]} }}")
    source.graph.initializer.append(numpy_helper.from_array(WEIGHT[:4, :4], "w"))
    feeds = {"x": X[:2, :4]}

    def y(model: Any, **parameters: Any) -> Any:
        return sardonyx.InferenceSession(model).run(["y"], feeds | parameters)[0]

    adapted = lora(source, ["w"], rank=2, kind=kind)
    suffix = "scale" if kind == "ia3" else "lora_A"
    assert {f"w.{suffix}", f"w.2.{suffix}"} <= adapted.parameters.keys()
    np.testing.assert_allclose(y(adapted.model), y(source), rtol=1e-5, atol=1e-5)
    parameters = trained(adapted)
    want = y(adapted.model, **parameters)
    assert not np.allclose(want, y(source), atol=0.1)
    folded = adapted.folded(parameters)
    np.testing.assert_allclose(y(adapted.to_model(), **folded), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(y(merge(source, folded)), want, rtol=1e-4, atol=1e-4)


def test_labels_of_adapters_are_not_names_of_weights() -> None:
    text = "a = MatMul(x, w) b = Gemm<transB = 1>(a, w) y = MatMul(b, v)"
    head = '<ir_version: 10, opset_import: ["": 21]> g (float[2, 4] x) => (float[2, 4] y)'
    source = onnx.parser.parse_model(f"{head} {{ {text} }}")
    source.graph.node[2].input[1] = "w.2"
    names = ("w", "w.2")
    square = WEIGHT[:4, :4]
    source.graph.initializer.extend(numpy_helper.from_array(square, n) for n in names)
    assert list(lora(source, ["w*"], kind="ia3").parameters) == [
        "w.scale",
        "w.3.scale",
        "w.2.scale",
    ]


def test_unnamed_weights_have_the_name_of_their_node() -> None:
    node = helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["y"], "/layer.0/q_proj/MatMul")
    source = model_of([node], **{"onnx::MatMul_7": WEIGHT})
    adapted = lora(source, ["*q_proj*"])
    assert next(iter(adapted.parameters)) == "/layer.0/q_proj/MatMul.lora_A"
    merge(source, adapted.folded(adapted.parameters))


def test_a_weight_that_is_an_input_with_a_default() -> None:
    source = plain()
    source.graph.input.append(helper.make_tensor_value_info("q.weight", TensorProto.FLOAT, [K, N]))
    adapted = lora(source, ["q*"], kind="dora")
    np.testing.assert_allclose(run(adapted.model), X @ WEIGHT, rtol=1e-4, atol=1e-4)


def test_brackets_in_names_are_not_patterns() -> None:
    node = helper.make_node("MatMul", ["x", "layers[0].w"], ["y"], "q[0]")
    source = model_of([node], **{"layers[0].w": WEIGHT})
    for target in ("layers[0].w", "q[0]", "layers[[]0].*"):
        assert list(lora(source, [target], kind="ia3").parameters) == ["layers[0].w.scale"]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["*k_proj*"], r"matches no weight and no node of a linear layer\n.*near +q.weight"),
        (["*Q.WEIGHT*"], r"near +q.weight"),
        ([], "targets name nothing"),
        (["goal_of"], "'goal_of' matches Sub, which takes no adapter: Sub has no adapters"),
    ],
)
def test_targets_without_a_match(targets: list[str], message: str) -> None:
    source = plain()
    source.graph.node[1].name = "goal_of"
    message = message.replace("matches Sub", r"matches goal_of \(Sub\)")
    with pytest.raises(InvalidArgument, match=message):
        lora(source, targets)


def test_numbers_of_numpy() -> None:
    expected = lora(plain(), ["q*"], alpha=6)
    for alpha in (np.int64(6), np.float32(6)):
        adapted = lora(plain(), ["q*"], alpha=alpha)  # type: ignore[arg-type]
        ones = {name: np.ones_like(array) for name, array in adapted.parameters.items()}
        folded, same = adapted.folded(ones), expected.folded(ones)
        assert {n: a.tolist() for n, a in folded.items()} == {
            n: a.tolist() for n, a in same.items()
        }


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="rank must be a positive integer, got 0"):
        lora(plain(), ["q*"], rank=0)
    with pytest.raises(InvalidArgument, match="alpha must be a number, got nan"):
        lora(plain(), ["q*"], alpha=float("nan"))
    with pytest.raises(InvalidArgument, match=r"targets must be patterns, .* got 5"):
        lora(plain(), 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"kind must be one of lora.*got 'qlora'"):
        lora(plain(), ["q*"], kind="qlora")
    adapted = lora(plain(), ["q*"])
    with pytest.raises(InvalidArgument, match="lora_A is missing"):
        adapted.save(tmp_path / "a", {})
    with pytest.raises(InvalidArgument, match=r"lora_A is float64\[32, 8\]"):
        adapted.save(tmp_path / "a", {n: a.astype("d") for n, a in adapted.parameters.items()})
    with pytest.raises(InvalidArgument, match=r"already has a value q\.weight\.lora_A"):
        lora(adapted.model, ["q*"])
    with pytest.raises(InvalidArgument, match="no linear layer for the adapter's parameter other"):
        merge(plain(), {"other.lora_A": np.zeros((K, 2), "f")})
    with pytest.raises(InvalidArgument, match="only one of"):
        merge(plain(), {"q.weight.lora_A": np.zeros((K, 2), "f")})
    shapes = {"q.weight.lora_A": (3, 2), "q.weight.lora_B": (2, N)}
    with pytest.raises(InvalidArgument, match=r"has the shapes \[3, 2\] and \[2, 6\]"):
        merge(plain(), {n: np.zeros(shape, "f") for n, shape in shapes.items()})
    zeros = WEIGHT.copy()
    zeros[:, 2] = 0
    source = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], w=zeros)
    with pytest.raises(InvalidArgument, match="a column of w is 0"):
        lora(source, ["w"], kind="dora")


HEADS, SIZE = 2, 4
ATTENTION = """
<ir_version: 10, opset_import: ["": 21]>
attention (
    float[batch, 2, seq, 4] q, float[batch, 2, past, 4] past_key,
    float[batch, 2, past, 4] past_value, float[batch, 2, seq, 4] goal
) => (float loss, float[batch, 2, seq, 4] y) {
    transposed = Transpose<perm=[0, 1, 3, 2]>(past_key)
    scores = MatMul(q, transposed)
    weights = Softmax<axis=-1>(scores)
    y = MatMul(weights, past_value)
    d = Sub(y, goal)
    e = Mul(d, d)
    loss = ReduceMean<keepdims=0>(e)
}"""


def test_prefixes_train_and_are_fed_as_the_cache(tmp_path: Path) -> None:
    source = onnx.parser.parse_model(ATTENTION)
    adapted = lora(source, ["past_*"], rank=3, kind="prefix")
    parameters = {n: a.copy() for n, a in adapted.parameters.items()}
    assert {n: a.shape for n, a in parameters.items()} == {
        "past_key.prefix": (1, HEADS, 3, SIZE),
        "past_value.prefix": (1, HEADS, 3, SIZE),
    }
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((2, HEADS, 5, SIZE)).astype("f") for n in ("q", "goal")}
    session = sardonyx.InferenceSession(gradient(adapted.model, "loss", list(parameters)))
    losses = []
    for _ in range(20):
        loss, _, *grads = session.run(None, feeds | parameters)
        losses.append(float(loss))
        for n, grad in zip(parameters, grads, strict=True):
            parameters[n] = parameters[n] - 5 * grad
    assert losses[-1] < losses[0]
    adapted.save(tmp_path / "p.onnx_adapter", parameters)
    adapter = sardonyx.LoraAdapter()
    adapter.Load(tmp_path / "p.onnx_adapter")
    options = sardonyx.RunOptions()
    options.add_active_adapter(adapter)
    first = {n: a[:1] for n, a in feeds.items()}
    want = sardonyx.InferenceSession(adapted.model).run(["y"], first | parameters)[0]
    optional = sardonyx.InferenceSession(adapted.to_model())
    assert [i.name for i in optional.get_inputs()] == ["q", "goal"]
    np.testing.assert_allclose(optional.run(["y"], first, options)[0], want, rtol=1e-5)
    assert (optional.run(["y"], first)[0] == 0).all()  # attention over no positions


def test_prefixes_need_caches() -> None:
    source = onnx.parser.parse_model(ATTENTION)
    with pytest.raises(InvalidArgument, match="matches none of the inputs q, past_key"):
        lora(source, ["cache*"], kind="prefix")
    with pytest.raises(InvalidArgument, match=r"the input x is .* not a cache"):
        lora(plain(), ["x"], kind="prefix")
