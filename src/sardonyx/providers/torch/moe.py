"""Mixtures of experts: each token goes through the few, of many, that its router prefers.

Which experts these are stays on the device. A few tokens gather the weights of theirs; many go
through all experts, and what an expert makes of tokens that are not its own is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from sardonyx.graph.dtype import BF16, F16, F32, U8
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.arrays import filled
from sardonyx.ops.moe import quantized as quantized
from sardonyx.ops.moe import standard as plain
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels
from sardonyx.providers.torch.nbits.blockwise import unpacked
from sardonyx.providers.torch.precision import wide

_REALS: Final = frozenset((F32, F16, BF16))
Which = Tensor | slice  # numbers of experts
Linear = Callable[[Tensor, Which], Tensor]  # rows [experts, rows, in] -> [experts, rows, out]


def _chosen(router: Tensor, k: int) -> Tensor:
    """The experts of each token, the first of equal ones first."""
    return torch.sort(router, dim=1, descending=True, stable=True).indices[:, :k]


def _mixed(tokens: Tensor, chosen: Tensor, shares: Tensor, experts: int, expert: Linear) -> Tensor:
    """The sum of what its experts make of each token, times their shares."""
    count, k = chosen.shape
    if count * k <= experts:
        rows = tokens.repeat_interleave(k, 0)[:, None]
        made = wide(expert(rows, chosen.reshape(-1))).view(count, k, tokens.shape[1])
        return (made * shares[..., None]).sum(1)
    y = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    for e in range(experts):
        is_own = chosen == e
        share = torch.where(is_own, shares, 0).sum(1, keepdim=True)
        made = wide(expert(tokens[None], slice(e, e + 1)))[0] * share
        y = y + torch.where(is_own.any(1, keepdim=True), made, 0)
    return y


def _activated(h: Tensor, side: Tensor | None, attrs: dict[str, Any]) -> Tensor:
    """What the second layer reads: gated by a part of the first, by the third, or by nothing."""
    name = attrs["activation_type"]
    if name != plain.SWIGLU:
        y = _ACTIVATIONS[name](h)
        return y if side is None else y * side
    if attrs["swiglu_fusion"] == 1:
        h, side = h[..., ::2], h[..., 1::2]
    elif attrs["swiglu_fusion"] == 2:
        h, side = h.chunk(2, -1)
    assert side is not None
    limit = attrs["swiglu_limit"]
    if limit is not None:
        h, side = h.clamp(max=limit), side.clamp(-limit, limit)
    alpha, beta = attrs["activation_alpha"], attrs["activation_beta"]
    gated: Tensor = h * torch.sigmoid(h * alpha) * (side + beta)
    return gated


_ACTIVATIONS: Final[dict[bytes, Callable[[Tensor], Tensor]]] = {
    b"relu": torch.relu,
    b"gelu": lambda x: F.gelu(x, approximate="tanh"),
    b"silu": lambda x: x * torch.sigmoid(x),
    b"identity": lambda x: x,
}


def _network(first: Linear, second: Linear, third: Linear | None, attrs: dict[str, Any]) -> Linear:
    """Two layers and what is between them."""

    def run(rows: Tensor, which: Which) -> Tensor:
        side = None if third is None else wide(third(rows, which))
        hidden = _activated(wide(first(rows, which)), side, attrs)
        return second(hidden.to(rows.dtype), which)

    return run


def _linear(matrix: Callable[[Which], Tensor], bias: Tensor | None) -> Linear:
    """Products with the matrices of some experts, [out, in] each."""

    def run(rows: Tensor, which: Which) -> Tensor:
        weights = matrix(which).transpose(1, 2)
        if bias is None:
            return torch.bmm(rows, weights)
        return torch.baddbmm(bias[which][:, None], rows, weights)

    return run


def moe(*inputs: Any, **attrs: Any) -> Tensor:
    """Experts with weights as they are."""
    x = plain.MoeInputs(*filled(inputs, 8))
    tokens = x.x.reshape(-1, x.x.shape[-1])
    router = wide(x.router)
    chosen = _chosen(router, attrs["k"])
    shares = torch.softmax(router, 1).gather(1, chosen)
    if attrs["normalize_routing_weights"]:
        shares = shares / shares.sum(1, keepdim=True)
    layers = [
        None if weights is None else _linear(weights.__getitem__, bias)
        for weights, bias in (
            (x.first, x.first_bias), (x.second, x.second_bias), (x.third, x.third_bias),
        )
    ]  # fmt: skip
    first, second, third = layers
    assert first is not None
    assert second is not None
    network = _network(first, second, third, attrs)
    y = _mixed(tokens, chosen, shares, router.shape[1], network)
    made: Tensor = y.view(x.x.shape).to(x.x.dtype)
    return made


def qmoe(*inputs: Any, **attrs: Any) -> Tensor:
    """Experts with weights of few bits."""
    x = quantized.named_inputs(filled(inputs, 21), attrs)
    tokens, block = x.x.reshape(-1, x.x.shape[-1]), attrs["block_size"] or 0
    router = wide(x.router)
    chosen = _chosen(router, attrs["k"])
    shares = _shares(x, router, chosen, attrs["normalize_routing_weights"])
    layers = [
        None if layer.weights is None else _linear(_matrix(layer, block, x.x.dtype), layer.bias)
        for layer in x.layers
    ]
    first, second, third = layers
    assert first is not None
    assert second is not None
    network = _network(first, second, third, attrs)
    y = _mixed(tokens, chosen, shares, router.shape[1], network)
    made: Tensor = y.view(x.x.shape).to(x.x.dtype)
    return made


def _shares(x: quantized.QMoeInputs, router: Tensor, chosen: Tensor, normalizes: object) -> Tensor:
    """How much each chosen expert counts."""
    if x.chosen is None:
        return torch.softmax(router.gather(1, chosen), 1)
    shares = wide(x.chosen).gather(1, chosen)
    if not normalizes:
        return shares
    total = shares.sum(1, keepdim=True)
    return shares / torch.where(total == 0, 1, total)


def _matrix(
    layer: quantized.ExpertLayer, block: int, dtype: torch.dtype
) -> Callable[[Which], Tensor]:
    """The weights of some experts, rounded once to a type."""

    def run(which: Which) -> Tensor:
        q = unpacked(layer.weights[which], layer.bits)
        count, rows, columns = q.shape
        blocks = columns // block if block else 1
        scales = wide(layer.scales[which]).view(count, rows, blocks, 1)
        steps = q.view(count, rows, blocks, columns // blocks if blocks else 0).float()
        zeros: Tensor | float = float(1 << layer.bits - 1)
        if layer.zeros is not None:
            own = unpacked(layer.zeros[which], layer.bits)
            own = own[..., :blocks] if block else own[:, :rows, None]
            zeros = own[..., None].float()
        return ((steps - zeros) * scales).to(dtype).view(count, rows, columns)

    return run


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "MoE"): TorchKernel(moe, _REALS),
    (MICROSOFT, "QMoE"): TorchKernel(qmoe, _REALS | {U8}),
}
