"""Ops of float32 that models of com.microsoft have: their gradients against torch's autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.ops.nbits.bnb4 import NF4 as CODES
from sardonyx.train import gradient
from tests.train.contrib_attention import (
    GQA,
    GROUPED,
    LINEAR,
    MULTI,
    PROJECTED,
    ROTARY,
    Contrib,
    f32,
    gqa_inputs,
    i32,
)

torch = pytest.importorskip("torch")


F = torch.nn.functional


BITS = np.random.default_rng(0).integers(0, 256, (20, 3, 16)).astype(np.uint8)


STEPS = np.abs(f32(20, 3)) / 8


def dequantized(rows: Any = slice(None), zero: int = 8) -> Any:
    """The weights [20, 96] of blocks of 32 codes in 4 bits."""
    codes = np.stack((BITS & 15, BITS >> 4), -1).reshape(20, 96).astype(np.float64)
    return torch.tensor((codes - zero) * np.repeat(STEPS, 32, 1).astype(np.float64))[rows]


_INDEX = np.array([[3, 0, 3], [19, 7, 3]])


_TABLE = {"data": BITS.reshape(20, 48), "i": _INDEX, "scales": STEPS}


def rescaled(scales: Any) -> Any:
    """Rows of the weights with other scales."""
    unit = dequantized() / torch.tensor(np.repeat(STEPS, 32, 1)).double()
    return (unit * scales.repeat_interleave(32, 1))[_INDEX]


QUANTIZED = [
    Contrib(
        "MatMulNBits",
        {"x": f32(2, 5, 96), "w": BITS, "scales": STEPS},
        lambda x: x @ dequantized().T,
        {"K": 96, "N": 20, "block_size": 32},
        fixed=("scales",),
    ),
    Contrib(
        "MatMulNBits",
        {
            "x": f32(7, 90), "w": BITS, "scales": STEPS, "zero": np.full((20, 2), 0x33, np.uint8),
            "g": None, "bias": f32(20),
        },
        lambda x, bias: x @ dequantized(zero=3).T[:90] + bias,
        {"K": 90, "N": 20, "block_size": 32},
        fixed=("scales",),
    ),
    Contrib("GatherBlockQuantized", _TABLE, rescaled, {"block_size": 32}),
]  # fmt: skip


BYTES = np.random.default_rng(1).integers(0, 256, (6, 4)).astype(np.uint8)


NF4 = np.random.default_rng(2).integers(0, 256, 32 * 20 // 2).astype(np.uint8)


def observed(x: Any, scale: Any, bias: Any) -> Any:
    """The product of x, quantized over its own range, and of weights with a zero point of 120."""
    low, high = x.detach().min().clamp(max=0), x.detach().max().clamp(min=0)
    step = (high - low) / 255
    zero = (-low / step).round()
    rounded = ((x.detach() / step).round() + zero).clamp(0, 255) - zero
    straight = x + (rounded * step - x).detach()
    return straight @ ((torch.tensor(BYTES).double() - 120) * scale) + bias


def from_code_book(x: Any) -> Any:
    codes = np.stack((NF4 >> 4, NF4 & 15), 1).reshape(-1)
    steps = np.repeat(np.abs(f32(20)), 32)
    return x @ torch.tensor(np.array(CODES)[codes] * steps).double().reshape(20, 32).T


QUANTIZED += [
    Contrib(
        "DynamicQuantizeMatMul",
        {
            "x": f32(5, 6),
            "w": BYTES,
            "s": np.abs(f32(4)),
            "z": np.array(120, np.uint8),
            "b": f32(4),
        },
        observed,
    ),
    Contrib(
        "MatMulBnb4",
        {"x": f32(2, 5, 32), "w": NF4, "absmax": np.abs(f32(20))},
        from_code_book,
        {"K": 32, "N": 20, "block_size": 32, "quant_type": 1},
        fixed=("absmax",),
    ),
]


WORDS = i32([3, 1, 4], [1, 5, 2])


NORMS = [
    Contrib(
        "SkipSimplifiedLayerNormalization",
        {"x": f32(2, 5, 8), "skip": f32(2, 5, 8, scale=0.5), "w": f32(8)},
        lambda x, s, w: F.rms_norm(x + s, (8,), w, 1e-5) + 2 * (x + s),
        {"epsilon": 1e-5},
        outputs=("y", "", "", "sum"),
        of=("y", "sum"),
    ),
    Contrib(
        "SkipLayerNormalization",
        {"x": f32(2, 5, 8), "skip": f32(5, 8), "w": f32(8), "b": f32(8), "bias": f32(8, scale=2)},
        lambda x, s, w, b, bias: F.layer_norm(x + s + bias, (8,), w, b, 1e-5),
        {"epsilon": 1e-5},
    ),
    Contrib(
        "EmbedLayerNormalization",
        {
            "ids": WORDS, "segments": None, "words": f32(6, 8),
            "positions": f32(4, 8), "types": None, "w": f32(8), "b": f32(8, scale=0.5),
        },
        lambda t, p, w, b: F.layer_norm(
            t[WORDS.astype(int)] + p[:3], (8,), w, b, 1e-5
        ),
        {"epsilon": 1e-5},
        outputs=("y", "mask"),
    ),
    Contrib(
        "GroupNorm",
        {"x": f32(2, 3, 4, 8), "w": f32(8), "b": f32(8, scale=0.5)},
        lambda x, w, b: F.silu(
            F.group_norm(x.permute(0, 3, 1, 2), 2, w, b, 1e-5)
        ).permute(0, 2, 3, 1),
        {"groups": 2, "activation": 1, "channels_last": 1},
    ),
]  # fmt: skip


OTHERS = [
    Contrib(
        "RelativePositionBias",
        {"table": f32(4, 2), "rows": np.array([3]), "keys": np.array([3])},
        # A key that is d before the query is in bucket d; later ones are in bucket 0.
        lambda t: t.reshape(2, 4)[:, [[0, 0, 0], [1, 0, 0], [2, 1, 0]]][None],
        {"max_distance": 8},
    ),
    Contrib(
        "FusedGemm",
        {"a": f32(5, 6), "b": f32(4, 6), "c": f32(4)},
        lambda a, b, c: F.elu(0.5 * a @ b.T + c, 0.7),
        {"transB": 1, "alpha": 0.5, "activation": "Elu", "activation_alpha": 0.7},
    ),
    Contrib(
        "CausalConvWithState",
        {"x": f32(2, 4, 7), "w": f32(4, 1, 3), "b": f32(4)},
        lambda x, w, b: F.conv1d(F.pad(x, (2, 0)), w, b, groups=4),
        {"activation": "none"},
        outputs=("y", "state"),
    ),
]


ALL = [*ROTARY, *GROUPED, *MULTI, *PROJECTED, *LINEAR, *QUANTIZED, *NORMS, *OTHERS]


IDS = [f"{c.op}{i}" for i, c in enumerate(ALL)]


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_as_torch(case: Contrib) -> None:
    names = case.names()
    made = gradient(case.model(), case.of, names, seeds=True)
    session = sardonyx.InferenceSession(made)
    feeds = {n: case.inputs[n] for n in names}
    tensors = [
        torch.tensor(x).double().requires_grad_()
        for n, x in case.inputs.items()
        if x is not None and x.dtype.kind == "f" and n not in case.fixed
    ]
    wanted = case.function(*tensors)
    rng = np.random.default_rng(4)
    seed = rng.standard_normal(wanted.shape).astype(np.float32)
    wanted.backward(torch.tensor(seed).double())
    # A sum of outputs has the seed of each; the second one counts twice.
    seeds = {f"{n}_grad": (i + 1) * seed for i, n in enumerate(case.of)}
    results = session.run([f"{n}_grad" for n in names], feeds | seeds)
    for name, found, tensor in zip(names, results, tensors, strict=True):
        size = float(tensor.grad.abs().max())
        np.testing.assert_allclose(
            found, tensor.grad.numpy(), 1e-4, 2e-5 * max(size, 1), err_msg=name
        )


def test_a_cache_that_is_not_empty_has_no_gradient() -> None:
    inputs = gqa_inputs(f32(2, 5, 32)) | {
        "past_key": f32(2, 2, 3, 8),
        "past_value": f32(2, 2, 3, 8),
    }
    case = Contrib("GroupQueryAttention", inputs, lambda q: q, GQA)
    with pytest.raises(NotImplemented, match=r"(?s)cache past_key.*node.*hint.*`dims`"):
        gradient(case.model(), "y", ["query"], seeds=True)


@pytest.mark.parametrize("case", [QUANTIZED[0], GROUPED[1], ROTARY[0]], ids=lambda c: c.op)
def test_scales_and_tables_are_not_trained_by_default(case: Contrib) -> None:
    """No initializer of these models is a weight."""
    with pytest.raises(InvalidArgument, match="depends on no initializer"):
        gradient(case.model(), "y", seeds=True)
