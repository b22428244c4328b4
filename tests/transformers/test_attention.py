"""Attention of decoders, of merged heads, with masks and rotary positions: ops and results."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.transformers import optimizer
from sardonyx.transformers.fusion_options import FusionOptions
from sardonyx.transformers.onnx_model import OnnxModel

Arrays = dict[str, np.ndarray[Any, Any]]
RNG = np.random.default_rng(0)


def normal(*dims: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(dims).astype(np.float32)


def parsed(text: str, constants: Arrays, opset: int = 17) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>'
    model: onnx.ModelProto = onnx.parser.parse_model(header + text)
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    model.graph.initializer.extend(tensors)
    return model


def check(
    model: onnx.ModelProto,
    feed: Arrays,
    kind: str = "bert",
    atol: float = 2e-5,
    **options: Any,
) -> dict[str, int]:
    """Return the ops of the fused model, whose results are those of the model in both runtimes."""
    chosen = FusionOptions(kind)
    for name, value in options.items():
        setattr(chosen, name, value)
    fused = optimizer.optimize_model(model, kind, optimization_options=chosen, opt_level=0)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    for session in (onnxruntime.InferenceSession, sardonyx.InferenceSession):
        got = session(fused.model.SerializeToString()).run(None, feed)
        for mine, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=atol)
    return fused.get_operator_statistics()


HEADS = {"heads": np.array([0, 0, 2, 4]), "whole": np.array([0, 0, 8])}
LINEAR = {f"{n}{kind}": normal(*dims) for n in "qkv" for kind, dims in (("w", (8, 8)), ("b", (8,)))}
QKV = """
    qm = MatMul(x, qw) qa = Add(qm, qb) qr = Reshape(qa, heads)
    km = MatMul(x, kw) ka = Add(kb, km) kr = Reshape(ka, heads)
    vm = MatMul(x, vw) va = Add(vm, vb) vr = Reshape(va, heads)
    q = Transpose<perm=[0, 2, 1, 3]>(qr) k = Transpose<perm=[0, 2, 3, 1]>(kr)
    v = Transpose<perm=[0, 2, 1, 3]>(vr)
"""
OUT = "t = Transpose<perm=[0, 2, 1, 3]>(o) y = Reshape(t, whole)"


def test_masks_of_integers() -> None:
    """A mask of zeros and ones is an input of the op, as it is fed."""
    model = parsed(
        "g (float[B,S,8] x, int64[B,S] mask) => (float[B,S,8] y) {" + QKV + """
        s = MatMul(q, k) scaled = Div(s, root) u = Unsqueeze(mask, axes) f = Cast<to=1>(u)
        hidden = Sub(one, f) low = Mul(hidden, lowest) masked = Add(scaled, low)
        p = Softmax<axis=-1>(masked) o = MatMul(p, v)""" + OUT + "}",
        {**HEADS, **LINEAR, "root": np.float32(2), "one": np.float32(1),
         "lowest": np.float32(-10000), "axes": np.array([1, 2])},
    )  # fmt: skip
    feed = {"x": normal(2, 3, 8), "mask": np.array([[1, 1, 0], [1, 0, 1]])}
    fused = optimizer.optimize_model(model, opt_level=0)
    (node,) = fused.get_nodes_by_op_type("Attention")
    assert (node.name, node.input[3]) == ("Attention_0", "mask_int32")
    assert list(node.input[1:3]) == ["Attention_0_qkv_weight", "Attention_0_qkv_bias"]
    assert check(model, feed) == {"Attention": 1, "Cast": 1}
    apart = check(model, feed, use_multi_head_attention=True)
    assert apart == {"MultiHeadAttention": 1, "MatMul": 3, "Cast": 1}
    added = check(
        model, feed, use_multi_head_attention=True, disable_multi_head_attention_bias=True
    )
    assert added == {"MultiHeadAttention": 1, "MatMul": 3, "Add": 3, "Cast": 1}


DECODER = """g (float[B,S,8] x, float[2,B,2,P,4] past, float[B,T] mask)
    => (float[B,S,8] y, float[2,B,2,T,4] present) {
    xs = Shape(x) flat = Reshape(x, rows) gemm = Gemm(flat, w, b)
    d0 = Gather(xs, zero) d1 = Gather(xs, one) u0 = Unsqueeze(d0, first) u1 = Unsqueeze(d1, first)
    wide = Concat<axis=0>(u0, u1, columns) all = Reshape(gemm, wide)
    qp, kp, vp = Split<axis=2>(all, thirds)
    qr = Reshape(qp, heads) kr = Reshape(kp, heads) vr = Reshape(vp, heads)
    q = Transpose<perm=[0, 2, 1, 3]>(qr) v1 = Transpose<perm=[0, 2, 1, 3]>(vr)
    pk = Gather<axis=0>(past, zero) pv = Gather<axis=0>(past, one)
    KEYS
    v = Concat<axis=-2>(pv, v1)
    ku = Unsqueeze(kn, first) vu = Unsqueeze(v, first) present = Concat<axis=0>(ku, vu)
    s = MatMul(q, k) scaled = Div(s, root)
    ss = Shape(scaled) keys = Slice(ss, minus1, end, first) both = Slice(ss, minus2, minus1, first)
    before = Sub(keys, both) low_rows = Slice(triangle, before, keys, two)
    square = Slice(low_rows, first, keys, three) seen = Cast<to=9>(square)
    causal = Where(seen, scaled, lowest)
    m4 = Unsqueeze(mask, middle) hidden = Sub(fone, m4) low = Mul(hidden, lowest)
    masked = Add(causal, low) p = Softmax<axis=-1>(masked) o = MatMul(p, v)
    t = Transpose<perm=[0, 2, 1, 3]>(o) merged = Reshape(t, whole)
    mflat = Reshape(merged, rows) mg = Gemm(mflat, ow, ob) ms = Shape(merged)
    y = Reshape(mg, ms)
}"""
KEYS_LAST = """k1 = Transpose<perm=[0, 2, 3, 1]>(kr) pkt = Transpose<perm=[0, 1, 3, 2]>(pk)
    k = Concat<axis=-1>(pkt, k1) kn = Transpose<perm=[0, 1, 3, 2]>(k)"""
ROWS_LAST = """k1 = Transpose<perm=[0, 2, 1, 3]>(kr) kn = Concat<axis=-2>(pk, k1)
    k = Transpose<perm=[0, 1, 3, 2]>(kn)"""


def decoder_constants() -> Arrays:
    return {
        **HEADS, "w": normal(8, 24), "b": normal(24), "ow": normal(8, 8), "ob": normal(8),
        "rows": np.array([-1, 8]), "zero": np.array(0), "one": np.array(1),
        "first": np.array([0]), "columns": np.array([24]), "thirds": np.array([8, 8, 8]),
        "root": np.float32(2), "minus1": np.array([-1]), "minus2": np.array([-2]),
        "end": np.array([1 << 40]), "two": np.array([2]), "three": np.array([3]),
        "triangle": np.tri(16, dtype=np.uint8)[None, None], "lowest": np.float32(-10000),
        "fone": np.float32(1), "middle": np.array([1, 2]), "high": np.float32(10000),
    }  # fmt: skip


@pytest.mark.parametrize("keys", [KEYS_LAST, ROWS_LAST], ids=["transposed", "rows"])
def test_decoders_with_a_past(keys: str) -> None:
    """One projection, keys and values of earlier runs, causality and padding."""
    model = parsed(DECODER.replace("KEYS", keys), decoder_constants())
    mask = np.ones((2, 5), np.float32)
    mask[0, 0] = 0
    feed = {"x": normal(2, 3, 8), "past": normal(2, 2, 2, 2, 4), "mask": mask}
    counts = check(model, feed, "gpt2")
    assert counts == {"Attention": 1, "MatMul": 1, "Add": 1, "Cast": 1}
    node = optimizer.optimize_model(model, "gpt2").get_nodes_by_op_type("Attention")[0]
    assert OnnxModel.get_node_attribute(node, "unidirectional") == 1
    assert list(node.input) == ["x", "w", "b", "mask_int32", "past"]


def test_masks_that_multiply_scores() -> None:
    """As Megatron has them, which onnxruntime's kernel for the CPU does not read."""
    text = DECODER.replace("KEYS", ROWS_LAST).replace("float[B,T] mask", "float[B,1,16,16] mask")
    start, end = text.index("s = MatMul"), text.index("p = Softmax")
    text = f"""{text[:start]}
        scaled = Div(q, root) s = MatMul(scaled, k) ss = Shape(s)
        keys = Slice(ss, minus1, end, first) both = Slice(ss, minus2, minus1, first)
        before = Sub(keys, both) low_rows = Slice(mask, before, keys, two)
        seen = Slice(low_rows, first, keys, three) kept = Mul(s, seen)
        others = Sub(fone, seen) low = Mul(others, high) masked = Sub(kept, low) {text[end:]}"""
    model = parsed(text, decoder_constants())
    mask = np.tri(16, dtype=np.float32)[None, None].repeat(2, 0)
    mask[0, 0, 3, 1] = 0
    feed = {"x": normal(2, 3, 8), "past": normal(2, 2, 2, 2, 4), "mask": mask}
    fused = optimizer.optimize_model(model, "gpt2", opt_level=0)
    (node,) = fused.get_nodes_by_op_type("Attention")
    assert OnnxModel.get_node_attribute(node, "unidirectional") == 0
    assert list(node.input) == ["x", "w", "b", "mask_int32", "past"]
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    got = sardonyx.InferenceSession(fused.model.SerializeToString()).run(None, feed)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


@pytest.mark.parametrize("masked", [True, False])
def test_heads_that_are_merged_with_the_batch(masked: bool) -> None:
    mask = "s4 = Reshape(s, split) m4 = Add(s4, mask) w = Reshape(m4, joined)"
    model = parsed(
        f"""g (float[2,3,8] x{", float[2,1,3,3] mask" if masked else ""}) => (float[2,3,8] y) {{"""
        + QKV.replace("perm=[0, 2, 3, 1]", "perm=[0, 2, 1, 3]").replace("qa = Add", "qu = Add")
        .replace("qr = Reshape(qa", "qa = Mul(qu, half) qr = Reshape(qa") + f"""
        q3 = Reshape(q, three) k3 = Reshape(k, three) v3 = Reshape(v, three)
        kt = Transpose<perm=[0, 2, 1]>(k3) s = MatMul(q3, kt)
        {mask if masked else "w = Identity(s)"}
        p = Softmax<axis=-1>(w) o3 = MatMul(p, v3) o = Reshape(o3, back)""" + OUT + "}",
        {**HEADS, **LINEAR, "half": np.float32(0.5), "three": np.array([4, 3, 4]),
         "back": np.array([2, 2, 3, 4])}
        | ({"split": np.array([2, 2, 3, 3]), "joined": np.array([4, 3, 3])} if masked else {}),
    )  # fmt: skip
    feed = {"x": normal(2, 3, 8)}
    if masked:
        feed["mask"] = np.where(RNG.random((2, 1, 3, 3)) < 0.3, -1e4, 0).astype(np.float32)
    assert check(model, feed, "clip") == {"Attention": 1}


def test_keys_and_values_of_a_cache() -> None:
    """Cross-attention: only the query is projected."""
    model = parsed(
        """g (float[B,S,8] x, float[B,2,T,4] keys, float[B,2,T,4] v) => (float[B,S,8] y) {
        qm = MatMul(x, qw) qa = Add(qm, qb) qr = Reshape(qa, heads)
        q = Transpose<perm=[0, 2, 1, 3]>(qr) k = Transpose<perm=[0, 1, 3, 2]>(keys)
        s = MatMul(q, k) scaled = Div(s, root) p = Softmax<axis=-1>(scaled) o = MatMul(p, v)
        """ + OUT + "}",
        {**HEADS, "qw": LINEAR["qw"], "qb": LINEAR["qb"], "root": np.float32(2)},
    )  # fmt: skip
    feed = {"x": normal(2, 3, 8), "keys": normal(2, 2, 5, 4), "v": normal(2, 2, 5, 4)}
    assert check(model, feed, "bart") == {"MultiHeadAttention": 1, "MatMul": 1}


def test_weights_that_are_cast_and_zeroed() -> None:
    """Weights in float16, and rows that see no key."""
    start = "g (float[B,S,8] x, bool[B,1,S,S] hidden) => (float[B,S,8] y) {" + QKV
    cast = """s = MatMul(q, k) scaled = Mul(s, root) p = Softmax<axis=-1>(scaled)
        ph = Cast<to=10>(p) vh = Cast<to=10>(v) oh = MatMul(ph, vh)
        t = Transpose<perm=[0, 2, 1, 3]>(oh) yh = Reshape(t, whole) y = Cast<to=1>(yh)}"""
    constants = {**HEADS, **LINEAR, "root": np.float32(0.5)}
    feed = {"x": normal(2, 3, 8), "hidden": RNG.random((2, 1, 3, 3)) < 0.4}
    feed["hidden"][0, 0, 1] = True
    counts = check(parsed(start + cast, constants), feed, "mmdit", atol=4e-3)
    assert (counts["MultiHeadAttention"], counts.get("Softmax", 0)) == (1, 0)
    zeroed = """s = MatMul(q, k) biased = Add(s, bias) scaled = Mul(biased, root)
        low = Where(hidden, lowest, scaled) p = Softmax<axis=-1>(low)
        w = Where(hidden, zero, p) o = MatMul(w, v)""" + OUT + "}"  # fmt: skip
    constants |= {"lowest": np.float32(-1e9), "zero": np.float32(0), "bias": normal(1)}
    counts = check(parsed(start + zeroed, constants), feed, "conformer")
    assert (counts["Attention"], counts.get("Softmax", 0)) == (1, 0)


ROTARY = """g (float[B,S,8] x, int64[B,S] ids) => (float[B,2,S,4] y) {
    xr = Reshape(x, heads) h = Transpose<perm=[0, 2, 1, 3]>(xr)
    ANGLES
    cos = Unsqueeze(c, one) sin = Unsqueeze(s, one)
    x1 = Slice(h, zero, two, last) x2 = Slice(h, two, end, last)
    n = Neg(x2) r = Concat<axis=-1>(n, x1) hc = Mul(h, cos) rs = Mul(r, sin) y = Add(hc, rs)
}"""
COMPUTED = """iu = Unsqueeze(ids, one) f = Cast<to=1>(iu) a = MatMul(frequency, f)
    at = Transpose<perm=[0, 2, 1]>(a) both = Concat<axis=-1>(at, at)
    cs = Cos(both) ss = Sin(both) c = Mul(cs, factor) s = Mul(ss, factor)"""
GATHERED = """xs = Shape(x) rows = Slice(xs, one, two, zero)
    ct = Slice(cos_table, zero, big, zero) c = Gather(ct, ids) s = Gather(sin_table, ids)"""


@pytest.mark.parametrize("angles", [COMPUTED, GATHERED], ids=["computed", "gathered"])
def test_rotary_positions(angles: str) -> None:
    frequency = np.array([1, 0.01], np.float32)
    table = np.arange(40, dtype=np.float32)[:, None] * np.tile(frequency, 2)
    constants: Arrays = {
        "heads": HEADS["heads"], "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
        "last": np.array([-1]), "end": np.array([1 << 40]), "big": np.array([40]),
        "factor": np.float32(1.5), "frequency": frequency.reshape(1, 2, 1),
        "cos_table": np.cos(table), "sin_table": np.sin(table),
    }  # fmt: skip
    text = ROTARY.replace("ANGLES", angles)
    used = {name: a for name, a in constants.items() if name in text}
    feed = {"x": normal(2, 3, 8), "ids": np.array([[0, 1, 2], [7, 30, 31]])}
    counts = check(parsed(text, used), feed, "qwen3")
    assert counts["RotaryEmbedding"] == 1
    assert "Neg" not in counts
    other = parsed(text.replace("x1 = Slice(h, zero, two", "x1 = Slice(h, one, three"),
                   {**used, "three": np.array([3])})  # fmt: skip
    assert "RotaryEmbedding" not in check(other, feed, "qwen3")


def test_rotary_positions_with_computed_frequencies() -> None:
    text = ROTARY.replace("ANGLES", COMPUTED).replace("ids)", "ids, float[1,2,1] frequency)", 1)
    model = parsed(text, {
        "heads": HEADS["heads"], "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
        "last": np.array([-1]), "end": np.array([1 << 40]), "factor": np.float32(1),
    })  # fmt: skip
    feed = {"x": normal(1, 3, 8), "ids": np.array([[0, 1, 2]]), "frequency": normal(1, 2, 1)}
    assert "RotaryEmbedding" not in check(model, feed, "qwen3")


def test_self_attention_of_bart_is_causal() -> None:
    """As in onnxruntime: the type of model says what its mask is."""
    model = parsed(
        "g (float[B,S,8] x, float[1,1,S,S] mask) => (float[B,S,8] y) {" + QKV + """
        s = MatMul(q, k) scaled = Div(s, root) masked = Add(scaled, mask)
        p = Softmax<axis=-1>(masked) o = MatMul(p, v)""" + OUT + "}",
        {**HEADS, **LINEAR, "root": np.float32(2)},
    )  # fmt: skip
    mask = np.where(np.tri(3), 0, -1e9).astype(np.float32)[None, None]
    feed = {"x": normal(2, 3, 8), "mask": mask}
    assert check(model, feed, "bart") == {"Attention": 1}
    node = optimizer.optimize_model(model, "bart").get_nodes_by_op_type("Attention")[0]
    assert OnnxModel.get_node_attribute(node, "unidirectional") == 1
    assert "mask" not in node.input
