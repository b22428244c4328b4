"""Compares the kernels with references in numpy and float64. Run by test_kernels.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton")
import torch

import sardonyx
import tests.torch.interpreted  # noqa: F401 - before the kernels
from sardonyx.graph.dtype import by_name
from sardonyx.ops import lookup
from sardonyx.ops.attention.group_query import group_query
from sardonyx.ops.elementwise.chain import Code, Instruction, run_code
from sardonyx.ops.nbits.internal import dequantized_weights, weight_layout
from sardonyx.providers.torch.attention import group_query as grouped
from sardonyx.providers.torch.kernels import attention_decode, nbits_matmul, usable
from sardonyx.providers.torch.kernels.chain import Chain
from sardonyx.providers.torch.kernels.nbits_matmul import dequantize
from sardonyx.providers.torch.kernels.normalize import normalize
from sardonyx.providers.torch.kernels.rotary import rotary
from tests.torch.nbits_model import gated_block

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
CPU = torch.device("cpu")


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _packed(k: int, n: int, block: int = 32, bits: int = 4, zero: str = "packed") -> Any:
    """Random weights as the kernels have them, and as float64 [k, n]."""
    rng, blocks = _rng(), -(-k // block)
    q = rng.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)
    scale = rng.uniform(0.5, 1.5, (n, blocks)).astype(np.float32)
    points = {
        "none": None,
        "packed": rng.integers(0, 256, (n, -(-blocks * bits // 8)), np.uint8),
        "float": rng.uniform(0, 15, (n, blocks)).astype(np.float32),
    }[zero]
    default = 1 << (bits - 1)
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block, "k_major": 0, "signed": 0}
    attrs["zero_default"] = default
    form = weight_layout(q.shape, attrs)
    assert nbits_matmul.fits(form, scale.shape)
    given = [torch.from_numpy(a) if a is not None else None for a in (q, scale, points)]
    packed = nbits_matmul.pack(*given, form, default)  # type: ignore[arg-type]
    return packed, torch.from_numpy(dequantized_weights(q, scale, points, attrs)).double()


def _near(y: torch.Tensor, expected: torch.Tensor, error: float = 2e-6) -> None:
    assert y.shape == expected.shape
    assert float((y.double() - expected).norm() / expected.norm()) < error


def test_the_interpreter_makes_kernels_usable() -> None:
    assert usable(CPU)


@pytest.mark.parametrize(
    ("k", "n", "rows", "form"),
    [
        (64, 9, 1, {}),
        (100, 7, 1, {"zero": "none"}),
        (96, 7, 1, {"zero": "float"}),
        (256, 5, 1, {"block": 128}),
        (192, 5, 1, {"block": 64, "bits": 2}),
        (4160, 5, 1, {}),
        (64, 8, 3, {}),
    ],
)
def test_gemv(k: int, n: int, rows: int, form: dict[str, Any]) -> None:
    weights, w = _packed(k, n, **form)
    x = torch.from_numpy(_rng().standard_normal((rows, k)).astype(np.float32))
    _near(nbits_matmul.nbits_gemv(x, weights), x.double() @ w)
    _near(dequantize(weights, torch.float32).t(), w, 1e-6)


def test_gemv_of_bfloat16() -> None:
    weights, w = _packed(64, 24)
    x = torch.from_numpy(_rng().standard_normal((1, 64)).astype(np.float32)).bfloat16()
    y = nbits_matmul.nbits_gemv(x, weights)
    assert y.dtype == torch.bfloat16
    _near(y, x.double() @ w, 5e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity(bad: float) -> None:
    weights, _ = _packed(64, 8)
    x = torch.ones(1, 64)
    x[0, 40] = bad
    assert not nbits_matmul.nbits_gemv(x, weights).isfinite().any()
    assert not nbits_matmul.nbits_gemv(torch.zeros(1, 64), weights).any()


def test_k_major_weights_are_signed_or_not() -> None:
    rng = _rng()
    for signed in (0, 1):
        steps = rng.integers(-8 if signed else 0, 8 if signed else 16, (96, 6)).astype(np.int8)
        scale = rng.uniform(0.5, 1.5, (3, 6)).astype(np.float32)
        attrs = {"K": 96, "N": 6, "bits": 4, "block_size": 32, "k_major": 1, "signed": signed}
        form = weight_layout(steps.shape, {**attrs, "zero_default": 0})
        fields = torch.from_numpy(steps.view(np.uint8))
        packed = nbits_matmul.pack(fields, torch.from_numpy(scale), None, form)
        x = torch.from_numpy(rng.standard_normal((1, 96)).astype(np.float32))
        w = torch.from_numpy(steps.astype(np.float64) * np.repeat(scale, 32, axis=0))
        _near(nbits_matmul.nbits_gemv(x, packed), x.double() @ w)


def test_fused_norm_gate_and_fixed_point_output() -> None:
    first, w = _packed(64, 80)
    second, w2 = _packed(40, 12)
    x, gain = torch.randn(1, 64), torch.rand(64)
    made = nbits_matmul.nbits_gemv_fixed_point(x, first, norm=(gain, 1e-5), gated=True)
    assert torch.equal(made.words, nbits_matmul.fixed_point(made.value).words)
    v = x.double() / torch.sqrt((x.double() ** 2).mean() + 1e-5) * gain.double() @ w
    gate, up = v.chunk(2, -1)
    v = gate * torch.sigmoid(gate) * up
    _near(made.value, v)
    residual = torch.randn(1, 12)
    _near(nbits_matmul.nbits_gemv(made, second, residual=residual), v @ w2 + residual.double())


def test_gemv_with_the_next_norm_fused() -> None:
    first, w = _packed(64, 40)
    second, w2 = _packed(40, 12)
    x, residual, gain = torch.randn(2, 64), torch.randn(2, 40), torch.rand(40)
    made = nbits_matmul.nbits_gemv_fixed_point(x, first, residual=residual, next_norm=(gain, 1e-5))
    v = x.double() @ w + residual.double()
    v = v / torch.sqrt((v * v).mean(-1, keepdim=True) + 1e-5) * gain.double()
    _near(nbits_matmul.nbits_gemv(made, second), v @ w2)


ATTENTION = [
    # batch, tokens, heads, shared, features, capacity, last tokens, pairs, near, window, cap
    (1, 1, 4, 2, 16, 40, (20,), 0, 0, -1, 0.0),
    (2, 1, 4, 2, 16, 200, (20, 150), 8, 0, -1, 0.0),
    (1, 1, 4, 4, 24, 40, (31,), 4, 1, -1, 0.0),
    (2, 3, 6, 2, 16, 200, (20, 180), 8, 0, 12, 0.0),
    (1, 1, 2, 1, 8, 16, (0,), 4, 0, -1, 5.0),
    (1, 1, 3, 3, 96, 300, (280,), 48, 0, -1, 0.0),
    (2, 3, 4, 2, 16, 100, (20, 60), 8, 1, 30, 0.0),
    (1, 4, 2, 1, 16, 40, (39,), 4, 0, 7, 2.0),
    (1, 5, 4, 2, 16, 70, (60,), 8, 0, -1, 0.0),
]


@pytest.mark.parametrize("row", ATTENTION, ids=str)
def test_attention(row: tuple[Any, ...]) -> None:
    batch, tokens, n_heads, shared, head, capacity, ends, pairs, near, window, cap = row
    rng = _rng()

    def floats(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    qkv = floats(batch, tokens, (n_heads + 2 * shared) * head)
    k, v = (floats(batch, shared, capacity, head) for _ in range(2))
    cos, sin = (floats(capacity, pairs) if pairs else None for _ in range(2))
    seqlens = np.array(ends, np.int32)
    attrs = {
        **{name: getattr(a, "default", a) for name, a in group_query.attrs.items()},
        "num_heads": n_heads, "kv_num_heads": shared, "do_rotary": int(pairs > 0),
        "rotary_interleaved": near, "local_window_size": window, "softcap": cap, "scale": None,
    }  # fmt: skip
    total = np.array(max(ends) + 1, np.int32)
    y, k_all, v_all, _ = group_query.run(
        [qkv, None, None, k, v, seqlens, total, cos, sin, *[None] * 7], attrs
    )
    heads = attention_decode.HeadParameters(n_heads, shared, 1 / math.sqrt(head), window, cap)
    rotation = (
        attention_decode.Rotary(torch.from_numpy(cos), torch.from_numpy(sin), bool(near))
        if pairs
        else None
    )
    caches = (torch.from_numpy(k.copy()), torch.from_numpy(v.copy()))
    parts = attention_decode.split_packed(torch.from_numpy(qkv), heads)
    workspace = attention_decode.new_workspace(caches[0], n_heads, tokens)
    got = attention_decode.attend(
        parts, caches, torch.from_numpy(seqlens), heads, rotation, workspace
    )
    assert not workspace.counts.any()
    np.testing.assert_allclose(got.numpy(), y, rtol=0, atol=2e-6)
    for b, end in enumerate(ends):
        np.testing.assert_allclose(caches[0][b, :, : end + 1], k_all[b, :, : end + 1], atol=1e-6)
        np.testing.assert_array_equal(caches[1][b, :, : end + 1], v_all[b, :, : end + 1])


def test_attention_past_the_end_of_the_cache_is_nan_and_writes_inside() -> None:
    heads = attention_decode.HeadParameters(2, 1, 1.0)
    caches = (torch.zeros(1, 1, 8, 16), torch.zeros(1, 1, 8, 16))
    parts = attention_decode.split_packed(torch.ones(1, 1, 64), heads)
    y = attention_decode.attend(parts, caches, torch.tensor([50], dtype=torch.int32), heads)
    assert y.isnan().all()


def test_a_decode_step_only_calls_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "_cache_position", None)  # which widens lengths
    attrs = {
        **{name: getattr(a, "default", a) for name, a in group_query.attrs.items()},
        "num_heads": 4, "kv_num_heads": 2, "do_rotary": 0, "local_window_size": -1,
        "softcap": 0.0, "scale": None,
    }  # fmt: skip
    seqlens, total = torch.tensor([7], dtype=torch.int32), np.array(20, np.int32)
    given = (torch.randn(1, 1, 128), None, None, *torch.randn(2, 1, 2, 20, 16), seqlens, total)
    y, *_ = grouped.group_query(*given, shares=True, **attrs)
    assert y.shape == (1, 1, 64)


def test_attention_with_fixed_point_output() -> None:
    heads = attention_decode.HeadParameters(4, 2, 0.2)
    caches = (torch.randn(1, 2, 100, 32), torch.randn(1, 2, 100, 32))
    parts = attention_decode.split_packed(torch.randn(1, 1, 256), heads)
    made = attention_decode.attend_fixed_point(
        parts, caches, torch.tensor([90], dtype=torch.int32), heads
    )
    assert isinstance(made, nbits_matmul.FixedPointRows)
    assert torch.equal(made.words, nbits_matmul.fixed_point(made.value).words)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("is_centred", [False, True])
def test_norm(dtype: torch.dtype, is_centred: bool) -> None:
    x, other = (torch.randn(3, 50).to(dtype) for _ in range(2))
    gain, bias = torch.rand(50).to(dtype), torch.rand(50).to(dtype)
    y, _, _, total = normalize(x, gain, bias, 1e-5, skip=other, is_rms=not is_centred)
    v = x.double() + other.double()
    _near(total, v, 1e-3 if dtype == torch.float16 else 1e-6)
    v = v - v.mean(-1, keepdim=True) if is_centred else v
    v = v / torch.sqrt((v * v).mean(-1, keepdim=True) + 1e-5)
    _near(y, v * gain.double() + bias.double(), 1e-3 if dtype == torch.float16 else 1e-6)


@pytest.mark.parametrize("near", [False, True])
def test_rotary(near: bool) -> None:
    x, angles = torch.randn(2, 3, 5, 12), torch.randn(20, 4)
    cos, sin = angles.cos(), angles.sin()
    places = torch.tensor([[0, 4, 19], [7, 8, 9]])
    y = rotary(x, cos, sin, places, is_interleaved=near)
    c, s = cos[places][:, :, None], sin[places][:, :, None]
    first, second = (x[..., 0:8:2], x[..., 1:8:2]) if near else (x[..., :4], x[..., 4:8])
    rotated = (first * c - second * s, first * s + second * c)
    expected = torch.stack(rotated, -1).flatten(-2) if near else torch.cat(rotated, -1)
    torch.testing.assert_close(y, torch.cat((expected, x[..., 8:]), -1))


def _step(name: str, *args: int, dtype: str = "f32", domain: str = "", **attrs: Any) -> Instruction:
    op = lookup(domain, name)
    assert op is not None
    given = {**{k: getattr(a, "default", a) for k, a in op.attrs.items()}, **attrs}
    return Instruction((domain, name), args, by_name(dtype), tuple(given.items()))


def _floats(*shape: int) -> np.ndarray[Any, Any]:
    return _rng().standard_normal(shape).astype(np.float32)


EDGES = np.array(
    [math.nan, math.inf, -math.inf, 0, -0.0, 1e-30, -88, 88, 0.5, 1.5, 2.5, -0.5], np.float32
)
UNARY = (
    *("Ceil", "Floor", "Round", "Sqrt", "Exp", "Log", "Reciprocal", "Tanh", "Erf", "Sigmoid"),
    *("Softplus", "Softsign", "Mish", "HardSwish", "Abs", "Neg", "Sign", "Relu", "Sin", "Cos"),
    *("LeakyRelu", "Elu", "Selu", "Celu", "HardSigmoid", "ThresholdedRelu", "Shrink", "Gelu"),
    "Swish",
)
_INTS = np.arange(-14, 14, dtype=np.int32).reshape(4, 7)
CHAINS: list[tuple[Code, tuple[np.ndarray[Any, Any], ...]]] = [
    *(((_step(name, 0),), (EDGES,)) for name in UNARY),
    ((_step("Gelu", 0, approximate=b"tanh"),), (EDGES,)),
    ((_step("Add", 0, 1), _step("Relu", 2)), (_floats(3, 5), _floats(5))),
    (
        (_step("Sigmoid", 0), _step("Mul", 0, 2), _step("Add", 3, 1)),
        (_floats(2, 3, 4, 5), _floats(3, 1, 1)),
    ),
    (
        (_step("Mul", 0, 1), _step("Add", 3, 2)),
        (_floats(2, 3, 4), _floats(2, 1, 4), np.full((), 3, np.float32)),
    ),
    ((_step("IsNaN", 0, dtype="bool"), _step("Where", 2, 1, 0)), (EDGES, _floats(12))),
    ((_step("Clip", 0, 1, 2),), (EDGES, np.full((), -1, np.float32), np.full((), 1, np.float32))),
    ((_step("Max", 0, 1), _step("Min", 2, 0)), (EDGES, EDGES[::-1].copy())),
    (
        (_step("Mul", 0, 1, dtype="i32"), _step("Greater", 2, 1, dtype="bool")),
        (_INTS, _INTS[:1].copy()),
    ),
    (
        (_step("Add", 0, 1, dtype="f16"), _step("Relu", 2, dtype="f16")),
        (_floats(30, 40).astype(np.float16), _floats(40).astype(np.float16)),
    ),
    (
        (_step("Cast", 0, dtype="f16", to=10), _step("Add", 2, 1, dtype="f16")),
        (_floats(3, 4), _floats(3, 4).astype(np.float16)),
    ),
    ((_step("Neg", 0),), (np.zeros((3, 0), np.float32),)),
]


@pytest.mark.parametrize(("code", "operands"), CHAINS, ids=lambda x: str(x[-1])[:40] if x else "")
def test_chain(code: Code, operands: tuple[np.ndarray[Any, Any], ...]) -> None:
    got = Chain(code)(*(torch.from_numpy(x) for x in operands))
    assert got is not None
    expected = run_code(code, operands)
    assert got.numpy().dtype == expected.dtype
    np.testing.assert_allclose(got.numpy(), expected, rtol=3e-7, atol=1e-7)


def test_a_chain_keeps_the_order_of_axes_in_memory() -> None:
    x = torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)
    bias = torch.randn(8, 1, 1)
    y = Chain((_step("Add", 0, 1), _step("Relu", 2)))(x, bias)
    assert y is not None
    assert y.stride() == x.stride()
    torch.testing.assert_close(y, (x + bias).relu())


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ((_step("Div", 0, 0, dtype="i32"),), torch.int32),  # by zero is an error
        ((_step("Exp", 0, dtype="f64"),), torch.float64),
        ((_step("Cast", 0, dtype="bf16", to=16),), torch.int64),  # would round twice
    ],
)
def test_chains_without_a_kernel(code: Code, dtype: torch.dtype) -> None:
    assert Chain(code)(torch.ones(4, dtype=dtype)) is None


BLOCKS = {
    "both in kernels": (4, 4, "*=torch", {"FusedMatMulNBits": 2}),
    "the last without a kernel": (4, 8, "*=torch", {"FusedMatMulNBits": 2}),
    "the first without a kernel": (8, 4, "*=torch", {"FusedMatMulNBits": 2}),
    "the last on the CPU": (4, 4, "down=cpu;*=torch", {"FusedMatMulNBits": 1, "MatMulNBits": 1}),
}


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize(("bits", "last", "wish", "ops"), BLOCKS.values(), ids=BLOCKS)
def test_fixed_point_values_are_passed_to_their_readers_only(
    bits: int, last: int, wish: str, ops: dict[str, int], rows: int
) -> None:
    model, x = gated_block(bits, last), _rng().standard_normal((1, rows, 64), np.float32)
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.placement", wish)
    there = sardonyx.InferenceSession(
        model, options, providers=[("TorchExecutionProvider", {"device": "cpu"})]
    )
    names = [node.op.name for node, _, _ in there._compiled.program.nodes()]
    assert {name: names.count(name) for name in ops} == ops
    here = sardonyx.InferenceSession(model, providers=["CPUExecutionProvider"])
    (got,), (want,) = (session.run(None, {"x": x}) for session in (there, here))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)


def test_a_cuda_graph_keeps_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = torch.zeros(1, 2, 8, 16)
    monkeypatch.setattr(grouped, "_is_capturing", lambda _: True)
    workspace = grouped._workspace(cache, 4, 1)
    monkeypatch.setattr(grouped, "_is_capturing", lambda _: False)
    passing = grouped._workspace(cache, 4, 2)
    for batch in range(2, grouped._MAX_WORKSPACES + 3):
        grouped._workspace(cache.expand(batch, -1, -1, -1), 4, 1)
    assert len(grouped._WORKSPACES) <= grouped._MAX_WORKSPACES
    assert grouped._workspace(cache, 4, 1) is workspace
    assert grouped._workspace(cache, 4, 2) is not passing
