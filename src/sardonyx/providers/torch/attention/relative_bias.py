"""Relative position bias of attention (T5 buckets), and its gated form."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sardonyx.errors import InvalidArgument
from sardonyx.graph.graph import Node
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import Array, one_int
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels


def _relative(
    table: Tensor, query: Array, key: Array, *, is_bidirectional: int, max_distance: int
) -> Tensor:
    rows, keys = one_int(query, "query_length"), one_int(key, "key_length")
    if min(rows, keys) < 0:
        raise InvalidArgument(f"query_length {rows} and key_length {keys} must not be negative")
    position = torch.arange(max(rows, keys), device=table.device)
    distance = position[:keys] - position[:rows, None]
    count = table.shape[0] // 2 if is_bidirectional else table.shape[0]
    length = distance.abs() if is_bidirectional else (-distance).clamp(min=0)
    # The bucket number is the number of bucket starts up to a distance.
    bucket = torch.zeros_like(distance)
    for start in _bucket_starts(count, max_distance, max(rows, keys)):
        bucket += length >= start
    if is_bidirectional:
        bucket += (distance > 0) * count
    # The table is stored transposed: all numbers of a head are contiguous.
    return table.reshape(table.shape[1], table.shape[0])[:, bucket].unsqueeze(0)


def _bucket_starts(count: int, max_distance: int, size: int) -> list[int]:
    """Return the first distance of each bucket but the first: exact ones, then logarithmic ones."""
    exact = count // 2
    distance = np.arange(exact, max(size, exact), dtype=np.float32)
    with np.errstate(all="ignore"):
        ratio = np.log(distance / np.float32(exact)) / np.float32(math.log(max_distance / exact))
        bucket = np.nan_to_num(ratio * np.float32(count - exact)).astype(np.int64)
    buckets = np.concatenate((np.arange(exact), np.minimum(exact + bucket, count - 1)))
    return [int(np.searchsorted(buckets, b)) for b in range(1, int(buckets.max(initial=0)) + 1)]


def _gated(
    query: Tensor,
    query_bias: Tensor,
    positions: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor,
    offsets: None = None,
    *,
    num_heads: int,
) -> Tensor:
    q = wide(query) + query_bias
    q = q.reshape(*q.shape[:2], num_heads, -1).transpose(1, 2)
    gates = torch.matmul(q, wide(weight)) + bias
    # WavLM's gates: two groups of features per row, summed.
    sums = gates.reshape(*gates.shape[:3], 2, -1).sum(-1)
    u, r = torch.sigmoid(sums).unsqueeze(-1).unbind(-2)
    return ((u * (r * scale - 1) + 2) * positions).to(query.dtype)


def _refuses_packed(node: Node) -> str:
    if len(node.inputs) > 6 and node.inputs[6] is not None:
        return "the kernel takes padded batches only: omit token_offset"
    return ""


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "RelativePositionBias"): TorchKernel(_relative, REALS, host=(1, 2)),
    (MICROSOFT, "GatedRelativePositionBias"): TorchKernel(_gated, REALS, refuses=_refuses_packed),
}
