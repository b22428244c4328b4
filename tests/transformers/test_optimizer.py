"""Fusions of transformers: counts, and results equal to those of the original model."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.transformers import optimizer
from sardonyx.transformers.fusion_options import (
    AttentionMaskFormat,
    AttentionOpType,
    FusionOptions,
)
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.onnx_model_bert import BertOnnxModel

HEADS, WIDTH, ROWS = 2, 4, 3
HIDDEN = HEADS * WIDTH


def block(masked: bool = True, tanh: bool = False, opset: int = 17) -> onnx.ModelProto:
    """A transformer block as torch's exporter writes it."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: dict[str, Any] = {
        "heads": np.array([0, 0, HEADS, WIDTH]), "whole": np.array([0, 0, HIDDEN]),
        "root": np.float32(WIDTH**0.5), "two": np.float32(2), "half": np.float32(0.5),
        "one": np.float32(1), "sqrt2": np.float32(2**0.5), "c": np.float32(0.044715),
        "d": np.float32((2 / np.pi) ** 0.5), "three": np.float32(3), "eps": np.float32(1e-5),
    }  # fmt: skip

    def add(op: str, inputs: str, output: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(op, inputs.split(), [output], **attrs))
        return output

    def linear(x: str, name: str, columns: int, rows: int = HIDDEN) -> str:
        scale = np.float32(rows**-0.5)
        weights[f"{name}.w"] = rng.standard_normal((rows, columns)).astype(np.float32) * scale
        weights[f"{name}.b"] = rng.standard_normal(columns).astype(np.float32)
        return add("Add", f"{name}.b {add('MatMul', f'{x} {name}.w', f'{name}.m')}", name)

    def norm(x: str, name: str) -> str:
        weights[f"{name}.s"] = rng.standard_normal(HIDDEN).astype(np.float32)
        weights[f"{name}.h"] = rng.standard_normal(HIDDEN).astype(np.float32)
        mean = add("ReduceMean", x, f"{name}.mean", axes=[-1])
        delta = add("Sub", f"{x} {mean}", f"{name}.d")
        square = add("Pow", f"{delta} two", f"{name}.p")
        variance = add("ReduceMean", square, f"{name}.v", axes=[-1])
        root = add("Sqrt", add("Add", f"{variance} eps", f"{name}.e"), f"{name}.r")
        scaled = add("Mul", f"{add('Div', f'{delta} {root}', f'{name}.n')} {name}.s", f"{name}.m")
        return add("Add", f"{scaled} {name}.h", name)

    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        split = add("Reshape", f"{linear('x', name, HIDDEN)} heads", f"{name}.split")
        add("Transpose", split, f"{name}.t", perm=perm)
    scores = add("Div", f"{add('MatMul', 'q.t k.t', 'qk')} root", "scores")
    scores = add("Add", f"{scores} mask", "masked") if masked else scores
    probs = add("Softmax", scores, "probs", axis=-1)
    merged = add("Transpose", add("MatMul", f"{probs} v.t", "pv"), "pvt", perm=[0, 2, 1, 3])
    context = linear(add("Reshape", f"{merged} whole", "context"), "out", HIDDEN)
    first = norm(add("Add", f"{context} x", "sum1"), "norm1")
    wide = linear(first, "up", 4 * HIDDEN)
    if tanh:
        cube = add("Mul", f"{add('Pow', f'{wide} three', 'cube')} c", "cubed")
        inner = add("Mul", f"{add('Add', f'{wide} {cube}', 'inner')} d", "scaled")
        phi = add("Add", f"{add('Tanh', inner, 'tanh')} one", "phi")
    else:
        phi = add("Add", f"{add('Erf', add('Div', f'{wide} sqrt2', 'div'), 'erf')} one", "phi")
    active = add("Mul", f"{add('Mul', f'{wide} {phi}', 'product')} half", "gelu")
    norm(add("Add", f"{linear(active, 'down', HIDDEN, 4 * HIDDEN)} {first}", "sum2"), "y")
    values = [helper.make_tensor_value_info("x", 1, ["batch", ROWS, HIDDEN])]
    if masked:
        values.append(helper.make_tensor_value_info("mask", 1, ["batch", 1, 1, ROWS]))
    out = helper.make_tensor_value_info("y", 1, ["batch", ROWS, HIDDEN])
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "block", values, [out], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def compare(model: onnx.ModelProto, fused: onnx.ModelProto) -> None:
    rng = np.random.default_rng(1)
    feed = {"x": rng.standard_normal((2, ROWS, HIDDEN)).astype(np.float32)}
    if len(model.graph.input) > 1:
        feed["mask"] = np.where(rng.random((2, 1, 1, ROWS)) < 0.4, -10000, 0).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    is_gemm = any(node.op_type == "GemmFastGelu" for node in fused.graph.node)
    for runtime in (sardonyx,) if is_gemm else (onnxruntime, sardonyx):  # not on onnxruntime's CPU
        (got,) = runtime.InferenceSession(fused.SerializeToString()).run(None, feed)
        np.testing.assert_allclose(got, expected, atol=2e-5)


def options(**changes: Any) -> FusionOptions:
    found = FusionOptions("bert")
    for name, value in changes.items():
        setattr(found, name, value)
    return found


SKIP = {"SkipLayerNormalization": 2}
CASES: dict[str, tuple[dict[str, Any], FusionOptions, dict[str, int]]] = {
    "default": ({}, options(), {"Attention": 1, "BiasGelu": 1, **SKIP}),
    "no mask": ({"masked": False}, options(), {"Attention": 1, "BiasGelu": 1, **SKIP}),
    "tanh": ({"tanh": True}, options(), {"Attention": 1, "FastGelu": 1, **SKIP}),
    "heads apart": ({}, options(attention_op_type=AttentionOpType.MultiHeadAttention),
                    {"MultiHeadAttention": 1, "BiasGelu": 1, **SKIP}),
    "approximate": ({}, options(enable_gelu_approximation=True),
                    {"Attention": 1, "FastGelu": 1, **SKIP}),
    "gemm": ({"tanh": True}, options(enable_gemm_fast_gelu=True),
             {"Attention": 1, "GemmFastGelu": 1, **SKIP}),
    "no bias": ({}, options(enable_bias_gelu=False, enable_bias_skip_layer_norm=False),
                {"Attention": 1, "Gelu": 1, **SKIP}),
    "no skip": ({}, options(enable_skip_layer_norm=False),
                {"Attention": 1, "BiasGelu": 1, "LayerNormalization": 2}),
    "nothing": ({}, options(enable_skip_layer_norm=False, enable_layer_norm=False,
                            enable_gelu=False, enable_attention=False), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fusions(name: str) -> None:
    form, chosen, expected = CASES[name]
    model = block(**form)
    fused = optimizer.optimize_model(model, "bert", HEADS, HIDDEN, chosen)
    found = fused.get_fused_operator_statistics()  # type: ignore[attr-defined]
    assert {op: n for op, n in found.items() if n} == expected
    if name != "approximate":
        compare(model, fused.model)
    if name == "default":
        assert len(fused.model.graph.node) <= 8
        assert fused.is_fully_optimized()  # type: ignore[attr-defined]


def embeddings(segments: bool, pre_norm: bool, dynamic: bool) -> onnx.ModelProto:
    """The normalized sum of embeddings, as BERT begins."""
    rows = "rows" if dynamic else ROWS
    ids = "[B,rows]" if dynamic else f"[B,{ROWS}]"
    text = f"""<ir_version: 8, opset_import: ["": 17]> g
        (int64{ids} words{f", int64{ids} kinds" if segments else ""}) => (float[B,N,4] y) {{
        w = Gather(word_table, words)
        {"k = Gather(kind_table, kinds) wk = Add(w, k)" if segments else "wk = Identity(w)"}
        {"s = Shape<start=1, end=2>(words) p = Slice(all, zero, s, one)" if dynamic else ""}
        e = Gather(position_table, {"p" if dynamic else "some"})
        sum = Add(wk, e)
        n = LayerNormalization<axis=-1>(sum, scale, shift)
        y = {"Add(n, sum)" if pre_norm else "Relu(n)"}
    }}"""
    model = onnx.parser.parse_model(text.replace("N", str(rows), 1))
    rng = np.random.default_rng(0)
    tables = {"word_table": (20, 4), "kind_table": (2, 4), "position_table": (9, 4),
              "scale": (4,), "shift": (4,)}  # fmt: skip
    arrays: dict[str, Any] = {n: rng.standard_normal(s, np.float32) for n, s in tables.items()}
    arrays |= {"all": np.arange(9)[None], "zero": np.array([0]), "one": np.array([1])}
    arrays["some"] = np.arange(ROWS)[None]
    used = {name for node in model.graph.node for name in node.input}
    kept = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used]
    model.graph.initializer.extend(kept)
    return model


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize(("pre_norm", "dynamic"), [(True, False), (False, True), (False, False)])
def test_embeddings(segments: bool, pre_norm: bool, dynamic: bool) -> None:
    model = embeddings(segments, pre_norm, dynamic)
    fused = optimizer.optimize_model(model, opt_level=0)
    assert fused.get_operator_statistics()["EmbedLayerNormalization"] == 1
    assert "Gather" not in fused.get_operator_statistics()
    feed = {"words": np.array([[1, 19, 0], [4, 4, 7]])}
    if segments:
        feed["kinds"] = np.array([[0, 0, 1], [1, 0, 1]])
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for session in (onnxruntime.InferenceSession, sardonyx.InferenceSession):
        (got,) = session(fused.model.SerializeToString()).run(None, feed)
        np.testing.assert_allclose(got, expected, atol=1e-5)
    assert isinstance(fused, BertOnnxModel)
    fused.change_graph_inputs_to_int32()
    assert {i.type.tensor_type.elem_type for i in fused.graph().input} == {onnx.TensorProto.INT32}
    fused.topological_sort()
    narrow = {name: ids.astype(np.int32) for name, ids in feed.items()}
    (got,) = onnxruntime.InferenceSession(fused.model.SerializeToString()).run(None, narrow)
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("shape", ["B,3,4", "1,3,4", "3,4"])
def test_sums_that_broadcast(shape: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g
        (float[B,3,4] x, float[{shape}] z) => (float[B,3,4] y, float[B,3,4] sum)
        <float[4] scale = {{1, 2, 3, 4}}, float[4] shift = {{0, 1, 2, 3}}> {{
            sum = Add(z, x)
            y = LayerNormalization<axis=2>(sum, scale, shift)
        }}"""
    )
    fused = optimizer.optimize_model(model, opt_level=0)
    assert fused.get_operator_statistics() == {"SkipLayerNormalization": 1}
    rng = np.random.default_rng(0)
    dims = [2 if d == "B" else int(d) for d in shape.split(",")]
    feed = {"x": rng.standard_normal((2, 3, 4), np.float32),
            "z": rng.standard_normal(dims, np.float32)}  # fmt: skip
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for session in (onnxruntime.InferenceSession, sardonyx.InferenceSession):
        got = session(fused.model.SerializeToString()).run(None, feed)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


WIDE = """<ir_version: 8, opset_import: ["": 17]> g (float[B,S,6] x) => (float[B,S,6] y)
<int64[4] two = {0, 0, 2, 2}, int64[4] three = {0, 0, 2, 3}, int64[3] merged = {0, 0, 6}> {
    qm = MatMul(x, qw) qa = Add(qm, qb) qr = Reshape(qa, two) q = Transpose<perm=[0, 2, 1, 3]>(qr)
    km = MatMul(x, kw) ka = Add(km, kb) kr = Reshape(ka, two) k = Transpose<perm=[0, 2, 3, 1]>(kr)
    vm = MatMul(x, vw) va = Add(vm, vb) vr = Reshape(va, three)
    v = Transpose<perm=[0, 2, 1, 3]>(vr)
    scores = MatMul(q, k) weights = Softmax(scores) o = MatMul(weights, v)
    t = Transpose<perm=[0, 2, 1, 3]>(o) y = Reshape(t, merged)
}"""
ONE_ROW = """<ir_version: 8, opset_import: ["": 17]> g (int64[B,S] ids) => (float[B,S,4] y) {
    w = Gather(table, ids) t = Add(w, row) y = LayerNormalization(t, scale, shift)
}"""
BIASED = """<ir_version: 8, opset_import: ["": 17]> g
(float[B,S,4] x, float[1,S,4] z) => (float[B,S,4] y) {
    biased = Add(z, bias) t = Add(x, biased) y = LayerNormalization(t, scale, shift)
}"""
SHAPES = {
    "x": (2, 3, 6), "qw": (6, 4), "kw": (6, 4), "vw": (6, 6), "qb": 4, "kb": 4, "vb": 6,
    "z": (1, 3, 4), "table": (9, 4), "row": (1, 4), "bias": 4, "scale": 4, "shift": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "op"),
    [(WIDE, "Attention"), (ONE_ROW, "LayerNormalization"), (BIASED, "SkipLayerNormalization")],
    ids=["values wider than keys", "one row for all positions", "a bias of what is broadcast"],
)
def test_shapes_that_differ(text: str, op: str) -> None:
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    sizes = SHAPES if text is WIDE else {**SHAPES, "x": (2, 3, 4)}
    arrays: dict[str, Any] = {n: rng.standard_normal(s, np.float32) for n, s in sizes.items()}
    arrays["ids"] = np.array([[1, 8, 0], [4, 4, 7]])
    fed = {i.name for i in model.graph.input}
    known = {t.name for t in model.graph.initializer} | fed
    read = {name for node in model.graph.node for name in node.input} - known
    model.graph.initializer.extend(
        numpy_helper.from_array(a, n) for n, a in arrays.items() if n in read
    )
    fused = optimizer.optimize_model(model, opt_level=0)
    assert op in fused.get_operator_statistics()
    feed = {name: arrays[name] for name in fed}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for session in (onnxruntime.InferenceSession, sardonyx.InferenceSession):
        (got,) = session(fused.model.SerializeToString()).run(None, feed)
        np.testing.assert_allclose(got, expected, atol=1e-5)


FORMS = {
    "div": "y = Div(x, r)",
    "reciprocal": "i = Reciprocal(r) y = Mul(x, i)",
    "one over": "i = Div(one, r) y = Mul(i, x)",
}


@pytest.mark.parametrize("form", FORMS)
def test_rms_norms(form: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[B,3,4] x) => (float[B,3,4] z)
        <float two = {{2}}, float one = {{1}}, float eps = {{0.001}},
         float[4] w = {{1, 2, 3, 4}}> {{
            p = Pow(x, two)
            m = ReduceMean<axes=[-1], keepdims=1>(p)
            e = Add(m, eps)
            r = Sqrt(e)
            {FORMS[form]}
            z = Mul(w, y)
        }}"""
    )
    fused = optimizer.optimize_model(model, opt_level=0)
    assert fused.get_operator_statistics() == {"SimplifiedLayerNormalization": 1}
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)}
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    (got,) = onnxruntime.InferenceSession(fused.model.SerializeToString()).run(None, feed)
    np.testing.assert_allclose(got, expected, atol=1e-5)


def plain_counts(path: Path) -> dict[str, int]:
    return OnnxModel(onnx.load(path)).get_operator_statistics()


def test_files_and_statistics(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "fused.onnx"
    onnx.save(block(), path)
    optimizer.main(["--input", str(path), "--output", str(out), "--num_heads", "2", "--float16"])
    counts = optimizer.get_fusion_statistics(str(out))
    assert (counts["Attention"], counts["BiasGelu"]) == (1, 1)
    assert BertOnnxModel(onnx.load(out)).use_float16()
    plain = optimizer.optimize_model(str(path), opt_level=1, only_onnxruntime=True)
    assert plain.get_operator_statistics().get("Attention", 0) == 0
    saved = optimizer.optimize_by_onnxruntime(
        str(path), optimized_model_path=str(tmp_path / "o.onnx"), opt_level=2,
        save_as_external_data=True, external_data_file_threshold=1,
    )  # fmt: skip
    assert Path(saved).exists()
    assert (tmp_path / "o.onnx.data").exists()
    assert optimizer.optimize_by_onnxruntime(str(path), opt_level=1).endswith("m_o1_cpu.onnx")
    with pytest.raises(ValueError, match="opt_level must be 1, 2 or 99, got 3"):
        optimizer.optimize_by_onnxruntime(str(path), opt_level=3)
    unknown = optimizer.optimize_model(str(path), "tree")
    assert unknown.get_operator_statistics() == plain_counts(path)


def test_options() -> None:
    found = FusionOptions("vit")
    assert found.attention_mask_format == AttentionMaskFormat.NoMask
    found.use_raw_attention_mask()
    assert found.attention_mask_format == AttentionMaskFormat.AttentionMask
    found.use_raw_attention_mask(False)
    assert found.attention_mask_format == AttentionMaskFormat.MaskIndexEnd
    found.disable_attention_mask()
    found.set_attention_op_type(AttentionOpType.MultiHeadAttention)
    assert str(found.attention_op_type) == "MultiHeadAttention"
    flags = {"model_type": "bert", "disable_gelu": True, "use_mask_index": True}
    parsed = FusionOptions.parse(Namespace(**flags))
    assert (parsed.enable_gelu, parsed.enable_attention) == (False, True)
    assert parsed.attention_mask_format == AttentionMaskFormat.MaskIndexEnd
    assert FusionOptions("unet").enable_group_norm  # type: ignore[attr-defined]


QUESTIONS = """
import sys, json
sys.path[:0] = json.loads(sys.argv[1])
import onnxruntime.transformers.optimizer as o, onnxruntime.transformers.onnx_model as m
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.onnx_model_bert import BertOnnxModel
from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference
try:
    import onnxruntime.transformers.fusion_gelu
except ImportError as error:
    print(error)
print(o.FusionOptions is FusionOptions, m.OnnxModel.__module__, o.__file__)
"""


def test_names_without_onnxruntime(tmp_path: Path) -> None:
    """Nothing but Sardonyx, onnx and what they need: as where onnxruntime is not installed."""
    modules = tmp_path / "modules"
    modules.mkdir()
    site = Path(onnx.__file__).parents[1]
    for part in site.iterdir():
        if part.name.split("-")[0].split(".")[0] in ("numpy", "numpy.libs", "ml_dtypes", "onnx",
                                                     "google", "typing_extensions"):  # fmt: skip
            (modules / part.name).symlink_to(part)
    ours = modules / "sardonyx"
    ours.symlink_to(Path(sardonyx.__file__).parent)
    paths = json.dumps([str(ours / "as_onnxruntime" / "shadow"), str(modules)])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", QUESTIONS, paths],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    error, names = done.stdout.strip().splitlines()
    assert "Sardonyx has no onnxruntime.transformers.fusion_gelu" in error
    assert names.startswith("True sardonyx.transformers.onnx_model ")
    assert "as_onnxruntime" in names
