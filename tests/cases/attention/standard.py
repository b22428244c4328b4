"""Cases of Attention, FlexAttention, LinearAttention and RotaryEmbedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.op_cases import Array, Case, bf16, bools, case, f16, f32, f64, fails, i64, of

inf = np.inf
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
PREVIEW = "ai.onnx.preview"


def attend(*inputs: Any, **options: Any) -> Case:
    """Attention that shows all its outputs."""
    options.setdefault("outputs", 4)
    return case("Attention", *inputs, **options)


def angles(*shape: int) -> tuple[Array, Array]:
    """The cosines and sines of some angles."""
    angle = f32(*shape)
    return np.cos(angle), np.sin(angle)


def packed(heads: int, dtype: Any = np.float32) -> tuple[Array, Array, Array]:
    """Query, key and value of a linear attention with heads of 4 and 3 features."""
    q, k, v = f32(2, 5, heads * 4), f32(2, 5, 2 * 4), f32(2, 5, 2 * 3)
    return q.astype(dtype), (k * 0.4).astype(dtype), v.astype(dtype)


Q, K, V = f32(2, 3, 4, 8), f32(2, 3, 6, 8), f32(2, 3, 6, 5)


def softmax_of(q: Array, k: Array, v: Array) -> Array:
    """Plain attention in float64."""
    scores = q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    e = np.exp(scores)
    return np.asarray(e / e.sum(axis=-1, keepdims=True) @ v, np.float32)


ATTENTION = [
    attend(Q, K, V),
    attend(Q, K, V, scale=0.3),
    attend(Q, K, V, softcap=0.7, qk_matmul_output_mode=1),
    attend(Q, K, V, f32(4, 6), softcap=2.0, qk_matmul_output_mode=2),
    attend(Q, K, V, bools(4, 6), qk_matmul_output_mode=3),
    attend(Q, K, V, bools(2, 1, 4, 6), qk_matmul_output_mode=3),
    attend(Q, K, V, f32(3, 4, 6), oracle="onnx"),
    attend(Q, K, V, f32(6), oracle="onnx", why="onnxruntime wants masks of rank 2 to 4"),
    attend(Q, K, V, f32(4, 4), opset=24, oracle="onnx", why="a short mask shuts out the rest"),
    attend(Q, K, V, f32(4, 1), opset=23, outputs=1, expect=(softmax_of(Q, K, V),)),
    attend(Q, f32(2, 3, 4, 8), f32(2, 3, 4, 5), is_causal=1),
    attend(Q, K, V, is_causal=1, oracle="onnx"),
    attend(f32(2, 4, 3, 8), f32(2, 2, 5, 8), f32(2, 2, 5, 8), is_causal=1, oracle="onnx"),
    attend(f32(2, 4, 3, 8), f32(2, 1, 5, 8), f32(2, 1, 5, 8)),
    attend(f32(2, 3, 32), f32(2, 5, 16), f32(2, 5, 6), **HEADS),
    attend(f32(2, 3, 32), f32(2, 5, 16), f32(2, 5, 6), f32(2, 4, 3, 5), **HEADS),
    *(
        attend(f32(2, 4, 3, 8), f32(2, 2, 5, 8), f32(2, 2, 5, 8), f32(*shape), oracle="onnx")
        for shape in ((3, 5), (4, 3, 5), (1, 3, 5), (1, 4, 3, 5), (2, 1, 1, 5), (2, 1, 3, 5))
    ),
    attend(Q, K, V, None, f32(2, 3, 7, 8), f32(2, 3, 7, 5), is_causal=1, oracle="onnx"),
    attend(Q, K, V, f32(4, 13), f32(2, 3, 7, 8), f32(2, 3, 7, 5)),
    attend(Q, K, V, None, f32(2, 3, 0, 8), f32(2, 3, 0, 5), oracle="onnx"),
    attend(Q, K, V, None, None, None, of([4, 6], np.int64), outputs=1, oracle="onnx"),
    attend(Q, K, V, None, None, None, of([2, 6], np.int64), is_causal=1, outputs=1, oracle="onnx"),
    attend(Q, K, V, f32(4, 5), None, None, of([3, 5], np.int64), outputs=1, oracle="onnx"),
    attend(Q, K, V, left_window_size=1, right_window_size=2, oracle="onnx"),
    attend(Q, K, V, left_window_size=0, is_causal=1, oracle="onnx"),
    attend(Q, K, V, f32(2, 1, 4, 6), right_window_size=0, oracle="onnx"),
    attend(
        Q,
        K,
        V,
        None,
        None,
        None,
        of([5, 3], np.int64),
        left_window_size=2,
        outputs=1,
        oracle="onnx",
    ),
    attend(Q, K, V, of([[-inf] * 6, [0] * 6, [inf] + [0] * 5, [0] * 5 + [-inf]]), oracle="onnx"),
    attend(Q, K, V, np.zeros((4, 6), bool), qk_matmul_output_mode=3, oracle="onnx"),
    attend(f32(0, 3, 4, 8), f32(0, 3, 6, 8), f32(0, 3, 6, 8), outputs=1, oracle="onnx"),
    attend(Q, f32(2, 3, 0, 8), f32(2, 3, 0, 5), outputs=1, expect=(f32(2, 3, 4, 5) * 0,)),
    attend(f16(2, 3, 4, 8), f16(2, 3, 6, 8), f16(2, 3, 6, 8), oracle="onnx"),
    attend(bf16(1, 2, 4, 8), bf16(1, 2, 6, 8), bf16(1, 2, 6, 8), is_causal=1, oracle="onnx"),
    attend(f16(1, 2, 4, 8), f16(1, 2, 6, 8), f16(1, 2, 6, 8), softmax_precision=1, oracle="onnx"),
    attend(f64(1, 2, 4, 8), f64(1, 2, 6, 8), f64(1, 2, 6, 8), oracle="onnx"),
    fails("Attention", Q, f32(2, 3, 6, 7), V, match="heads of Q and K have different sizes"),
    fails("Attention", f32(2, 3, 4, 8), f32(2, 2, 6, 8), f32(2, 2, 6, 8), match="does not divide"),
    fails("Attention", f32(2, 3, 8), f32(2, 3, 8), f32(2, 3, 8), match="q_num_heads"),
    fails("Attention", Q, K, V, f32(4, 7), match="more columns than there are keys"),
    fails("Attention", Q, K, V, f32(5, 6), match="does not broadcast to the scores"),
    fails("Attention", Q, K, V, None, f32(2, 3, 7, 8), match="go together"),
    fails("Attention", Q, K, V, None, None, None, of([9, 1], np.int64), match="outside"),
    fails(
        "Attention", Q, K, V, qk_matmul_output_mode=4, match="qk_matmul_output_mode must .* got 4"
    ),
    fails("Attention", Q, K, V, softmax_precision=6, match="softmax_precision must .* got 6"),
    fails("Attention", Q, K, V, left_window_size=-2, match="left_window_size must .* got -2"),
]

# Kernels do not show their scores.
UNSEEN = [replace(row, outputs=3) for row in ATTENTION if row.outputs == 4 and row.fails is None]

COS, SIN = angles(9, 4)
ROTARY = [
    case("RotaryEmbedding", f32(2, 3, 5, 8), COS, SIN, i64(2, 5, low=0, high=9), opset=23),
    case(
        "RotaryEmbedding",
        f32(2, 3, 5, 8),
        COS,
        SIN,
        i64(2, 5, low=0, high=9),
        interleaved=1,
        opset=23,
    ),
    case("RotaryEmbedding", f32(2, 3, 5, 8), *angles(2, 5, 4), opset=23),
    case("RotaryEmbedding", f32(2, 5, 24), *angles(2, 5, 4), num_heads=3, opset=23),
    case(
        "RotaryEmbedding",
        f32(2, 5, 30),
        *angles(2, 5, 3),
        num_heads=3,
        rotary_embedding_dim=6,
        interleaved=1,
        oracle="onnx",
    ),
    case("RotaryEmbedding", f32(0, 5, 24), *angles(0, 5, 4), num_heads=3, oracle="onnx"),
    case(
        "RotaryEmbedding",
        f16(1, 2, 3, 8),
        *(a.astype(np.float16) for a in angles(1, 3, 4)),
        oracle="onnx",
    ),
    fails("RotaryEmbedding", f32(2, 5, 24), *angles(2, 5, 4), match="num_heads must be .*got None"),
    fails("RotaryEmbedding", f32(2, 3, 5, 8), *angles(2, 5, 3), match="number of angles"),
    fails("RotaryEmbedding", f32(1, 1, 1, 8), COS, SIN, of([[9]], np.int64), match="position 9"),
    fails("RotaryEmbedding", f32(2, 3, 5, 7), *angles(2, 5, 3), match="odd number"),
    fails("RotaryEmbedding", f32(5, 8), *angles(2, 5, 4), match="rank 3 or 4"),
]

STATE = f32(2, 2, 4, 3)
DECAY, BETA = -np.abs(f32(2, 5, 2)), np.abs(f32(2, 5, 2)) * np.float32(0.2)
LINEAR = [
    case(
        "LinearAttention",
        *packed(2),
        outputs=2,
        update_rule="linear",
        **{**HEADS, "q_num_heads": 2},
    ),
    case("LinearAttention", *packed(4), STATE, outputs=2, update_rule="linear", **HEADS),
    case("LinearAttention", *packed(4), STATE, DECAY, outputs=2, update_rule="gated", **HEADS),
    case(
        "LinearAttention",
        *packed(4),
        STATE,
        -np.abs(f32(2, 5, 8)),
        outputs=2,
        update_rule="gated",
        scale=0.5,
        **HEADS,
    ),
    case("LinearAttention", *packed(4), STATE, None, BETA, outputs=2, update_rule="delta", **HEADS),
    case("LinearAttention", *packed(4), None, DECAY, BETA, outputs=2, **HEADS),
    case("LinearAttention", *packed(4), STATE, DECAY, BETA[:, :, :1], outputs=2, **HEADS),
    case(
        "LinearAttention",
        *packed(4, np.float16),
        STATE,
        DECAY.astype(np.float16),
        BETA.astype(np.float16),
        outputs=2,
        **HEADS,
    ),
    case(
        "LinearAttention",
        *(x[:, :0] for x in packed(4)),
        STATE,
        outputs=2,
        update_rule="linear",
        **HEADS,
    ),
    fails("LinearAttention", *packed(4), STATE, DECAY, match="needs beta", **HEADS),
    fails("LinearAttention", *packed(4), update_rule="cubic", match="update_rule", **HEADS),
    fails(
        "LinearAttention",
        *packed(4),
        None,
        DECAY,
        BETA,
        match="kv_num_heads",
        q_num_heads=4,
        kv_num_heads=3,
    ),
    fails(
        "LinearAttention",
        *packed(4),
        None,
        f32(2, 5, 6),
        update_rule="gated",
        match="6 numbers per token",
        **HEADS,
    ),
]

FLEX = [
    case("FlexAttention", Q, K, V, domain=PREVIEW, oracle="onnx"),
    case("FlexAttention", Q, K, V, domain=PREVIEW, scale=0.2, oracle="onnx"),
    case(
        "FlexAttention",
        f32(2, 4, 3, 8),
        f32(2, 2, 5, 8),
        f32(2, 2, 5, 8),
        domain=PREVIEW,
        oracle="onnx",
    ),
    case(
        "FlexAttention",
        f16(1, 2, 4, 8),
        f16(1, 2, 6, 8),
        f16(1, 2, 6, 8),
        domain=PREVIEW,
        oracle="onnx",
    ),
    case(
        "FlexAttention",
        f64(1, 2, 4, 8),
        f64(1, 2, 6, 8),
        f64(1, 2, 6, 8),
        domain=PREVIEW,
        softmax_precision=1,
        oracle="onnx",
        ulps=2**31,
        why="sums in float32 inside, shown in float64",
    ),
    fails("FlexAttention", Q, K, f32(2, 3, 5, 5), domain=PREVIEW, match="V must have shape"),
    fails("FlexAttention", f32(3, 4, 8), K, V, domain=PREVIEW, match="Q must have rank 4"),
]

CASES = [*ATTENTION, *UNSEEN, *ROTARY, *LINEAR, *FLEX]
