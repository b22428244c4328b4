"""GroupQueryAttention: attention of decoders, with rotary embedding and KV cache in one node.

Sequence lengths stay on the device, because a read would synchronize. Sizes replace them only for a
batch of one whose cache grows with it; a cache of full length is masked by the lengths alone, so
that one captured CUDA graph is valid for every decode step.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BF16, F16, F32, I32, I64
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import filled, one_int
from sardonyx.ops.attention.fused import ZERO_FULLY_MASKED
from sardonyx.ops.attention.group_query import SCORES, WEIGHTS, GroupQueryInputs
from sardonyx.providers.torch.attention.core import (
    INF,
    attended,
    grouped_matmul,
    pack,
    scores_of,
    unpack,
    weights_of,
)
from sardonyx.providers.torch.attention.rotary import gather_angles, rotate
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable


@frozen
class CacheSizes:
    """The sizes of a run that are known on the host, without reading the lengths."""

    batch: int
    rows: int  # new tokens
    total: int  # keys after the run
    past: int  # rows of the past cache

    @property
    def is_first(self) -> bool:
        """Whether the run is a prompt without a past."""
        # One row with a cache is at its length's position: a decode step's sizes never change.
        return self.rows == self.total and (self.rows > 1 or not self.past)

    @property
    def determine_lengths(self) -> bool:
        """Whether the lengths follow from these sizes."""
        return self.batch == 1 and (self.is_first or self.past + self.rows == self.total)


@frozen
class CachePosition:
    """The position of the new rows in the KV cache."""

    rows: int
    total: int
    past: int  # rows of the past cache
    firsts: Tensor | int  # position of the first new row, per batch entry
    last: Tensor | None  # position of the last key, per batch entry; None: total - 1

    @property
    def length(self) -> int:
        """Rows of the present cache."""
        return max(self.past, self.total)

    def positions(self) -> Tensor:
        """Return the position of each new row, [batch, rows]."""
        assert isinstance(self.firsts, Tensor)
        first = self.firsts[:, None]
        return first + torch.arange(self.rows, device=first.device) if self.rows > 1 else first


def group_query(
    *inputs: Any,
    shares: bool = False,
    gives_fixed_point: bool = False,
    next_waits: bool = False,
    **attrs: Any,
) -> tuple[Any, ...]:
    """Return the output, the caches, and the scores if qk_output asks for them.

    With `shares` the past is a buffer of full length that is updated in place. With
    `gives_fixed_point` the output may be FixedPointRows, for an n-bit matmul.
    """
    x = GroupQueryInputs(*filled(inputs, 16))
    sizes = _sizes(x)
    if shares and _is_decode_step(x, sizes, attrs):
        return _flash_decode(x, attrs, gives_fixed_point, next_waits)
    position = _cache_position(x, sizes)
    q, k, v = _rotated_qkv(x, position, attrs)
    caches = [
        _updated_cache(old, new, position, shares)
        for old, new in ((x.past_key, k), (x.past_value, v))
    ]
    # A prompt attends to its own rows; all else to the cache.
    if not isinstance(position.firsts, int) or position.firsts:
        k, v = caches
    seen = _visible_keys(position, q, k, attrs)
    has_extra_score = x.sink is not None or attrs["smooth_softmax"] == 1
    if attrs["softcap"] > 0 or has_extra_score or attrs["qk_output"]:
        return _unfused((q, k, v), x, seen, position, attrs, caches)
    is_causal = seen is None and bool(attrs["causal"]) and position.rows > 1
    mask = _mask(x.bias, seen, k, position, is_causal)
    if mask is not None:
        is_causal = False
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    y = attended(q, k, v, mask, scale=scale, is_causal=is_causal, nan_rows=ZERO_FULLY_MASKED)
    return pack(y), *caches


_MAX_DECODE_TOKENS: Final = 8  # new tokens; with more, prefill by torch's kernels is faster


def _is_decode_step(x: GroupQueryInputs, sizes: CacheSizes, attrs: dict[str, Any]) -> bool:
    """Return whether the flash decoding kernel applies: a few tokens, a full-length cache."""
    extras = (x.bias, x.sink, x.q_norm)
    is_plain = attrs["causal"] and attrs["smooth_softmax"] != 1 and not attrs["qk_output"]
    is_static = not sizes.determine_lengths and not sizes.is_first and sizes.total <= sizes.past
    return (
        sizes.rows <= _MAX_DECODE_TOKENS
        and all(extra is None for extra in extras)
        and bool(is_plain)
        and is_static
        and usable(x.query.device)
    )


def _flash_decode(
    x: GroupQueryInputs, attrs: dict[str, Any], gives_fixed_point: bool, next_waits: bool
) -> tuple[Any, ...]:
    """One launch: rotary embedding, cache update in place and attention."""
    from sardonyx.providers.torch.kernels import attention_decode

    size = x.past_key.shape[3]
    scale = attrs["scale"] or 1 / math.sqrt(size or 1)
    window = attrs["local_window_size"]
    heads = attention_decode.HeadParameters(
        attrs["num_heads"], attrs["kv_num_heads"], scale, window, attrs["softcap"]
    )
    qkv = (x.query, x.key, x.value)
    if x.key is None:
        qkv = attention_decode.split_packed(x.query, heads)
    rotary = None
    if attrs["do_rotary"]:
        is_interleaved = bool(attrs["rotary_interleaved"])
        rotary = attention_decode.Rotary(x.cos, x.sin, is_interleaved, x.positions)
    caches = (x.past_key, x.past_value)
    workspace = _workspace(x.past_key, heads.n_heads, x.query.shape[1])
    seqlens = x.seqlens.reshape(-1).int()
    attend = attention_decode.attend_fixed_point if gives_fixed_point else attention_decode.attend
    return attend(qkv, caches, seqlens, heads, rotary, workspace, next_waits), *caches


# By stream, which runs one launch at a time.
_WORKSPACES: Final[dict[tuple[Any, ...], Any]] = {}
# Those that captured graphs refer to: they live as long as the process.
_CAPTURED: Final[dict[tuple[Any, ...], Any]] = {}
_MAX_WORKSPACES: Final = 64


def _workspace(cache: Tensor, heads: int, rows: int) -> Any:
    """Return the flash decoding workspace of the current stream, cached."""
    from sardonyx.providers.torch.kernels import attention_decode

    stream = torch.cuda.current_stream().cuda_stream if cache.is_cuda else 0
    split = attention_decode.split_kv(cache, heads, rows)
    key = (cache.device, stream, cache.shape[0], split)
    workspace = _WORKSPACES.get(key)
    if workspace is None:
        if len(_WORKSPACES) >= _MAX_WORKSPACES:
            _WORKSPACES.clear()
        workspace = _CAPTURED.get(key) or attention_decode.new_workspace(cache, heads, rows)
        _WORKSPACES[key] = workspace
    if _is_capturing(cache):
        _CAPTURED[key] = workspace
    return workspace


def _is_capturing(x: Tensor) -> bool:
    """Return whether launches on a tensor's device are being captured in a CUDA graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _sizes(x: GroupQueryInputs) -> CacheSizes:
    total, rows = one_int(x.total, "total_sequence_length"), x.query.shape[1]
    past = 0 if x.past_key is None else x.past_key.shape[2]
    if total < rows or (past == 0 and total > rows):
        raise InvalidArgument(
            f"total_sequence_length is {total}: there are {past} keys before {rows} new rows"
        )
    return CacheSizes(x.query.shape[0], rows, total, past)


def _cache_position(x: GroupQueryInputs, sizes: CacheSizes) -> CachePosition:
    rows, total, past = sizes.rows, sizes.total, sizes.past
    if sizes.determine_lengths:
        return CachePosition(rows, total, past, total - rows, None)
    last = x.seqlens.reshape(-1).long()
    firsts = 0 if sizes.is_first else last - (rows - 1) if rows > 1 else last
    return CachePosition(rows, total, past, firsts, last)


def _rotated_qkv(
    x: GroupQueryInputs, position: CachePosition, attrs: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value [batch, heads, rows, head], after QK norm and RoPE."""
    heads, kv_heads = attrs["num_heads"], attrs["kv_num_heads"]
    if x.key is None:
        whole = unpack(x.query, heads + 2 * kv_heads)
        # Packed query and key heads are adjacent: both are rotated in one call.
        qk, v = [whole[:, : heads + kv_heads]], whole[:, heads + kv_heads :]
    else:
        qk = [unpack(x.query, heads), unpack(x.key, kv_heads)]
        v = unpack(x.value, kv_heads)
    if x.q_norm is not None:
        q, k = _split_qk(qk, heads)
        qk = [_rms_norm(q, x.q_norm, attrs), _rms_norm(k, x.k_norm, attrs)]
    if attrs["do_rotary"]:
        cos, sin = _angles(x, position)
        qk = [rotate(heads_, cos, sin, attrs["rotary_interleaved"]) for heads_ in qk]
    return *_split_qk(qk, heads), v


def _split_qk(qk: list[Tensor], heads: int) -> tuple[Tensor, Tensor]:
    """Return query and key, of two tensors or one packed tensor."""
    if len(qk) == 1:
        return qk[0][:, :heads], qk[0][:, heads:]
    return qk[0], qk[1]


def _rms_norm(x: Tensor, weight: Tensor, attrs: dict[str, Any]) -> Tensor:
    """RMS norm of each head."""
    return F.rms_norm(wide(x), (x.shape[-1],), wide(weight), attrs["qk_norm_epsilon"]).to(x.dtype)


def _angles(x: GroupQueryInputs, position: CachePosition) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the new rows, for [batch, heads, rows, pairs]."""
    rows, firsts, count = position.rows, position.firsts, x.cos.shape[0]
    position_ids = x.positions
    if position_ids is None and isinstance(firsts, int):
        if firsts + rows > count:
            raise InvalidArgument(
                f"position {firsts + rows - 1} is outside [0, {count}) of cos_cache"
            )
        here = slice(firsts, firsts + rows)
        return wide(x.cos[here]), wide(x.sin[here])
    if position_ids is None:
        positions = position.positions()
    elif isinstance(firsts, int) and not firsts and rows > 1:
        # A prompt uses only the first position id: its rows are consecutive.
        offsets = torch.arange(rows, device=position_ids.device)
        positions = (position_ids.reshape(-1)[:1] + offsets).expand(position_ids.shape)
    else:
        positions = position_ids
    cos, sin = gather_angles((x.cos, x.sin), positions)
    return cos[:, None], sin[:, None]


def _updated_cache(
    old: Tensor | None, new: Tensor, position: CachePosition, shares: bool
) -> Tensor:
    """Return the present cache: past rows, then the new ones, then zeros."""
    firsts, length = position.firsts, position.length
    if old is None or not position.past:
        return new
    if shares and length == position.past:
        return _write_rows(old, new, position)
    if isinstance(firsts, int):
        pieces = [old[:, :, :firsts], new]
        if length > firsts + position.rows:
            sizes = (*new.shape[:2], length - firsts - position.rows, new.shape[3])
            pieces.append(new.new_zeros(sizes))
        return torch.cat(pieces, 2)
    # Lengths that differ by batch entry: rows are written by index, not concatenated.
    grown = old if length == position.past else F.pad(old, (0, 0, 0, length - position.past))
    is_old = torch.arange(length, device=old.device)[:, None] < firsts[:, None, None, None]
    return _write_rows(torch.where(is_old, grown, 0), new, position)


def _write_rows(cache: Tensor, new: Tensor, position: CachePosition) -> Tensor:
    """Write the new rows into the cache, in place; positions are clamped to its capacity."""
    firsts, rows = position.firsts, position.rows
    if isinstance(firsts, int):
        cache[:, :, firsts : firsts + rows] = new
        return cache
    at = position.positions().clamp(0, cache.shape[2] - 1)
    if cache.shape[0] == 1:
        return cache.index_copy_(2, at[0], new)
    return cache.scatter_(2, at[:, None, :, None].expand(new.shape), new)


def _visible_keys(
    position: CachePosition, q: Tensor, k: Tensor, attrs: dict[str, Any]
) -> Tensor | None:
    """Return the mask of visible keys; None if all are, or a square causal mask suffices."""
    rows, keys, window = position.rows, k.shape[2], attrs["local_window_size"]
    firsts, last = position.firsts, position.last
    is_narrow = 0 < window < keys
    is_square = not attrs["causal"] or rows == 1 or keys == rows
    if last is None and not is_narrow and is_square:
        return None
    key = torch.arange(keys, device=q.device)
    if isinstance(firsts, int):
        own = torch.arange(firsts, firsts + rows, device=q.device)[:, None]
    else:
        own = position.positions()[:, None, :, None]
    seen = key <= own if attrs["causal"] else key >= 0
    if last is not None and (not attrs["causal"] or isinstance(firsts, int)):
        seen = seen & (key <= last[:, None, None, None])
    if is_narrow:
        seen = seen & (key > own - window)
    return seen


def _mask(
    bias: Tensor | None, seen: Tensor | None, k: Tensor, position: CachePosition, is_causal: bool
) -> Tensor | None:
    """Return the visibility mask and the attention bias as one mask for torch."""
    if bias is None:
        return seen if seen is None or seen.dim() == 4 else seen.view(1, 1, -1, k.shape[2])
    bias = _fitted(bias, k.shape[2])
    if is_causal:
        rows = torch.arange(position.rows, device=k.device)
        seen = rows <= rows[:, None]
    return bias if seen is None else torch.where(seen, bias, -INF)


def _fitted(bias: Tensor, keys: int) -> Tensor:
    """Return the attention bias padded or cut to the number of keys."""
    missing = keys - bias.shape[3]
    return F.pad(bias, (0, missing)) if missing > 0 else bias[..., :keys]


def _unfused(
    operands: tuple[Tensor, Tensor, Tensor],
    x: GroupQueryInputs,
    seen: Tensor | None,
    position: CachePosition,
    attrs: dict[str, Any],
    caches: list[Tensor],
) -> tuple[Tensor, ...]:
    """Return attention by matmuls and a softmax in float32, with softcap, sinks and scores."""
    q, k, v = operands
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    scores = scores_of(q, k, scale, attrs["softcap"])
    if x.bias is not None:
        scores = scores + wide(_fitted(x.bias, k.shape[2]))
    if seen is None and attrs["causal"] and position.rows > 1:
        rows = torch.arange(position.rows, device=k.device)
        seen = rows <= rows[:, None]
    # The scores output has 0 for hidden keys, the softmax -inf.
    qk = scores
    if seen is not None:
        qk, scores = torch.where(seen, scores, 0), torch.where(seen, scores, -INF)
    extra: Tensor | float = 0.0 if attrs["smooth_softmax"] == 1 else -INF
    if x.sink is not None:
        extra = wide(x.sink)[:, None, None]
    weights = weights_of(scores, extra, ZERO_FULLY_MASKED)
    y = pack(grouped_matmul(weights, wide(v)).to(q.dtype))
    if attrs["qk_output"] not in (SCORES, WEIGHTS):
        return y, *caches
    qk = (qk if attrs["qk_output"] == SCORES else weights)[..., : position.total]
    return y, *caches, qk.to(q.dtype)


def _refuses(node: Node) -> str:
    if node.attrs["k_quant_type"] != b"NONE":
        return "a quantized KV cache has no kernel in torch: keep it in floating point"
    if node.attrs["sliding_window_cache"]:
        return "a sliding-window cache has no kernel in torch: set sliding_window_cache to 0"
    if len(node.outputs) > 3 and not node.attrs["qk_output"]:
        return "output_qk is undefined unless qk_output is set: set it, or omit the output"
    return ""


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "GroupQueryAttention"): TorchKernel(
        group_query,
        frozenset((F32, F16, BF16, I32, I64)),
        host=(6,),
        shares=((3, 1), (4, 2)),
        fixed_point=True,
        dependent_launch=True,
        refuses=_refuses,
    )
}
