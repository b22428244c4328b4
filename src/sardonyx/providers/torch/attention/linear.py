"""LinearAttention: one state matrix per head, updated by the (gated) delta rule token by token."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.arrays import filled
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

_TYPES: Final = frozenset((F32, F16, BF16))


def linear(*inputs: Any, **attrs: Any) -> tuple[Tensor, Tensor]:
    """Return the output rows, and the last state or a window of the last states."""
    query, _, _, past, *_ = tensors = list(filled(inputs, 6))
    window = attrs.get("state_window", 0)
    if window and past is not None:
        tensors[3] = past[-1]
    y, states = _recurrence(tensors, attrs, window or 1)
    state_type = query.dtype if past is None else past.dtype
    if not window:
        return y, states[-1].to(state_type)
    empty = [torch.zeros_like(states[0])] * (window - len(states))
    return y, torch.stack((*empty, *states)).to(state_type)


def _recurrence(
    tensors: list[Any], attrs: dict[str, Any], window: int
) -> tuple[Tensor, list[Tensor]]:
    """Return the output rows, and the states after the last `window` tokens, oldest first."""
    query, key, value, past, decay, beta = tensors
    heads, q_heads = attrs["kv_num_heads"], attrs["q_num_heads"]
    groups = max(q_heads // heads, 1)
    k, v = _by_token(key, heads), _by_token(value, heads)
    # Query heads share the state of a KV head in groups; or KV heads share a query head.
    q = _by_token(query, q_heads).repeat_interleave(heads // q_heads or 1, 2)
    length, batch, _, size = q.shape
    q = q.reshape(length, batch, heads, groups, size)
    retain = None if decay is None else torch.exp(_decay(decay, heads, size))[..., None]
    rate = None if beta is None else _by_token(beta, beta.shape[2])
    state = k.new_zeros((batch, heads, size, v.shape[3])) if past is None else past.float()
    out, states = [], [] if length else [state]
    # S_t = decay_t S_{t-1} + k_t (x) write_t; y_t = q_t S_t
    for t in range(length):
        if retain is not None:
            state = state * retain[t]
        write = v[t]
        if rate is not None:  # delta rule: write the error of the state's prediction of v
            write = rate[t] * (write - torch.matmul(k[t][:, :, None], state)[:, :, 0])
        state = state + k[t][..., None] * write[:, :, None]
        out.append(torch.matmul(q[t], state))
        states = [*states, state][-window:]
    if not out:
        return query.new_zeros((batch, 0, heads * groups * v.shape[3])), states
    y = torch.stack(out, 1) * (attrs["scale"] or 1 / math.sqrt(size or 1))
    return y.flatten(2).to(query.dtype), states


def _by_token(x: Tensor, heads: int) -> Tensor:
    """Return [batch, length, heads * size] as float32 [length, batch, heads, size]."""
    batch, length, hidden = x.shape
    return x.reshape(batch, length, heads, hidden // heads).transpose(0, 1).float()


def _decay(decay: Tensor, heads: int, size: int) -> Tensor:
    """Return the log decay per key feature, or per head."""
    if decay.shape[2] not in (heads, heads * size):
        raise InvalidArgument(
            f"decay has {decay.shape[2]} numbers per token: one for each of {heads} heads, "
            f"or {heads * size} for each of their features"
        )
    return _by_token(decay, heads)


KERNELS: Final[TorchKernels] = {
    (ONNX, "LinearAttention"): TorchKernel(linear, _TYPES),
    (MICROSOFT, "LinearAttention"): TorchKernel(linear, _TYPES),
}
