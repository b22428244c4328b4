"""Launches flash decoding: rotary embedding, cache update and attention in one kernel."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.providers.torch.kernels import n_processors
from sardonyx.providers.torch.kernels.attention_cached import grouped_decode_kernel
from sardonyx.providers.torch.kernels.attention_split import per_head_decode_kernel
from sardonyx.providers.torch.kernels.fixed_point import UNIT, WORDS
from sardonyx.providers.torch.kernels.launch import launch
from sardonyx.providers.torch.kernels.nbits_matmul import FixedPointRows

_WARPS: Final = 4
_MIN_SPLIT_KEYS: Final = 32  # fewer keys are not worth a program
_MAX_SPLITS: Final = 64  # merging more takes the last program longer than they save
_MAX_PER_HEAD_TOKENS: Final = 4  # with more, tiles of queries fill matrix units
# Without sharing, every query head of a group reads all keys, mostly from L2; up to this many.
_MAX_GROUP_READS: Final = 1 << 15
_NO_WINDOW: Final = 1 << 30  # larger than any cache


@frozen
class Rotary:
    """Rotary embedding: cosines and sines [positions, pairs]."""

    cos: Tensor
    sin: Tensor
    is_interleaved: bool = False
    position_ids: Tensor | None = None  # int64 [batch, tokens]; None: the positions in the cache


@frozen
class HeadParameters:
    """Head counts and score parameters of an attention node."""

    n_heads: int
    n_kv_heads: int
    scale: float
    window: int = -1  # keys that a token sees, itself included; -1 for all
    softcap: float = 0.0


@frozen(eq=False)
class Workspace:
    """Scratch of the splits; used by one launch at a time."""

    scratch: Tensor
    counts: Tensor  # finished splits by head: zeros before and after each launch


@frozen
class KvSplit:
    """How the kernel divides a KV cache among programs."""

    is_per_head: bool  # one row of programs per query head; else per KV head
    n_heads: int  # query heads or KV heads, accordingly
    n_splits: int  # programs that share the keys of a head
    rows: int  # query rows of a program, rounded up to a power of two
    features: int
    tile: int  # keys per tile; a split has whole tiles


def split_kv(cache: Tensor, n_heads: int, n_new: int) -> KvSplit:
    """Return the division of a cache [batch, KV heads, capacity, features].

    It depends on the capacity, not on the current length, so that a captured CUDA graph is valid
    for every decode step.
    """
    _, kv_heads, capacity, head = cache.shape
    group, features = n_heads // max(1, kv_heads), max(16, _next_power_of_2(head))
    is_per_head = n_new <= _MAX_PER_HEAD_TOKENS and (
        group == 1 or group * capacity <= _MAX_GROUP_READS
    )
    blocks, rows = (n_heads, n_new) if is_per_head else (kv_heads, group * n_new)
    # Per head, tiles stay in registers as [tile, features] float32 per query; for tl.dot, larger
    # tiles amortize the loads, up to 2048 elements of K and of V.
    tile = 16 if is_per_head else max(16, min(64, 2048 // features))
    # Resident programs per processor, as the register use of either kernel allows.
    programs = (5 if is_per_head else 2) * n_processors(cache.device)
    splits = -(-programs // max(1, cache.shape[0] * blocks))
    splits = max(1, min(splits, -(-capacity // _MIN_SPLIT_KEYS), _MAX_SPLITS))
    return KvSplit(is_per_head, blocks, splits, _next_power_of_2(rows), features, tile)


def new_workspace(cache: Tensor, n_heads: int, n_new: int) -> Workspace:
    """Return scratch for `attend` on a cache [batch, KV heads, capacity, features]."""
    split = split_kv(cache, n_heads, n_new)
    blocks = cache.shape[0] * split.n_heads
    count = blocks * split.n_splits * split.rows * (split.features + 2)
    scratch = torch.empty(count, dtype=torch.float32, device=cache.device)
    return Workspace(scratch, torch.zeros(blocks, dtype=torch.int32, device=cache.device))


def _next_power_of_2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def attend(
    qkv: tuple[Tensor, Tensor, Tensor],
    caches: tuple[Tensor, Tensor],
    seqlens: Tensor,
    heads: HeadParameters,
    rotary: Rotary | None = None,
    workspace: Workspace | None = None,
    next_waits: bool = False,
) -> Tensor:
    """Return attention [batch, tokens, heads * features] of the new tokens.

    `qkv` are [batch, tokens, ..] with contiguous features, such as slices of a packed projection;
    the caches [batch, KV heads, capacity, features] receive the new keys and values in place.
    `seqlens`, int32, is the last token's index for each batch entry, as in seqlens_k. A length that
    does not fit in the cache gives NaN.
    """
    return _attend(qkv, caches, seqlens, heads, rotary, workspace, False, next_waits).value


def attend_fixed_point(
    qkv: tuple[Tensor, Tensor, Tensor],
    caches: tuple[Tensor, Tensor],
    seqlens: Tensor,
    heads: HeadParameters,
    rotary: Rotary | None = None,
    workspace: Workspace | None = None,
    next_waits: bool = False,
) -> FixedPointRows | Tensor:
    """`attend` for an n-bit matmul that follows: in fixed point for one token, else floats."""
    batch, n_new, _ = qkv[0].shape
    is_fixed = batch == 1 and n_new == 1 and caches[0].shape[3] % UNIT == 0
    y = _attend(qkv, caches, seqlens, heads, rotary, workspace, is_fixed, next_waits)
    return y if is_fixed else y.value


def split_packed(qkv: Tensor, heads: HeadParameters) -> tuple[Tensor, Tensor, Tensor]:
    """Return views of the queries, keys and values of a packed projection."""
    head = qkv.shape[-1] // (heads.n_heads + 2 * heads.n_kv_heads)
    sizes = [heads.n_heads * head, heads.n_kv_heads * head, heads.n_kv_heads * head]
    q, k, v = torch.split(qkv, sizes, dim=-1)
    return q, k, v


def _attend(
    qkv: tuple[Tensor, Tensor, Tensor],
    caches: tuple[Tensor, Tensor],
    seqlens: Tensor,
    heads: HeadParameters,
    rotary: Rotary | None,
    workspace: Workspace | None,
    gives_fixed_point: bool,
    next_waits: bool,
) -> FixedPointRows:
    q, k, v = qkv
    batch, n_new, _ = q.shape
    _, kv_heads, capacity, head = caches[0].shape
    y = torch.empty((batch, n_new, heads.n_heads * head), dtype=q.dtype, device=q.device)
    out = None
    if gives_fixed_point:
        words = WORDS * (heads.n_heads * head // UNIT)
        out = torch.empty((1, words), dtype=torch.int32, device=q.device)
    if not y.numel():
        return FixedPointRows(y, y)
    split = split_kv(caches[0], heads.n_heads, n_new)
    workspace = workspace or new_workspace(caches[0], heads.n_heads, n_new)
    tables, rotary_sizes = _rotary_arguments(rotary)
    arguments = (
        q, k, v, *tables, seqlens, *caches, y, out, workspace.scratch, workspace.counts,
        float(heads.scale), heads.window if heads.window > 0 else _NO_WINDOW,
        float(heads.softcap), q.stride(1), k.stride(1), capacity,
    )  # fmt: skip
    # A merge holds [splits, rows, features] float32 in registers: 32 numbers per thread.
    at_once = max(1, min(_next_power_of_2(split.n_splits), 4096 // (split.rows * split.features)))
    rows = n_new if split.is_per_head else max(16, split.rows)  # 16: the smallest side of tl.dot
    sizes = (
        rows, split.tile, split.features, head, heads.softcap > 0, n_new, split.rows, at_once,
    )  # fmt: skip
    kernel = per_head_decode_kernel if split.is_per_head else grouped_decode_kernel
    constants = (heads.n_heads // kv_heads, kv_heads, sizes, rotary_sizes)
    grid = (split.n_splits, split.n_heads, batch)
    launch(kernel, grid, arguments, constants, _WARPS, next_waits)
    return FixedPointRows(y if out is None else out, y)


def _rotary_arguments(
    rotary: Rotary | None,
) -> tuple[tuple[Tensor | None, Tensor | None, Tensor | None], tuple[int, bool, int]]:
    """Return (cos, sin, position_ids) and the constants (pairs, is interleaved, positions)."""
    if rotary is None:
        return (None, None, None), (0, False, 1)
    n_positions, pairs = rotary.cos.shape
    tables = (rotary.cos, rotary.sin, rotary.position_ids)
    return tables, (pairs, rotary.is_interleaved, n_positions)
