"""The session config key sardonyx.precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.providers.cpu.index import MULTIPLIES_BF16
from tests.decoder import Decoder, generate

Array = Any
KEY = "sardonyx.precision"
LEVEL = "session.qdq_matmulnbits_accuracy_level"
PROMPT = [[3, 1, 4, 1, 5]]
RNG = np.random.default_rng(3)


def f32(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def model(op: str, attrs: dict[str, Any], x: Array, *weights: Array) -> bytes:
    """One node on an input and constants."""
    names = [f"w{i}" for i in range(len(weights))]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attrs)],
        "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    return bytes(made.SerializeToString())


def session(data: Any, **entries: str) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return sardonyx.InferenceSession(data, options, providers=["CPUExecutionProvider"])


HEADS = {"q_num_heads": 2, "kv_num_heads": 2}
CASES: dict[str, tuple[Any, ...]] = {
    "matmul": ("MatMul", {}, f32(50, 77), f32(77, 40)),
    "few rows": ("MatMul", {}, f32(2, 77), f32(77, 40)),
    "gemm": ("Gemm", {"transB": 1}, f32(50, 77), f32(40, 77), f32(40)),
    "strided": ("Conv", {"strides": [2, 2]}, f32(1, 7, 20, 20), f32(40, 7, 3, 3)),
    "pointwise": ("Conv", {}, f32(1, 33, 9, 9), f32(40, 33, 1, 1)),
    "halves": ("MatMul", {}, f32(50, 77).astype(np.float16), f32(77, 40).astype(np.float16)),
    "attention": (
        "Attention",
        HEADS,
        *(f32(1, 40, 64) for _ in range(3)),
    ),
}
EXACT: dict[str, tuple[Any, ...]] = {  # what the key leaves alone
    "winograd": ("Conv", {}, f32(1, 16, 20, 20), f32(16, 16, 3, 3)),
    "depthwise": ("Conv", {"group": 16}, f32(1, 16, 20, 20), f32(16, 1, 3, 3)),
    "one row": ("Attention", HEADS, *(f32(1, n, 64) for n in (1, 40, 40))),
    "doubles": ("MatMul", {}, f32(50, 77).astype(float), f32(77, 40).astype(float)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bf16_is_near(case: str) -> None:
    data, x = model(*CASES[case]), CASES[case][2]
    exact, rounded = (session(data, **{KEY: p}).run(None, {"x": x})[0] for p in ("exact", "bf16"))
    difference = np.abs(exact.astype(np.float64) - rounded).max() / np.abs(exact).max()
    assert rounded.dtype == x.dtype
    assert difference < 2e-2
    assert (difference > 0) == MULTIPLIES_BF16


@pytest.mark.parametrize("case", EXACT)
def test_what_stays_exact(case: str) -> None:
    data, x = model(*EXACT[case]), EXACT[case][2]
    found = [session(data, **{KEY: p}).run(None, {"x": x})[0] for p in ("exact", "bf16")]
    np.testing.assert_array_equal(*found)


def test_products_of_bf16_are_exact() -> None:
    """Sums are those of float32, rounded once, with the key and without."""
    x, w = (f32(*s).astype(ml_dtypes.bfloat16) for s in ((40, 301), (301, 70)))
    data = model("MatMul", {}, x, w)
    want = x.astype(np.float64) @ w.astype(np.float64)
    for precision in ("exact", "bf16"):
        y = session(data, **{KEY: precision}).run(None, {"x": x})[0]
        np.testing.assert_allclose(y.astype(np.float64), want, rtol=2.0**-8, atol=1e-4)


@pytest.mark.parametrize("form", ["qoperator", "qdq"])
def test_int8_is_level_four(form: str) -> None:
    """Also where a model says that it wants another level."""
    data = Decoder(form).model().SerializeToString()
    wanted = Decoder(form, level=4).model().SerializeToString()
    found = generate(session(data, **{KEY: "int8"}), PROMPT, 3)
    for a, b in zip(found, generate(session(wanted, **{LEVEL: "4"}), PROMPT, 3), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_pack_is_made_for_one_precision(tmp_path: Path) -> None:
    """Sessions of both find their own, with weights of half the size where these are rounded."""
    op, attrs, x, w, *_ = CASES["matmul"]
    wide = np.tile(w, (8, 40))
    (tmp_path / "m.onnx").write_bytes(model(op, attrs, np.tile(x, 8), wide))
    (tmp_path / "packs").mkdir()
    sizes = {}
    for precision in ("exact", "bf16", "bf16"):
        entries = {KEY: precision, "sardonyx.pack_cache": str(tmp_path / "packs")}
        run = session(tmp_path / "m.onnx", **entries)
        plain = session(tmp_path / "m.onnx", **{KEY: precision})
        feeds = {"x": np.tile(x, 8)}
        np.testing.assert_array_equal(run.run(None, feeds)[0], plain.run(None, feeds)[0])
        known = set(sizes)
        packs = (tmp_path / "packs").glob("*.pack")
        sizes |= {p: p.stat().st_size for p in packs if p not in known}
    exact, rounded = sizes.values()
    assert (rounded < exact * 0.6) == MULTIPLIES_BF16


@pytest.mark.parametrize("value", ["fp16", "BF16", ""])
def test_other_values_are_refused(value: str) -> None:
    data = model(*CASES["matmul"])
    with pytest.raises(InvalidArgument, match=f"{KEY} must be one of exact, bf16, int8, got"):
        session(data, **{KEY: value})
