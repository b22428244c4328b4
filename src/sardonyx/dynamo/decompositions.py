"""Which ATen ops torch decomposes before they are lowered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table

from sardonyx.dynamo.encoder_layer import encoder_layer
from sardonyx.dynamo.table import lowering_of, supported

aten = torch.ops.aten


@cache
def decompositions() -> dict[Any, Any]:
    """Return torch's core decompositions without the ops that have a lowering of their own.

    Random ops are never decomposed: their decompositions consume the generator differently from
    eager torch, and results would not repeat.
    """
    found = {
        op: function
        for op, function in core_aten_decompositions().items()  # type: ignore[no-untyped-call]
        if lowering_of(op) is None
        and torch.Tag.nondeterministic_seeded not in op.tags
        and op not in _INCORRECT_DECOMPOSITIONS
    }
    return {
        **found,
        **{op: partial(_batch_norm, op, i) for op, i in _BATCH_NORMS.items()},
        aten.native_batch_norm_backward.default: _batch_norm_backward,
        aten.native_dropout.default: _dropout,
        aten.native_dropout_backward.default: _dropout_backward,
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten._weight_norm_interface_backward.default: _weight_norm_backward,
    }


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the mask as eager does; the draw alone is random, and saved for the backward graph."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:  # eager draws nothing
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    # Eager fills a tensor like x in the order of memory; the draw is contiguous, then permuted.
    strides = torch.empty_like(x).stride()
    order = sorted(range(x.dim()), key=lambda i: -strides[i])
    drawn = aten.bernoulli.p(x.new_empty([x.shape[i] for i in order], dtype=torch.bool), 1 - p)
    mask = drawn.permute([order.index(i) for i in range(x.dim())])
    return x * mask * (1 / (1 - p)), mask


def _dropout_backward(dy: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return dy * (mask * scale).to(dy.dtype)


# Batch normalizations with the position of the flag `training`.
_BATCH_NORMS = {
    aten._native_batch_norm_legit_functional.default: 5,
    aten._native_batch_norm_legit.no_stats: 3,
}


def _batch_norm(op: Any, flag: int, *args: Any) -> Any:
    """Decompose a batch normalization that computes its statistics, as torch does.

    The result is then an elementwise expression of x and the batch's statistics, which the
    partitioner can recompute in the backward graph; the running statistics, which the forward
    pass replaces, are read by their update alone.
    """
    return decomposition_table[op](*args) if args[flag] else NotImplemented


def _batch_norm_backward(*args: Any) -> Any:
    """Call a backward op of the same formula without the running statistics, which it ignores."""
    dy, x, weight, _, _, mean, rstd, is_training, eps, mask = args
    if not is_training:
        return NotImplemented
    # `mean` stands for the workspace of cuDNN, which the lowering does not read.
    return aten.batch_norm_backward.default(
        dy, x, weight, None, None, mean, rstd, True, eps, mask, mean
    )


def _weight_norm_backward(
    dw: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norms: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of v and g for w = v * g / norms, with norms of v over all axes but one."""
    dot = (dw * v).sum([i for i in range(v.dim()) if i != dim], keepdim=True) / norms
    return (dw - v * (dot / norms)) * (g / norms), dot


@contextmanager
def without_python_decompositions() -> Iterator[None]:
    """Keep torch from decomposing upsampling ops and incorrect decompositions while it traces.

    Their decompositions are also Python kernels of the autograd key, which no decomposition table
    overrides: the gradients of upsampling would be scatter-adds over gathered neighbours.
    """
    removed: list[tuple[Any, dict[Any, Any]]] = []
    for overload in (*_upsampling_ops(), *_INCORRECT_DECOMPOSITIONS):
        removed.append((overload, dict(overload.py_kernels)))
        for key in _KEYS:
            overload.py_kernels.pop(key, None)
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, kernels in removed:
            overload.py_kernels.update(kernels)
            overload._dispatch_cache.clear()


def _upsampling_ops() -> Iterator[Any]:
    for name, family in supported().items():
        packet = getattr(torch.ops.aten, name.split(".")[1], None)  # None: newer than this torch
        if family == "resize" and "backward" not in name and packet is not None:
            yield from (getattr(packet, o) for o in packet.overloads() if o in ("default", "vec"))


# torch's decomposition also counts the targets after the first -1, which ends a row's list.
_INCORRECT_DECOMPOSITIONS = (aten.multilabel_margin_loss_forward.default,)
_KEYS = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
