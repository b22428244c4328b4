"""Mixture of experts (MoE, QMoE): each token is routed to its top-k experts.

The routing stays on the device, because reading it would synchronize. A few tokens gather the
weights of their experts; many tokens run through all experts, and results of experts that they are
not routed to are masked.
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
from sardonyx.ops.moe import quantized
from sardonyx.ops.moe import standard as plain
from sardonyx.providers.torch.dtypes import unpacked, wide
from sardonyx.providers.torch.kernel import TorchKernel, TorchKernels

_REALS: Final = frozenset((F32, F16, BF16))
ExpertIndex = Tensor | slice
Linear = Callable[[Tensor, ExpertIndex], Tensor]  # rows [experts, rows, in] -> [experts, rows, out]


def _top_k(router: Tensor, k: int) -> Tensor:
    """Return the experts of each token; ties go to the lower index (a stable sort)."""
    return torch.sort(router, dim=1, descending=True, stable=True).indices[:, :k]


def _mix_experts(
    tokens: Tensor, chosen: Tensor, routing: Tensor, experts: int, expert: Linear
) -> Tensor:
    """Return the sum of the experts' outputs of each token, times their routing weights."""
    count, k = chosen.shape
    # Few tokens (decode): a batched matmul with the chosen experts' weights, gathered.
    if count * k <= experts:
        rows = tokens.repeat_interleave(k, 0)[:, None]
        outputs = wide(expert(rows, chosen.reshape(-1))).view(count, k, tokens.shape[1])
        return (outputs * routing[..., None]).sum(1)
    # Many tokens (prefill): each expert on all of them, since selecting rows would synchronize.
    y = torch.zeros(tokens.shape, dtype=torch.float32, device=tokens.device)
    for e in range(experts):
        is_own = chosen == e
        weight = torch.where(is_own, routing, 0).sum(1, keepdim=True)
        output = wide(expert(tokens[None], slice(e, e + 1)))[0] * weight
        # Not by the zero weight: another token's output may be infinite or NaN.
        y = y + torch.where(is_own.any(1, keepdim=True), output, 0)
    return y


def _activate(h: Tensor, side: Tensor | None, attrs: dict[str, Any]) -> Tensor:
    """Return the input of the second layer: activated, and gated by `side` or a half of h."""
    name = attrs["activation_type"]
    if name != plain.SWIGLU:
        y = _ACTIVATIONS[name](h)
        return y if side is None else y * side
    # Gate and linear features are interleaved (1) or halves (2) of the first layer's output.
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
    """Return an expert's feed-forward network: two linear layers, gated by a third if given."""

    def run(rows: Tensor, index: ExpertIndex) -> Tensor:
        side = None if third is None else wide(third(rows, index))
        hidden = _activate(wide(first(rows, index)), side, attrs)
        return second(hidden.to(rows.dtype), index)

    return run


def _linear(matrix: Callable[[ExpertIndex], Tensor], bias: Tensor | None) -> Linear:
    """Return a linear layer with the matrices [out, in] of selected experts."""

    def run(rows: Tensor, index: ExpertIndex) -> Tensor:
        weights = matrix(index).transpose(1, 2)
        if bias is None:
            return torch.bmm(rows, weights)
        return torch.baddbmm(bias[index][:, None], rows, weights)

    return run


def _run_experts(
    x: Tensor, router: Tensor, chosen: Tensor, routing: Tensor, layers: Any, attrs: dict[str, Any]
) -> Tensor:
    """Return the mixed outputs of the chosen experts, in the shape and type of x."""
    first, second, third = layers
    tokens, network = x.reshape(-1, x.shape[-1]), _network(first, second, third, attrs)
    y = _mix_experts(tokens, chosen, routing, router.shape[1], network)
    return y.view(x.shape).to(x.dtype)


def moe(*inputs: Any, **attrs: Any) -> Tensor:
    """MoE with float weights."""
    x = plain.MoeInputs(*filled(inputs, 8))
    router = wide(x.router)
    chosen = _top_k(router, attrs["k"])
    # The softmax is over all experts, before the choice.
    routing = torch.softmax(router, 1).gather(1, chosen)
    if attrs["normalize_routing_weights"]:
        routing = routing / routing.sum(1, keepdim=True)
    weights = ((x.first, x.first_bias), (x.second, x.second_bias), (x.third, x.third_bias))
    layers = [None if w is None else _linear(w.__getitem__, bias) for w, bias in weights]
    return _run_experts(x.x, router, chosen, routing, layers, attrs)


def qmoe(*inputs: Any, **attrs: Any) -> Tensor:
    """QMoE with n-bit weights."""
    x = quantized.named_inputs(filled(inputs, 21), attrs)
    router, block = wide(x.router), attrs["block_size"] or 0
    chosen = _top_k(router, attrs["k"])
    routing = _routing_weights(x, router, chosen, attrs["normalize_routing_weights"])
    layers = [
        None if layer.weights is None else _linear(_matrix(layer, block, x.x.dtype), layer.bias)
        for layer in x.layers
    ]
    return _run_experts(x.x, router, chosen, routing, layers, attrs)


def _routing_weights(
    x: quantized.QMoeInputs, router: Tensor, chosen: Tensor, normalizes: object
) -> Tensor:
    """Return the weight of each selected expert."""
    # The softmax is over the chosen experts alone, unless their weights are an input.
    if x.chosen is None:
        return torch.softmax(router.gather(1, chosen), 1)
    routing = wide(x.chosen).gather(1, chosen)
    if not normalizes:
        return routing
    total = routing.sum(1, keepdim=True)
    return routing / torch.where(total == 0, 1, total)


def _matrix(
    layer: quantized.ExpertLayer, block: int, dtype: torch.dtype
) -> Callable[[ExpertIndex], Tensor]:
    """Return a function that dequantizes the weights of selected experts to a type."""

    def run(index: ExpertIndex) -> Tensor:
        q = unpacked(layer.weights[index], layer.bits)
        count, rows, columns = q.shape
        blocks = columns // block if block else 1
        scales = wide(layer.scales[index]).view(count, rows, blocks, 1)
        codes = q.view(count, rows, blocks, columns // blocks if blocks else 0).float()
        zeros: Tensor | float = float(1 << layer.bits - 1)
        if layer.zeros is not None:
            own = unpacked(layer.zeros[index], layer.bits)
            own = own[..., :blocks] if block else own[:, :rows, None]
            zeros = own[..., None].float()
        return ((codes - zeros) * scales).to(dtype).view(count, rows, columns)

    return run


KERNELS: Final[TorchKernels] = {
    (MICROSOFT, "MoE"): TorchKernel(moe, _REALS),
    (MICROSOFT, "QMoE"): TorchKernel(qmoe, _REALS | {U8}),
}
