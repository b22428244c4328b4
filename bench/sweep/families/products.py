"""Products of matrices, attention and recurrent layers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from bench.sweep.case import WIDELY_RUN, Array, Case
from bench.sweep.draw import MICROSOFT, Draw, Family, rows


def product_sizes(d: Draw) -> tuple[int, int, int]:
    return tuple(
        d.pick(
            {
                "tiny": [(1, 4, 4), (3, 7, 5), (1, 64, 10), (8, 8, 8)],
                "typical": [
                    (128, 768, 768),
                    (128, 768, 3072),
                    (1, 1024, 1000),
                    (64, 2048, 512),
                    (49, 96, 288),
                    (1, 2048, 5632),
                    (197, 192, 576),
                    (1000, 13, 100),
                    (256, 256, 256),
                    (512, 64, 512),
                ],
                "large": [
                    (1024, 1024, 4096),
                    (4096, 320, 320),
                    (1, 4096, 32000),
                    (2048, 2048, 512),
                ],
            }[d.size]
        )
    )


def _matmul(d: Draw, op: str) -> Case:
    m, k, n = product_sizes(d)
    dtype = d.pick(("float32", "float32", "float32", "float16", "float64"))
    if d.chance(0.35) and m * k * n < 1 << 27:  # a batched matmul, as in attention
        batch = (d.pick((1, 2)), d.pick((4, 12)))
        return Case(op, [d.array((*batch, m, k), dtype), d.array((*batch, k, n), dtype)])
    lead = (1,) if d.chance(0.5) else ()
    constants = frozenset({1}) if d.chance(0.75) else frozenset()
    return Case(op, [d.array((*lead, m, k), dtype), d.array((k, n), dtype)], {}, constants)


def _gemm(d: Draw, op: str) -> Case:
    m, k, n = product_sizes(d)
    dtype = d.pick(("float32", "float32", "float32", "float16", "float64"))
    by, across = d.pick((0, 0, 1)), d.pick((0, 1))
    operands = [
        d.array((k, m) if by else (m, k), dtype),
        d.array((n, k) if across else (k, n), dtype),
    ]
    if d.chance(0.7):
        operands.append(d.array(d.pick([(n,), (1, n), (m, 1), (m, n)]), dtype))
    attrs = {
        "transA": by,
        "transB": across,
        "alpha": d.pick((1.0, 1.0, 0.5)),
        "beta": d.pick((1.0, 1.0, 2.0)),
    }
    return Case(
        op, operands, attrs, frozenset(range(1, len(operands))) if d.chance(0.75) else frozenset()
    )


def _einsum(d: Draw, op: str) -> Case:
    batch, heads, queries, keys, size = _heads(d)
    if d.chance(0.5):
        operands = [d.array((batch, queries, heads, size)), d.array((batch, keys, heads, size))]
        return Case(op, operands, {"equation": "bqhd,bkhd->bhqk"})
    return Case(
        op, [d.array((batch, queries, size)), d.array((size, size))], {"equation": "bqd,de->bqe"}
    )


def _heads(d: Draw) -> tuple[int, int, int, int, int]:
    """Batch, heads, queries, keys and the size of a head."""
    return tuple(
        d.pick(
            {
                "tiny": [(1, 2, 1, 8, 16), (1, 4, 5, 5, 8)],
                "typical": [
                    (1, 12, 128, 128, 64),
                    (8, 6, 128, 128, 64),
                    (64, 3, 49, 49, 32),
                    (1, 3, 197, 197, 64),
                    (1, 16, 1, 512, 64),
                    (1, 8, 77, 77, 64),
                    (1, 6, 1500, 1500, 64),
                ],
                "large": [(4, 16, 512, 512, 64), (1, 8, 2048, 2048, 128)],
            }[d.size]
        )
    )


def _attention(d: Draw, op: str) -> Case:
    batch, heads, queries, keys, size = _heads(d)
    dtype = d.pick(("float32", "float32", "float16"))
    shapes = [(batch, heads, n, size) for n in (queries, keys, keys)]
    return Case(
        op,
        [d.array(s, dtype) for s in shapes],
        {"is_causal": int(queries == keys and d.chance(0.4))},
    )


def _multi_head(d: Draw, op: str) -> Case:
    batch, heads, queries, keys, size = _heads(d)
    shapes = [(batch, n, heads * size) for n in (queries, keys, keys)]
    return Case(op, [d.array(s) for s in shapes], {"num_heads": heads}, domain=MICROSOFT)


def _rotary(d: Draw, op: str) -> Case:
    batch, heads, queries, _, size = _heads(d)
    tables = [d.array((4096, size // 2)) for _ in range(2)]
    positions = np.tile(np.arange(queries, dtype=np.int64), (batch, 1))
    x = d.array((batch, heads, queries, size))
    return Case(
        op, [x, positions, *tables], {"interleaved": d.pick((0, 1))}, frozenset({2, 3}), MICROSOFT
    )


def _recurrent(d: Draw, op: str) -> Case:
    steps, batch, width, hidden = d.pick(
        {
            "tiny": [(3, 1, 8, 8), (1, 1, 64, 64)],
            "typical": [
                (32, 1, 256, 256),
                (64, 16, 128, 128),
                (16, 4, 300, 512),
                (1, 1, 640, 640),
                (8, 1, 80, 64),
            ],
            "large": [(256, 8, 512, 512), (64, 64, 256, 256)],
        }[d.size]
    )
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    directions, direction = d.pick(((1, "forward"), (2, "bidirectional"), (1, "reverse")))
    scale = np.float32(0.1)
    operands = [
        d.array((steps, batch, width)),
        d.array((directions, gates * hidden, width)) * scale,
        d.array((directions, gates * hidden, hidden)) * scale,
        d.array((directions, 2 * gates * hidden)) * scale,
    ]
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attrs["linear_before_reset"] = d.pick((0, 1))
    return Case(op, operands, attrs, frozenset({1, 2, 3}), n_outputs=2)


def _n_bit_product(d: Draw, op: str) -> Case:
    m, k, n = d.pick(
        {
            "tiny": [(1, 64, 32), (3, 128, 16)],
            "typical": [
                (1, 2048, 2048),
                (1, 576, 1536),
                (128, 1024, 1024),
                (1, 4096, 4096),
                (16, 2048, 2048),
            ],
            "large": [(512, 2048, 2048), (1, 4096, 14336)],
        }[d.size]
    )
    bits, block = d.pick((4, 4, 4, 8)), d.pick((32, 32, 128)) if k % 128 == 0 else 32
    blocks = k // block
    codes = d.array((n, blocks, block * bits // 8), "uint8", 0, 255)
    operands: list[Array | None] = [
        d.array((m, k)),
        codes,
        d.array((n * blocks,), "float32", 0.01, 0.02),
    ]
    if d.chance(0.4):
        operands.append(d.array((n * (-(-blocks * bits // 8)),), "uint8", 0, 255))
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": d.pick((0, 0, 4))}
    return Case(op, operands, attrs, frozenset(range(1, len(operands))), MICROSOFT)


def _group_query(d: Draw, op: str) -> Case:
    batch, heads, kv_heads, tokens, past, size = d.pick(
        [
            (1, 9, 3, 1, 128, 64),
            (1, 32, 8, 1, 512, 128),
            (1, 9, 3, 64, 0, 64),
            (2, 8, 2, 16, 100, 64),
        ]
    )
    cache = (batch, kv_heads, past, size)
    operands = [
        d.array((batch, tokens, heads * size)),
        *(d.array((batch, tokens, kv_heads * size)) for _ in range(2)),
        d.array(cache),
        d.array(cache),
        np.full(batch, past + tokens - 1, np.int32),
        np.array(past + tokens, np.int32),
    ]
    attrs = {"num_heads": heads, "kv_num_heads": kv_heads}
    return Case(op, operands, attrs, domain=MICROSOFT, n_outputs=3)


def _embed(d: Draw, op: str) -> Case:
    batch, tokens, width = d.pick([(1, 128, 768), (8, 64, 384), (1, 7, 64)])
    ids = [d.array((batch, tokens), "int32", 0, n) for n in (1000, 2)]
    tables = [d.array((n, width)) for n in (1000, 512, 2)]
    operands = [*ids, *tables, d.array((width,)), d.array((width,))]
    return Case(op, operands, {}, frozenset(range(2, 7)), MICROSOFT, n_outputs=2)


def _projected(d: Draw, op: str) -> Case:
    """com.microsoft's Attention, with its projection."""
    batch, tokens, heads, size = d.pick(
        [(1, 128, 12, 64), (8, 64, 6, 64), (1, 7, 2, 16), (1, 197, 3, 64)]
    )
    width = heads * size
    weights = d.array((width, 3 * width)) * np.float32(0.1)
    operands = [d.array((batch, tokens, width)), weights, d.array((3 * width,))]
    return Case(op, operands, {"num_heads": heads}, frozenset({1, 2}), MICROSOFT)


def _fused_product(d: Draw, op: str) -> Case:
    made = _matmul(d, "MatMul")
    return Case(op, made.operands, {"alpha": 0.125}, made.constants, MICROSOFT)


def _fused_gemm(d: Draw, op: str) -> Case:
    made = _gemm(d, "Gemm")
    operands = [None if x is None else x.astype(np.float32) for x in made.operands]
    attrs = {**made.attrs, "activation": d.pick(("Relu", "Tanh", "Sigmoid"))}
    return Case(op, operands, attrs, made.constants, MICROSOFT)


def _distances(d: Draw, op: str) -> Case:
    a, b, width = d.pick([(5, 7, 3), (100, 1000, 30), (1000, 1000, 64)])
    dtype = d.pick(("float32", "float64"))
    attrs = {"metric": d.pick(("euclidean", "sqeuclidean"))}
    return Case(op, [d.array((a, width), dtype), d.array((b, width), dtype)], attrs,
                domain=MICROSOFT)  # fmt: skip


def _square(d: Draw, op: str) -> Case:
    n = {"tiny": 3, "typical": 16, "large": 64}[d.size]
    domain = MICROSOFT if op == "Inverse" else ""
    x = d.array((d.pick((1, 8, 64)), n, n), d.pick(("float32", "float64")))
    return Case(op, [x], domain=domain, opset=WIDELY_RUN)


def _fourier(d: Draw, op: str) -> Case:
    batch, n = {
        "tiny": (1, 16),
        "typical": d.pick(((1, 512), (8, 400), (100, 400))),
        "large": (16, 16384),
    }[d.size]
    return Case(op, [d.array((batch, n, 1))], {"onesided": d.pick((0, 1))})


def _short_time_fourier(d: Draw, op: str) -> Case:
    n, step, length = d.pick([(16000, 160, 400), (16000, 256, 512), (4096, 128, 512)])
    vectors = [
        np.array(step, np.int64),
        d.array((length,), "float32", 0, 1),
        np.array(length, np.int64),
    ]
    return Case(op, [d.array((1, n, 1)), *vectors], {"onesided": 1}, frozenset({1, 2, 3}))


FAMILIES: Final[dict[str, Family]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "FusedMatMul": _fused_product,
    "FusedGemm": _fused_gemm,
    "CDist": _distances,
    **rows("Det Inverse", _square),
    **rows("LSTM GRU RNN", _recurrent),
    "Attention": lambda d, op: _projected(d, op) if d.chance(0.3) else _attention(d, op),
    "MultiHeadAttention": _multi_head,
    "RotaryEmbedding": _rotary,
    "GroupQueryAttention": _group_query,
    "EmbedLayerNormalization": _embed,
    "MatMulNBits": _n_bit_product,
    "DFT": _fourier,
    "STFT": _short_time_fourier,
}
