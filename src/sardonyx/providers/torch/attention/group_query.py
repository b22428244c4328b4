"""GroupQueryAttention: decoders' attention, with rotated positions and a cache in one node.

Lengths stay on the device. Only where a batch of one has a cache that grows with it do sizes tell
the same as they do; a cache of full length is read by lengths alone, so that a captured graph
serves every step.
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
from sardonyx.ops.attention.fused import UNSEEN
from sardonyx.ops.attention.group_query import SCORES, WEIGHTS, Inputs
from sardonyx.providers.torch.attention.core import (
    INF,
    attended,
    grouped_matmul,
    pack,
    scores_of,
    unpack,
    weights_of,
)
from sardonyx.providers.torch.attention.rotary import taken, turned
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.kernels import usable
from sardonyx.providers.torch.precision import wide


@frozen
class Sizes:
    """What is known of a run without its lengths."""

    batch: int
    rows: int  # new ones
    total: int
    past: int  # rows of the cache before

    @property
    def is_first(self) -> bool:
        """Whether nothing is before the new rows."""
        # A single row stands where its length says: sizes are the same in every step of a decoder.
        return self.rows == self.total and (self.rows > 1 or not self.past)

    @property
    def tell_all(self) -> bool:
        """Whether lengths say no more than these."""
        return self.batch == 1 and (self.is_first or self.past + self.rows == self.total)


@frozen
class Place:
    """Where the new rows of a run stand."""

    rows: int
    total: int
    past: int  # rows of the cache before
    firsts: Tensor | int  # the place of the first new row of each of the batch
    last: Tensor | None  # and of its last key; None where that is the last of all

    @property
    def length(self) -> int:
        """Rows of the cache behind."""
        return max(self.past, self.total)

    def each(self) -> Tensor:
        """The place of each new row, [batch, rows]."""
        assert isinstance(self.firsts, Tensor)
        first = self.firsts[:, None]
        return first + torch.arange(self.rows, device=first.device) if self.rows > 1 else first


def group_query(
    *inputs: Any,
    shares: bool = False,
    digits: bool = False,
    leads: bool = False,
    **attrs: Any,
) -> tuple[Any, ...]:
    """The output, the caches, and scores where they are asked for.

    With `shares` the past is a buffer of full length that the new rows are written into. With
    `digits` the output may come as a product of few bits reads it.
    """
    x = Inputs(*filled(inputs, 16))
    sizes = _sizes(x)
    if shares and _is_step(x, sizes, attrs):
        return _stepped(x, attrs, (digits, leads))
    place = _place(x, sizes)
    q, k, v = _operands(x, place, attrs)
    caches = [_kept(old, new, place, shares) for old, new in ((x.past_key, k), (x.past_value, v))]
    if not isinstance(place.firsts, int) or place.firsts:
        k, v = caches
    seen = _seen(place, q, k, attrs)
    if attrs["softcap"] > 0 or x.sink is not None or attrs["smooth_softmax"] == 1:
        return _stepwise((q, k, v), x, seen, place, attrs, caches)
    if attrs["qk_output"]:
        return _stepwise((q, k, v), x, seen, place, attrs, caches)
    is_causal = seen is None and bool(attrs["causal"]) and place.rows > 1
    mask = _mask(x.bias, seen, k, place, is_causal)
    if mask is not None:
        is_causal = False
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    y = attended(q, k, v, mask, scale=scale, is_causal=is_causal, blind=UNSEEN)
    return pack(y), *caches


_STEP_TOKENS: Final = 8  # new ones that our own kernel attends for


def _is_step(x: Inputs, sizes: Sizes, attrs: dict[str, Any]) -> bool:
    """Whether a kernel of ours does all: few new rows, and a cache of full length in place."""
    extras = (x.bias, x.sink, x.q_norm)
    is_plain = attrs["causal"] and attrs["smooth_softmax"] != 1 and not attrs["qk_output"]
    is_static = not sizes.tell_all and not sizes.is_first and sizes.total <= sizes.past
    return (
        sizes.rows <= _STEP_TOKENS
        and all(extra is None for extra in extras)
        and bool(is_plain)
        and is_static
        and usable(x.query.device)
    )


def _stepped(x: Inputs, attrs: dict[str, Any], next_: tuple[bool, bool]) -> tuple[Any, ...]:
    """One launch that turns the new rows, puts them into the cache and attends.

    `next_` is whether digits are read, and whether a kernel of ours comes next.
    """
    from sardonyx.providers.torch.kernels import attention_decode

    size = x.past_key.shape[3]
    scale = attrs["scale"] or 1 / math.sqrt(size or 1)
    window = attrs["local_window_size"]
    heads = attention_decode.Heads(
        attrs["num_heads"], attrs["kv_num_heads"], scale, window, attrs["softcap"]
    )
    new = (x.query, x.key, x.value)
    if x.key is None:
        new = attention_decode.split_packed(x.query, heads)
    rotary = None
    if attrs["do_rotary"]:
        is_interleaved = bool(attrs["rotary_interleaved"])
        rotary = attention_decode.Rotary(x.cos, x.sin, is_interleaved, x.positions)
    caches = (x.past_key, x.past_value)
    room = _room(x.past_key, heads.n_heads, x.query.shape[1])
    lasts = x.seqlens.reshape(-1).int()
    digits, leads = next_
    attend = attention_decode.attend_digits if digits else attention_decode.attend
    return attend(new, caches, lasts, heads, rotary, room, leads), *caches


_ROOMS: Final[dict[tuple[Any, ...], Any]] = {}  # of each stream, which does one thing at a time
_RECORDED: Final[dict[tuple[Any, ...], Any]] = {}  # those whose memory graphs have come to know
_MOST_ROOMS: Final = 64


def _room(cache: Tensor, heads: int, rows: int) -> Any:
    """Where the kernel leaves what its last programs gather."""
    from sardonyx.providers.torch.kernels import attention_decode

    stream = torch.cuda.current_stream().cuda_stream if cache.is_cuda else 0
    sizes = (cache.shape[0], attention_decode.cut(cache, heads, rows))
    key = (cache.device, stream, sizes)
    room = _ROOMS.get(key)
    if room is None:
        if len(_ROOMS) >= _MOST_ROOMS:
            _ROOMS.clear()
        room = _ROOMS[key] = _RECORDED.get(key) or attention_decode.workspace(cache, heads, rows)
    if _is_recorded(cache):
        _RECORDED[key] = room
    return room


def _is_recorded(x: Tensor) -> bool:
    """Whether what is asked of a tensor's device now is going into a graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def _sizes(x: Inputs) -> Sizes:
    total, rows = one_int(x.total, "total_sequence_length"), x.query.shape[1]
    past = 0 if x.past_key is None else x.past_key.shape[2]
    if total < rows or (past == 0 and total > rows):
        raise InvalidArgument(
            f"total_sequence_length is {total}: there are {past} keys before {rows} new rows"
        )
    return Sizes(x.query.shape[0], rows, total, past)


def _place(x: Inputs, sizes: Sizes) -> Place:
    rows, total, past = sizes.rows, sizes.total, sizes.past
    if sizes.tell_all:
        return Place(rows, total, past, total - rows, None)
    last = x.seqlens.reshape(-1).long()
    firsts = 0 if sizes.is_first else last - (rows - 1) if rows > 1 else last
    return Place(rows, total, past, firsts, last)


def _operands(x: Inputs, place: Place, attrs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value as [batch, heads, rows, head], normal and turned as they ought to be."""
    heads, shared = attrs["num_heads"], attrs["kv_num_heads"]
    if x.key is None:
        whole = unpack(x.query, heads + 2 * shared)
        parts, v = [whole[:, : heads + shared]], whole[:, heads + shared :]
    else:
        parts = [unpack(x.query, heads), unpack(x.key, shared)]
        v = unpack(x.value, shared)
    if x.q_norm is not None:
        q, k = _two(parts, heads)
        parts = [_normal(q, x.q_norm, attrs), _normal(k, x.k_norm, attrs)]
    if attrs["do_rotary"]:
        cos, sin = _angles(x, place)
        parts = [turned(part, cos, sin, attrs["rotary_interleaved"]) for part in parts]
    return *_two(parts, heads), v


def _two(parts: list[Tensor], heads: int) -> tuple[Tensor, Tensor]:
    """Query and key, which may lie side by side."""
    if len(parts) == 1:
        return parts[0][:, :heads], parts[0][:, heads:]
    return parts[0], parts[1]


def _normal(x: Tensor, weight: Tensor, attrs: dict[str, Any]) -> Tensor:
    """Each head over its root mean square."""
    return F.rms_norm(wide(x), (x.shape[-1],), wide(weight), attrs["qk_norm_epsilon"]).to(x.dtype)


def _angles(x: Inputs, place: Place) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the new rows, for [batch, heads, rows, pairs]."""
    rows, firsts, count = place.rows, place.firsts, x.cos.shape[0]
    given = x.positions
    if given is None and isinstance(firsts, int):
        if firsts + rows > count:
            raise InvalidArgument(
                f"position {firsts + rows - 1} is outside [0, {count}) of cos_cache"
            )
        here = slice(firsts, firsts + rows)
        return wide(x.cos[here]), wide(x.sin[here])
    if given is None:
        places = place.each()
    elif isinstance(firsts, int) and not firsts and rows > 1:
        # Of those given, a first prompt looks at one only.
        steps = torch.arange(rows, device=given.device)
        places = (given.reshape(-1)[:1] + steps).expand(given.shape)
    else:
        places = given
    cos, sin = taken((x.cos, x.sin), places)
    return cos[:, None], sin[:, None]


def _kept(old: Tensor | None, new: Tensor, place: Place, shares: bool) -> Tensor:
    """The new cache: rows of the past, the new ones behind, and zeros."""
    firsts, length = place.firsts, place.length
    if old is None or not place.past:
        return new
    if shares and length == place.past:
        return _written(old, new, place)
    if isinstance(firsts, int):
        parts = [old[:, :, :firsts], new]
        if length > firsts + place.rows:
            sizes = (*new.shape[:2], length - firsts - place.rows, new.shape[3])
            parts.append(new.new_zeros(sizes))
        return torch.cat(parts, 2)
    grown = old if length == place.past else F.pad(old, (0, 0, 0, length - place.past))
    is_old = torch.arange(length, device=old.device)[:, None] < firsts[:, None, None, None]
    return _written(torch.where(is_old, grown, 0), new, place)


def _written(cache: Tensor, new: Tensor, place: Place) -> Tensor:
    """The cache itself, with new rows written at their places; one outside goes to the last."""
    firsts, rows = place.firsts, place.rows
    if isinstance(firsts, int):
        cache[:, :, firsts : firsts + rows] = new
        return cache
    at = place.each().clamp(0, cache.shape[2] - 1)
    if cache.shape[0] == 1:
        return cache.index_copy_(2, at[0], new)
    return cache.scatter_(2, at[:, None, :, None].expand(new.shape), new)


def _seen(place: Place, q: Tensor, k: Tensor, attrs: dict[str, Any]) -> Tensor | None:
    """Which keys each row sees; None where all, or where all up to its own of as many as rows."""
    rows, keys, window = place.rows, k.shape[2], attrs["local_window_size"]
    firsts, last = place.firsts, place.last
    is_narrow = 0 < window < keys
    is_square = not attrs["causal"] or rows == 1 or keys == rows
    if last is None and not is_narrow and is_square:
        return None
    key = torch.arange(keys, device=q.device)
    if isinstance(firsts, int):
        own = torch.arange(firsts, firsts + rows, device=q.device)[:, None]
    else:
        own = place.each()[:, None, :, None]
    seen = key <= own if attrs["causal"] else key >= 0
    if last is not None and (not attrs["causal"] or isinstance(firsts, int)):
        seen = seen & (key <= last[:, None, None, None])
    if is_narrow:
        seen = seen & (key > own - window)
    return seen


def _mask(
    bias: Tensor | None, seen: Tensor | None, k: Tensor, place: Place, is_causal: bool
) -> Tensor | None:
    """What is seen and what is added to the scores, as one mask."""
    if bias is None:
        return seen if seen is None or seen.dim() == 4 else seen.view(1, 1, -1, k.shape[2])
    bias = _fitted(bias, k.shape[2])
    if is_causal:
        rows = torch.arange(place.rows, device=k.device)
        seen = rows <= rows[:, None]
    return bias if seen is None else torch.where(seen, bias, -INF)


def _fitted(bias: Tensor, keys: int) -> Tensor:
    """What is added to the scores, of as many keys as there are."""
    missing = keys - bias.shape[3]
    return F.pad(bias, (0, missing)) if missing > 0 else bias[..., :keys]


def _stepwise(
    operands: tuple[Tensor, Tensor, Tensor],
    x: Inputs,
    seen: Tensor | None,
    place: Place,
    attrs: dict[str, Any],
    caches: list[Tensor],
) -> tuple[Tensor, ...]:
    """The same by products and a softmax, in float32."""
    q, k, v = operands
    scale = attrs["scale"] or 1 / math.sqrt(q.shape[-1] or 1)
    scores = scores_of(q, k, scale, attrs["softcap"])
    if x.bias is not None:
        scores = scores + wide(_fitted(x.bias, k.shape[2]))
    if seen is None and attrs["causal"] and place.rows > 1:
        rows = torch.arange(place.rows, device=k.device)
        seen = rows <= rows[:, None]
    shown = scores
    if seen is not None:
        shown, scores = torch.where(seen, scores, 0), torch.where(seen, scores, -INF)
    extra: Tensor | float = 0.0 if attrs["smooth_softmax"] == 1 else -INF
    if x.sink is not None:
        extra = wide(x.sink)[:, None, None]
    weights = weights_of(scores, extra, UNSEEN)
    y = pack(grouped_matmul(weights, wide(v)).to(q.dtype))
    if attrs["qk_output"] not in (SCORES, WEIGHTS):
        return y, *caches
    shown = (shown if attrs["qk_output"] == SCORES else weights)[..., : place.total]
    return y, *caches, shown.to(q.dtype)


def _unfit(node: Node) -> str:
    if node.attrs["k_quant_type"] != b"NONE":
        return "its cache of few bits has no function in torch: keep it in floats"
    if node.attrs["sliding_window_cache"]:
        return "its cache of a window has no function in torch: set sliding_window_cache to 0"
    if len(node.outputs) > 3 and not node.attrs["qk_output"]:
        return "its output_qk is not said to hold anything: set qk_output, or leave it out"
    return ""


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "GroupQueryAttention"): TorchKernel(
        group_query,
        frozenset((F32, F16, BF16, I32, I64)),
        host=(6,),
        shares=((3, 1), (4, 2)),
        digits=True,
        leads=True,
        refuses=_unfit,
    ),
}
