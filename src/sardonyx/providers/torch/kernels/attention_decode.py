"""Attention for few new tokens: positions turned, the cache filled and read in one launch."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.providers.torch.kernels import n_processors
from sardonyx.providers.torch.kernels.attention_cached import attend_kernel
from sardonyx.providers.torch.kernels.attention_split import attend_few_kernel
from sardonyx.providers.torch.kernels.fixed_point import UNIT, WORDS
from sardonyx.providers.torch.kernels.launch import launch
from sardonyx.providers.torch.kernels.nbits_matmul import Digits

MOST_TOKENS: Final = 8  # new ones of a run
_WARPS: Final = 4
_LEAST_KEYS: Final = 32  # that are worth a program
_FEW_TOKENS: Final = 4  # new ones whose queries are not worth matrix units
_MOST_READS: Final = 1 << 15  # keys that all heads of a group may read, each for itself
_EVER: Final = 1 << 30  # a window that nothing is outside of


@frozen
class Rotary:
    """How positions turn features: cosines and sines [places, pairs]."""

    cos: Tensor
    sin: Tensor
    is_interleaved: bool = False
    places: Tensor | None = None  # int64 [batch, tokens]; else tokens stand where the cache ends


@frozen
class Heads:
    """What attention is told besides tensors."""

    n_heads: int
    n_shared: int  # heads of keys and values
    scale: float
    window: int = -1  # keys that a token sees, itself among them; -1 for all
    softcap: float = 0.0


@frozen(eq=False)
class Workspace:
    """Where programs leave what the last of them gathers. For one run at a time."""

    scratch: Tensor
    counts: Tensor  # zeros before and after each run


@frozen
class Cut:
    """How a kernel cuts its work on a cache."""

    is_plain: bool  # whether each head of queries has programs of its own
    blocks: int  # of heads that have
    splits: int  # programs that share out the keys
    few: int  # rows of queries of a program, as a power of two
    features: int
    tile: int  # keys; those of a program are a multiple


def cut(cache: Tensor, n_heads: int, n_new: int) -> Cut:
    """For a cache [batch, shared heads, capacity, features]."""
    _, shared, capacity, head = cache.shape
    group, features = n_heads // max(1, shared), max(16, _power(head))
    is_plain = n_new <= _FEW_TOKENS and (group == 1 or group * capacity <= _MOST_READS)
    blocks, rows = (n_heads, n_new) if is_plain else (shared, group * n_new)
    tile = 16 if is_plain else max(16, min(64, 2048 // features))
    programs = (5 if is_plain else 2) * n_processors(cache.device)
    wanted = -(-programs // max(1, cache.shape[0] * blocks))
    splits = max(1, min(wanted, -(-capacity // _LEAST_KEYS), 64))
    return Cut(is_plain, blocks, splits, _power(rows), features, tile)


def workspace(cache: Tensor, n_heads: int, n_new: int) -> Workspace:
    """Room for `attend` on a cache [batch, shared heads, capacity, features]."""
    how = cut(cache, n_heads, n_new)
    blocks = cache.shape[0] * how.blocks
    count = blocks * how.splits * how.few * (how.features + 2)
    scratch = torch.empty(count, dtype=torch.float32, device=cache.device)
    return Workspace(scratch, torch.zeros(blocks, dtype=torch.int32, device=cache.device))


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def attend(
    qkv: tuple[Tensor, Tensor, Tensor],
    caches: tuple[Tensor, Tensor],
    lasts: Tensor,
    heads: Heads,
    rotary: Rotary | None = None,
    room: Workspace | None = None,
    leads: bool = False,
) -> Tensor:
    """Attention [batch, tokens, heads * features] of queries, keys and values of new tokens.

    These are [batch, tokens, ..] with features in a row, such as parts of a packed projection;
    the caches [batch, shared heads, capacity, features] get the new keys and values in place.
    `lasts`, int32, is the last token's index for each of the batch, as seqlens_k has it. A length
    that does not fit in the cache gives NaN.
    """
    return _run(qkv, caches, lasts, heads, rotary, room, False, leads).value


def attend_digits(
    qkv: tuple[Tensor, Tensor, Tensor],
    caches: tuple[Tensor, Tensor],
    lasts: Tensor,
    heads: Heads,
    rotary: Rotary | None = None,
    room: Workspace | None = None,
    leads: bool = False,
) -> Digits | Tensor:
    """`attend` of one token for a few-bit product that follows; floats where it has no digits."""
    batch, n_new, _ = qkv[0].shape
    makes = batch == 1 and n_new == 1 and caches[0].shape[3] % UNIT == 0
    made = _run(qkv, caches, lasts, heads, rotary, room, makes, leads)
    return made if makes else made.value


def split_packed(qkv: Tensor, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of a packed projection, without a copy."""
    head = qkv.shape[-1] // (heads.n_heads + 2 * heads.n_shared)
    sizes = [heads.n_heads * head, heads.n_shared * head, heads.n_shared * head]
    q, k, v = torch.split(qkv, sizes, dim=-1)
    return q, k, v


def _run(
    qkv: tuple[Tensor, Tensor, Tensor],
    caches: tuple[Tensor, Tensor],
    lasts: Tensor,
    heads: Heads,
    rotary: Rotary | None,
    room: Workspace | None,
    makes_digits: bool,
    leads: bool,
) -> Digits:
    q, k, v = qkv
    batch, n_new, _ = q.shape
    _, shared, capacity, head = caches[0].shape
    y = torch.empty((batch, n_new, heads.n_heads * head), dtype=q.dtype, device=q.device)
    out = None
    if makes_digits:
        words = WORDS * (heads.n_heads * head // UNIT)
        out = torch.empty((1, words), dtype=torch.int32, device=q.device)
    if not y.numel():
        return Digits(y, y)
    how = cut(caches[0], heads.n_heads, n_new)
    room = room or workspace(caches[0], heads.n_heads, n_new)
    turn = (0, False, 1)
    cos = sin = places = None
    if rotary is not None:
        cos, sin, places = rotary.cos, rotary.sin, rotary.places
        turn = (cos.shape[1], rotary.is_interleaved, cos.shape[0])
    given = (
        q, k, v, cos, sin, places, lasts, *caches, y, out, room.scratch, room.counts,
        float(heads.scale), heads.window if heads.window > 0 else _EVER,
        float(heads.softcap), q.stride(1), k.stride(1), capacity,
    )  # fmt: skip
    many = max(1, min(_power(how.splits), 4096 // (how.few * how.features)))
    rows = n_new if how.is_plain else max(16, how.few)
    sizes = (
        rows, how.tile, how.features, head, heads.softcap > 0, n_new, how.few, many,
    )  # fmt: skip
    kernel = attend_few_kernel if how.is_plain else attend_kernel
    constants = (heads.n_heads // shared, shared, sizes, turn)
    launch(kernel, (how.splits, how.blocks, batch), given, constants, _WARPS, leads)
    return Digits(y if out is None else out, y)
