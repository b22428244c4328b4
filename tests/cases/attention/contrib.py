"""Cases of the attention ops of com.microsoft."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Array, Case, bf16, case, f16, f32, fails, i64, ints, of

DOMAIN = "com.microsoft"
HEADS = {"num_heads": 4, "kv_num_heads": 2}
LOOSE: dict[str, Any] = {"ulps": 16}


def angles(*shape: int) -> tuple[Array, Array]:
    """The cosines and sines of some angles."""
    angle = f32(*shape)
    return np.cos(angle), np.sin(angle)


def i32(*numbers: Any) -> Array:
    return of(numbers, np.int32)


def mask(*shape: int) -> Array:
    return ints(np.int32, *shape, low=0, high=2)


def group(
    lens: list[int], rows: int, total: int, past: int | None = 0, *more: Any, **options: Any
) -> Case:
    """GroupQueryAttention of 4 heads that share 2, each of 16; `more` are the later inputs."""
    batch, dtype = len(lens), options.pop("dtype", np.float32)
    width = options.pop("width", 16)
    if options.pop("packed", False):
        qkv: tuple[Any, ...] = (f32(batch, rows, 8 * width).astype(dtype), None, None)
    else:
        sizes = (4 * width, 2 * width, 2 * width)
        qkv = tuple(
            (f32(batch, rows, n) * k).astype(dtype) for n, k in zip(sizes, (1, 1, 2), strict=True)
        )
    cache: tuple[Any, ...] = (None, None)
    if past is not None:
        old = f32(batch, 2, past, width).astype(dtype)
        cache = (old, (old * 2).astype(dtype))
    inputs = (*qkv, *cache, i32(*lens), i32(total), *more)
    refused = options.pop("match", None)
    if refused is not None:
        return fails(
            "GroupQueryAttention", *inputs, domain=DOMAIN, match=refused, **HEADS, **options
        )
    settings = {"outputs": 3, **LOOSE, **HEADS, **options}
    return case("GroupQueryAttention", *inputs, domain=DOMAIN, **settings)


COS_SIN: Any = angles(40, 8)
EMPTY_TOTAL: Any = (f32(1, 2, 64), f32(1, 2, 32), f32(1, 2, 32), None, None, i32(1), i32())
ROTARY_OFF: Any = (None, None, None)
ELSEWHERE: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has it on other devices only"}
NORMS: Any = (None, None, None, None, None, None, None, f32(16), f32(16) * 2)
GROUP = [
    group([4], 5, 5, None),
    group([4], 5, 5),
    group([4, 4], 5, 5),
    group([5, 3], 1, 6, 5),
    group([7], 3, 8, 5),
    group([5, 3], 1, 6, 9),
    group([4], 5, 5, 0, *COS_SIN, do_rotary=1),
    group([4], 5, 5, 0, *COS_SIN, do_rotary=1, rotary_interleaved=1),
    group([4], 5, 5, 0, *COS_SIN, do_rotary=1, packed=True, width=32),
    group([5, 3], 1, 6, 5, *COS_SIN, do_rotary=1, packed=True),
    group([7], 3, 8, 5, *COS_SIN, do_rotary=1, packed=True),
    group([7], 3, 8, 5, *COS_SIN, of([[3, 9, 11]], np.int64), do_rotary=1),
    group([2, 2], 3, 3, 0, *COS_SIN, of([[3, 9, 11], [7, 8, 9]], np.int64), do_rotary=1),
    group([5, 3], 1, 6, 5, *COS_SIN, of([[3], [9]], np.int64), do_rotary=1),
    group([8], 9, 9, local_window_size=3),
    group([9, 5], 1, 10, 9, local_window_size=3),
    group([8], 9, 9, softcap=0.7, scale=0.7),
    group([8], 9, 9, smooth_softmax=1),
    group([8], 9, 9, 0, *ROTARY_OFF, None, f32(4)),
    group([9, 5], 1, 10, 9, *ROTARY_OFF, None, f32(4)),
    group([8], 9, 9, 0, *ROTARY_OFF, f32(1, 4, 9, 9), softcap=0.7),
    group([9, 5], 1, 10, 9, *ROTARY_OFF, f32(2, 1, 1, 10), local_window_size=3),
    group([4, 2], 5, 5, causal=0),
    group([4], 5, 5, outputs=4, qk_output=1, softcap=0.5),
    group([5, 5], 1, 6, 9, outputs=4, qk_output=2),
    group([4], 5, 5, outputs=1),
    group([39], 40, 40, 0, *COS_SIN, do_rotary=1, packed=True, width=32),
    group([5], 1, 6, 5, *(a.astype(np.float16) for a in COS_SIN), do_rotary=1, dtype=np.float16),
    group([5], 1, 6, 5, dtype=bf16(1).dtype, oracle="none"),
    group([9], 1, 6, 5, match="seqlens_k 9 is outside"),
    group([1], 3, 8, 5, match="3 new rows|outside"),
    group([4], 5, 5, do_rotary=1, match="needs cos_cache"),
    fails("GroupQueryAttention", *EMPTY_TOTAL, domain=DOMAIN, match="is one number", **HEADS),
    group([4], 5, 5, 0, *angles(3, 8), do_rotary=1, match="position 3 is outside"),
    group([4], 5, 5, 0, *angles(9, 9), do_rotary=1, match="more angles"),
    group([4], 5, 5, sliding_window_cache=1, match="needs past_key"),
    group([4], 5, 5, 2, local_window_size=3, sliding_window_cache=1, match="cannot hold a window"),
    group([4], 5, 5, k_quant_type="PER_TENSOR", match="only one of them is NONE"),
    group([7], 3, 8, 5, *NORMS, **ELSEWHERE),
    group([7], 3, 8, 5, *COS_SIN, *NORMS[2:], do_rotary=1, packed=True, **ELSEWHERE),
    group([4], 5, 5, 0, *NORMS[:-1], match="go together"),
    group([4], 5, 5, local_window_size=0, match="local_window_size must .* got 0"),
    group([4], 5, 5, causal=0, local_window_size=2, match="needs causal attention"),
    group([4], 5, 5, qk_output=3, match="qk_output must .* got 3"),
    group([4, 4], 5, 5, 0, *ROTARY_OFF, None, f32(3), match="head_sink"),
]


def kept(bits: int, lens: list[int], rows: int, total: int, past: int, **options: Any) -> Case:
    """GroupQueryAttention over a quantized cache."""
    batch, grain = len(lens), options.pop("grain", "PER_TENSOR")
    low, high, dtype = (-100, 100, np.int8) if bits == 8 else (0, 255, np.uint8)
    old = [ints(dtype, batch, 2, past, 16 * bits // 8, low=low, high=high) for _ in range(2)]
    count = (1, 2, 1, 16) if grain == "PER_CHANNEL" else (1,)
    scales = [np.abs(f32(*count)) * np.float32(k) + np.float32(k) for k in (0.1 / bits, 0.2 / bits)]
    qkv = (f32(batch, rows, 64), f32(batch, rows, 32), f32(batch, rows, 32) * 2)
    inputs = (*qkv, *old, i32(*lens), i32(total), *options.pop("cos_sin", (None, None)), None)
    settings = {"k_quant_type": grain, "v_quant_type": grain, "kv_cache_bit_width": bits}
    refused = options.pop("match", None)
    given = (*inputs, None, None, *scales)
    if refused is not None:
        given = options.pop("given", given)
        options = {**HEADS, **settings, **options}
        return fails("GroupQueryAttention", *given, domain=DOMAIN, match=refused, **options)
    settings = {"outputs": 3, **LOOSE, **HEADS, **settings, **options}
    return case("GroupQueryAttention", *given, domain=DOMAIN, **settings)


def slid(total: int, rows: int, capacity: int, window: int, **options: Any) -> Case:
    """GroupQueryAttention over a cache that holds only its window."""
    step = capacity - window + 1
    before = total - rows
    over = max(before - capacity, 0)
    there = before - step * -(-over // step)
    cache = f32(1, 2, capacity, 16)
    cache[:, :, there:] = 0
    qkv = (f32(1, rows, 64), f32(1, rows, 32), f32(1, rows, 32) * 2)
    settings = {"outputs": 3, **LOOSE, **HEADS, "local_window_size": window, **options}
    inputs = (*qkv, cache, cache * 2, i32(total - 1), i32(total))
    return case("GroupQueryAttention", *inputs, domain=DOMAIN, sliding_window_cache=1, **settings)


KEPT = [
    kept(8, [7], 3, 8, 5),
    kept(8, [7], 1, 8, 7, grain="PER_CHANNEL"),
    kept(8, [7, 5], 1, 8, 9, grain="PER_CHANNEL"),
    kept(8, [7], 3, 8, 5, cos_sin=COS_SIN, do_rotary=1),
    kept(4, [7], 3, 8, 5),
    kept(4, [7], 1, 8, 7, grain="PER_CHANNEL"),
    kept(8, [7], 3, 8, 5, kv_cache_bit_width=2, match="must be 4 or 8"),
    kept(8, [7], 3, 8, 5, kv_cache_bit_width=4, match="4 bits has the type u8"),
    kept(8, [7], 3, 8, 5, k_quant_type="PER_ROW", match="PER_ROW"),
    slid(6, 1, 6, 4),
    slid(9, 1, 6, 4),
    slid(9, 3, 6, 4),
    slid(4, 4, 4, 4),
    slid(10, 10, 4, 4),
]


def multi(*inputs: Any, **options: Any) -> Case:
    """MultiHeadAttention of 4 heads."""
    options = {"num_heads": 4, "outputs": 3, **LOOSE, **options}
    return case("MultiHeadAttention", *inputs, domain=DOMAIN, **options)


def no_multi(*inputs: Any, match: str, **options: Any) -> Case:
    options = {"num_heads": 4, **options}
    return fails("MultiHeadAttention", *inputs, domain=DOMAIN, match=match, **options)


Q, K, V = f32(2, 3, 32), f32(2, 5, 32), f32(2, 5, 24)
SELF = (Q, f32(2, 3, 32) * 2, f32(2, 3, 32) * 3)
PAST = (f32(2, 4, 6, 8), f32(2, 4, 6, 8) * 2)
CACHED = (f32(2, 4, 5, 8), f32(2, 4, 5, 8) * 2)
NOT_ON_CPU: dict[str, Any] = {"oracle": "none", "why": "onnxruntime has it on other devices only"}


def reserved(past: int) -> tuple[Array, Array, Array]:
    """A cache with a capacity of 8 keys, and how many there are."""
    cache = f32(2, 4, 8, 8)
    cache[:, :, past:] = 0
    return cache, cache * 2, i32(past)


ONE = tuple(x[:, :1] for x in SELF)
BEAMS = mask(1, 2, 8)
MULTI = [
    multi(Q, K, V, outputs=1),
    multi(Q, K, V, scale=0.4),
    multi(Q, K, V, f32(88)),
    multi(Q, K, V, None, i32(3, 5)),
    multi(Q, K, V, None, mask(2, 5), mask_filter_value=-3.0),
    multi(Q, K, V, None, mask(2, 5) * 0),
    multi(Q, K, V, None, mask(2, 3, 5)),
    multi(Q, K, V, None, None, f32(1, 4, 3, 5)),
    multi(Q, K, V, outputs=4, oracle="none", why="onnxruntime infers no type of the scores"),
    multi(Q, K, V, f32(88), i32(3, 5), f32(2, 1, 3, 5)),
    multi(*SELF, unidirectional=1),
    multi(*SELF, None, mask(2, 3), unidirectional=1),
    multi(*SELF, None, None, None, *PAST),
    multi(*SELF, f32(96), mask(2, 9), None, *PAST, unidirectional=1),
    multi(Q, *CACHED),
    multi(Q, *CACHED, f32(96)),
    multi(Q, *CACHED, None, None, None, *PAST),
    multi(f32(2, 3, 4, 3, 8), outputs=1, **NOT_ON_CPU),
    multi(f32(2, 3, 4, 3, 8), None, None, f32(96), None, None, *PAST, **NOT_ON_CPU),
    multi(Q, f32(2, 5, 4, 2, 8), **NOT_ON_CPU),
    multi(f16(2, 3, 32), f16(2, 5, 32), f16(2, 5, 24), f16(88), **NOT_ON_CPU),
    multi(*SELF, None, None, None, *reserved(3)),
    multi(*SELF, None, None, None, *reserved(0), unidirectional=1),
    multi(*SELF, f32(96), mask(2, 5), None, *reserved(2)),
    multi(*SELF, None, None, f32(1, 4, 3, 5), *reserved(2)),
    multi(*ONE, None, None, None, *reserved(5), BEAMS),
    no_multi(*SELF, None, None, None, *reserved(6), match="3 new rows|outside"),
    no_multi(*ONE, None, None, None, *reserved(5), BEAMS[:, :1], match="does not fit a batch"),
    no_multi(Q, match="key is missing"),
    no_multi(Q, K, match="value is missing"),
    no_multi(Q, K, V, f32(87), match="bias"),
    no_multi(Q, K, V, None, mask(2, 4), match="key_padding_mask"),
    no_multi(Q, K, V, None, None, f32(1, 4, 3, 4), match="attention_bias"),
    no_multi(Q, K, V, None, None, None, PAST[0], match="go together"),
    no_multi(f32(2, 3, 33), K, V, match="does not split"),
]


def projected(*inputs: Any, **options: Any) -> Case:
    """Attention of 4 heads over an input of 10 features."""
    options = {"num_heads": 4, "outputs": 2, "ulps": 32, **options}
    weights = f32(10, options.pop("columns", 96))
    return case(
        "Attention",
        f32(2, 3, 10),
        weights,
        f32(weights.shape[1]),
        *inputs,
        domain=DOMAIN,
        **options,
    )


def no_projected(*inputs: Any, match: str, **options: Any) -> Case:
    row = projected(*inputs, **options)
    return fails("Attention", *row.inputs, domain=DOMAIN, match=match, **row.attrs)


STATE = f32(2, 2, 4, 4, 8)
PROJECTED = [
    projected(outputs=1),
    projected(unidirectional=1),
    projected(i32(2, 3)),
    projected(i32(2, 3, 1, 0)),
    projected(mask(2, 3), unidirectional=1),
    projected(mask(2, 3, 3), mask_filter_value=-2.0, unidirectional=1),
    projected(None, STATE, unidirectional=1),
    projected(mask(2, 7), STATE, unidirectional=1),
    projected(None, None, f32(1, 4, 3, 3), scale=0.2),
    projected(columns=88, qkv_hidden_sizes=[32, 32, 24], outputs=1),
    no_projected(mask(2, 4), match="mask_index"),
    no_projected(mask(2, 1, 2, 2), match="fewer columns"),
    no_projected(mask(2, 1, 1, 3, 3), match="mask_index must have rank 1 to 4, got 5"),
    no_projected(i32(1, 2, 3), match="3 numbers for a batch of 2"),
    no_projected(columns=95, match="weights"),
    no_projected(columns=88, qkv_hidden_sizes=[32, 24, 32], match="qkv_hidden_sizes"),
    projected(mask(2, 1, 5, 5), **NOT_ON_CPU),
    projected(i32(2, 3, 0, 3, 6, 0, 3, 6), outputs=1),
    projected(None, STATE, None, i32(1), past_present_share_buffer=1, **NOT_ON_CPU),
    projected(do_rotary=1, **NOT_ON_CPU),
    projected(None, STATE, do_rotary=1, rotary_embedding_dim=4, **NOT_ON_CPU),
    no_projected(None, STATE, past_present_share_buffer=1, match="needs past"),
    no_projected(
        *(None, STATE, None, i32(2)), past_present_share_buffer=1, match="3 new rows after 2"
    ),
]


def rotary(*inputs: Any, **options: Any) -> Case:
    return case("RotaryEmbedding", *inputs, domain=DOMAIN, **options)


def no_rotary(*inputs: Any, match: str, **options: Any) -> Case:
    return fails("RotaryEmbedding", *inputs, domain=DOMAIN, match=match, **options)


COS, SIN = angles(9, 4)
ROTARY = [
    rotary(f32(2, 5, 24), i64(2, 5, low=0, high=9), COS, SIN),
    rotary(f32(2, 5, 24), i64(2, 5, low=0, high=9), COS, SIN, interleaved=1),
    rotary(f32(2, 5, 24), of([3], np.int64), COS, SIN),
    rotary(f32(2, 5, 0), of([3], np.int64), COS, SIN, oracle="none", why="no heads at all"),
    rotary(f32(2, 3, 5, 8), of([3], np.int64), COS, SIN),
    rotary(f32(2, 3, 5, 8), i64(2, 5, low=0, high=9), COS, SIN, interleaved=1),
    rotary(f32(2, 5, 30), i64(2, 5, low=0, high=9), COS, SIN, num_heads=3, rotary_embedding_dim=8),
    rotary(f32(1, 17, 192), i64(1, 17, low=0, high=9), *angles(20, 48)),
    rotary(f16(1, 5, 24), i64(1, 5, low=0, high=9), *(a.astype(np.float16) for a in (COS, SIN))),
    no_rotary(f32(2, 5, 25), of([3], np.int64), COS, SIN, match="another size of heads"),
    no_rotary(f32(2, 5, 24), of([8], np.int64), COS, SIN, match="position 9 is outside"),
    no_rotary(f32(2, 5, 24), i64(2, 4, low=0, high=9), COS, SIN, match="position_ids"),
    no_rotary(f32(2, 5, 24), i64(1), COS, SIN, rotary_embedding_dim=8, match="needs num_heads"),
    no_rotary(f32(5, 24), i64(1), COS, SIN, match="rank 3 or 4"),
]


def three(x: Any, *caches: Any, **options: Any) -> Case:
    """MRotaryEmbedding; tokens have a time, a row and a column."""
    batch, rows = x.shape[0], x.shape[-2]
    ids = i64(3, batch, rows, low=0, high=9)
    refused = options.pop("match", None)
    given = (x, options.pop("ids", ids), *(caches or (COS, SIN)))
    options = {"mrope_section": [2, 1, 1], **options}
    if refused is not None:
        return fails("MRotaryEmbedding", *given, domain=DOMAIN, match=refused, **options)
    return case("MRotaryEmbedding", *given, domain=DOMAIN, **options)


THREE = [
    three(f32(2, 5, 24), num_heads=3),
    three(f32(2, 5, 24), num_heads=3, interleaved=1),
    three(f32(2, 3, 5, 8), mrope_layout=1),
    three(f32(2, 3, 5, 8), mrope_section=[4, 0, 0]),
    three(f32(2, 5, 30), num_heads=3, rotary_embedding_dim=8, mrope_layout=1),
    three(f32(2, 5, 96), *angles(9, 16), num_heads=3, mrope_section=[6, 5, 5], mrope_layout=1),
    three(f32(2, 5, 24), ids=i64(3, 2, 5, low=-9, high=-1), match="outside"),
    three(f32(2, 5, 24), mrope_section=[2, 1, 2], match="add up"),
    three(f32(2, 5, 24), mrope_section=[2, 2], match="three sizes"),
    three(f32(2, 5, 24), mrope_layout=2, match="mrope_layout must be .*got 2"),
]


def decoder(*inputs: Any, **options: Any) -> Case:
    """DecoderMaskedMultiHeadAttention of 4 heads."""
    options = {"num_heads": 4, "outputs": 3, **LOOSE, **options}
    return case("DecoderMaskedMultiHeadAttention", *inputs, domain=DOMAIN, **options)


def no_decoder(*inputs: Any, match: str, **options: Any) -> Case:
    row = decoder(*inputs, **options)
    return fails(row.op, *inputs, domain=DOMAIN, match=match, **row.attrs)


SHARED: dict[str, Any] = {"past_present_share_buffer": 1}
NO_MASK: Any = (None, None)
DECODER = [
    decoder(*ONE, *NO_MASK, *reserved(5), **SHARED),
    decoder(*ONE, *NO_MASK, *reserved(0), **SHARED),
    decoder(*ONE, *NO_MASK, *reserved(7), scale=0.3, **SHARED),
    decoder(*ONE, *NO_MASK, *reserved(3), None, None, f32(96), **SHARED),
    decoder(*ONE, mask(2, 4), None, *reserved(3), mask_filter_value=-3.0, **SHARED),
    decoder(*ONE, None, f32(1, 4, 1, 4), *reserved(3), **SHARED),
    decoder(*ONE, *NO_MASK, *reserved(5), i32(2), BEAMS, **SHARED),
    decoder(*ONE, *NO_MASK, *PAST, **NOT_ON_CPU),
    decoder(np.concatenate(ONE, axis=2), None, None, *NO_MASK, *PAST, **NOT_ON_CPU),
    decoder(ONE[0], *CACHED, outputs=1),
    decoder(ONE[0], *CACHED, mask(2, 5), outputs=1),
    decoder(ONE[0], *CACHED, outputs=4, output_qk=1, **NOT_ON_CPU),
    no_decoder(*ONE, *NO_MASK, *reserved(8), match="1 new rows|outside", **SHARED),
    no_decoder(*ONE, *NO_MASK, *reserved(3)[:2], match="go together", **SHARED),
    no_decoder(*SELF, *NO_MASK, *PAST, match="one row"),
]


def masked_self(*inputs: Any, **options: Any) -> Case:
    given = (f32(2, 1, 10), f32(10, 96), f32(96))
    options = {"num_heads": 4, "outputs": 2, "ulps": 32, **NOT_ON_CPU, **options}
    return case("DecoderMaskedSelfAttention", *given, *inputs, domain=DOMAIN, **options)


MASKED_SELF = [
    masked_self(None, STATE, None, i32(4)),
    masked_self(mask(2, 5), STATE, None, i32(4), scale=0.3),
    masked_self(None, STATE, None, i32(2), **SHARED),
    masked_self(None, STATE, None, i32(2), do_rotary=1, **SHARED),
    fails(
        "DecoderMaskedSelfAttention",
        *(f32(2, 3, 10), f32(10, 96), f32(96), None, STATE, None, i32(4)),
        domain=DOMAIN,
        num_heads=4,
        match="one row",
    ),
]


def seq_first(*inputs: Any, flags: str, **options: Any) -> Case:
    """DecoderAttention of 4 heads; flags are static_kv, use_past, has_layer_state and has mask."""
    given = (f32(3, 2, 8), f32(5, 2, 8), f32(8, 8), f32(8, 16), f32(24))
    switches = [of([c == "1"], bool) for c in flags]
    filled = (*inputs, *[None] * (3 - len(inputs)))
    options = {"num_heads": 4, "outputs": 3, "ulps": 32, **NOT_ON_CPU, **options}
    return case("DecoderAttention", *given, *filled, *switches, domain=DOMAIN, **options)


OLD = (f32(2, 4, 6, 2), f32(2, 4, 6, 2) * 2)
SEQ_FIRST = [
    seq_first(flags="0000"),
    seq_first(flags="1000", outputs=1),
    seq_first(np.array([[False] * 4 + [True]] * 2), flags="1001"),
    seq_first(None, *OLD, flags="0110"),
    seq_first(None, *OLD, flags="1110", mask_filter_value=-3.0),
]

CASES = [*THREE, *KEPT, *DECODER, *MASKED_SELF, *SEQ_FIRST, *GROUP, *MULTI, *PROJECTED, *ROTARY]
