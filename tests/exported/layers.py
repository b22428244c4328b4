"""Layers: products, convolutions, pools, norms, recurrences, attention, embeddings, activations."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from tests.exported.module_case import ModuleCase, call, f32, i64, layer


class Recurrent(nn.Module):
    """A recurrence with its last state beside the outputs."""

    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.cell = kind(5, 6, batch_first=True, **options)

    def forward(self, x: Tensor) -> Any:
        y, state = self.cell(x)
        return (y, *state) if isinstance(state, tuple) else (y, state)


class Stated(nn.Module):
    """A recurrence that is given its first state."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(5, 6)

    def forward(self, x: Tensor, h: Tensor) -> Any:
        return self.cell(x, h)


class Cells(nn.Module):
    """A cell called step by step, the steps unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 6)
        c = torch.zeros(x.shape[0], 6)
        for i in range(3):
            h, c = self.cell(x[:, i], (h, c))
        return h


class SelfAttention(nn.Module):
    """MultiheadAttention of a tensor with itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        return self.attention(x, x, x, attn_mask=mask, need_weights=mask is None)


class Padded(nn.Module):
    """MultiheadAttention that leaves out keys of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        y, _ = self.attention(x, x, x, key_padding_mask=padding)
        return y


class Bag(nn.Module):
    """An EmbeddingBag over bags of equal length."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4, mode=mode)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.bag(x)
        return y


class Residual(nn.Module):
    """Two convolutions and a sum, as ResNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


class Positions(nn.Module):
    """Embeddings of tokens and of their places, as GPT-2 has them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(32, 8)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(0, ids.shape[-1], dtype=torch.long).unsqueeze(0)
        y: Tensor = self.tokens(ids) + self.places(places)
        return y


class FixedPositions(nn.Module):
    """Places of which there are always as many: a constant arange in front of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.places(torch.arange(16).unsqueeze(0)).mean(1) + x
        return y


class Rotary(nn.Module):
    """Rotary positions on queries."""

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        steps = torch.arange(half, dtype=torch.float32) / half
        angles = torch.outer(torch.arange(x.shape[1], dtype=torch.float32), 10000.0**-steps)
        doubled = torch.cat((angles, angles), -1)
        swapped = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * doubled.cos() + swapped * doubled.sin()


class Groups(nn.Module):
    """Channels shuffled between groups, as ShuffleNet does."""

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)


class Windows(nn.Module):
    """Windows of an image, as Swin takes them, and back."""

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        parts = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, c)
        parts = parts - parts.mean(1, keepdim=True)
        return parts.view(b, h // 2, w // 2, 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)


def _causal(x: Tensor) -> Tensor:
    length = x.shape[-2]
    mask = torch.full((length, length), float("-inf")).triu(1)
    return torch.softmax(x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5 + mask, -1) @ x


def _image(n: int) -> tuple[Tensor, ...]:
    return (f32(n, 4, 9, 8),)


def _sized(n: int) -> tuple[Tensor, ...]:
    return (f32(2, 4, n + 6, n + 5),)


def _line(n: int) -> tuple[Tensor, ...]:
    return (f32(n, 4, 11),)


def _rows(n: int) -> tuple[Tensor, ...]:
    return (f32(n, 6),)


def _steps(n: int) -> tuple[Tensor, ...]:
    return (f32(2, n + 2, 8),)


PRODUCTS = (
    layer("linear", lambda: nn.Linear(6, 3), _rows),
    layer("linear without bias", lambda: nn.Linear(8, 3, bias=False), _steps),
    layer("bilinear", lambda: nn.Bilinear(6, 6, 3), lambda n: (f32(n, 6), f32(n, 6))),
    call("matmul of batches", torch.matmul, lambda n: (f32(n, 3, 4), f32(4, 5))),
    call("matmul of a vector", torch.matmul, lambda n: (f32(n, 4), f32(4))),
    call("bmm", torch.bmm, lambda n: (f32(n, 3, 4), f32(n, 4, 2))),
    call(
        "baddbmm",
        lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2),
        lambda n: (f32(n, 3, 2), f32(n, 3, 4), f32(n, 4, 2)),
    ),
    call(
        "addmm",
        lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=0.5),
        lambda n: (f32(3), f32(n, 4), f32(4, 3)),
    ),
    call("outer", torch.outer, lambda n: (f32(n), f32(4))),
    call(
        "einsum of heads",
        lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
        lambda n: (f32(n, 2, 3, 4), f32(n, 2, 5, 4)),
    ),
    call("einsum of a trace", lambda x: torch.einsum("bii->b", x), lambda n: (f32(n, 4, 4),)),
    call(
        "einsum with sums",
        lambda x, y: torch.einsum("bij,jk->ik", x, y),
        lambda n: (f32(n, 3, 4), f32(4, 5)),
    ),
    call(
        "tensordot",
        lambda x, y: torch.tensordot(x, y, dims=([1, 2], [0, 1])),
        lambda n: (f32(n, 3, 4), f32(3, 4, 5)),
    ),
    call("cdist", torch.cdist, lambda n: (f32(n, 4), f32(5, 4)), 1e-3),
    call(
        "cosine similarity",
        lambda x, y: fn.cosine_similarity(x, y, dim=1),
        lambda n: (f32(n, 6), f32(n, 6)),
    ),
)

CONVOLUTIONS = (
    layer("conv1d", lambda: nn.Conv1d(4, 6, 3), _line),
    layer(
        "conv1d, causal",
        lambda: nn.Sequential(nn.ConstantPad1d((2, 0), 0.0), nn.Conv1d(4, 4, 3)),
        lambda n: (f32(2, 4, n + 5),),
    ),
    layer("conv2d", lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), _image),
    layer("conv2d, any size", lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), _sized),
    layer("conv2d, same", lambda: nn.Conv2d(4, 6, (3, 2), padding="same"), _image),
    layer("conv2d, dilated", lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=2), _image),
    layer("conv2d, depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), _image),
    layer("conv2d, grouped", lambda: nn.Conv2d(4, 6, 3, groups=2), _image),
    layer(
        "conv2d, mirrored", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), _image
    ),
    layer(
        "conv2d, circular", lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), _image
    ),
    layer("conv3d", lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), lambda n: (f32(n, 2, 4, 5, 4),)),
    layer("transposed 1d", lambda: nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1), _line),
    layer(
        "transposed 2d",
        lambda: nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1),
        _image,
    ),
    layer(
        "transposed 2d, grouped", lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), _image
    ),
    layer("residual", lambda: Residual(), _image),
    call("unfold", lambda x: fn.unfold(x, 3, padding=1, stride=2), _image),
    call("unfold, any size", lambda x: fn.unfold(x, 2), _sized),
    call("fold", lambda x: fn.fold(x, (5, 6), 2), lambda n: (f32(n, 12, 20),)),
    call(
        "fold of unfold",
        lambda x: fn.fold(fn.unfold(x, 3, padding=1), (6, 6), 3, padding=1),
        lambda n: (f32(n, 2, 6, 6),),
    ),
    call("pixel shuffle", lambda x: fn.pixel_shuffle(x, 2), _image),
    call("pixel unshuffle", lambda x: fn.pixel_unshuffle(x, 2), lambda n: (f32(n, 2, 6, 4),)),
    layer("channel shuffle", lambda: Groups(), _image),
)

POOLS = (
    call("max pool 1d", lambda x: fn.max_pool1d(x, 3, 2), _line),
    call("max pool 2d", lambda x: fn.max_pool2d(x, 3, 2, 1), _image),
    call("max pool, rounded up", lambda x: fn.max_pool2d(x, 3, 2, ceil_mode=True), _image),
    call(
        "max pool, rounded up, any size",
        lambda x: fn.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        _sized,
    ),
    call("max pool, dilated", lambda x: fn.max_pool2d(x, 2, 1, dilation=2), _image),
    call("max pool with places", lambda x: fn.max_pool2d(x, 2, return_indices=True), _image),
    call("max pool 3d", lambda x: fn.max_pool3d(x, 2), lambda n: (f32(n, 2, 4, 5, 4),)),
    call("average pool 1d", lambda x: fn.avg_pool1d(x, 3, 2, 1), _line),
    call("average pool 2d", lambda x: fn.avg_pool2d(x, 3, 2, 1), _image),
    call("average pool, rounded up", lambda x: fn.avg_pool2d(x, 3, 2, ceil_mode=True), _image),
    call(
        "average pool, rounded up, padded",
        lambda x: fn.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        _image,
    ),
    call(
        "average pool without padding",
        lambda x: fn.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        _image,
    ),
    call("average pool 3d", lambda x: fn.avg_pool3d(x, 2), lambda n: (f32(n, 2, 4, 5, 4),)),
    call("adaptive average", lambda x: fn.adaptive_avg_pool2d(x, (3, 4)), _image),
    call("adaptive average to one", lambda x: fn.adaptive_avg_pool2d(x, 1), _sized),
    call("adaptive average along one", lambda x: fn.adaptive_avg_pool2d(x, (None, 1)), _image),
    call(
        "adaptive maximum",
        lambda x: fn.adaptive_max_pool2d(x, (3, 2)),
        lambda n: (f32(n, 4, 9, 8),),
    ),
    call("lp pool", lambda x: fn.lp_pool2d(x.abs() + 0.1, 2, 3, 2), _image),
)

NORMS = (
    layer("batch norm 1d", lambda: nn.BatchNorm1d(6).eval(), _rows),
    layer("batch norm 2d", lambda: nn.BatchNorm2d(4), _image),
    layer("instance norm", lambda: nn.InstanceNorm2d(4, affine=True), _image),
    layer("layer norm", lambda: nn.LayerNorm(8), _steps),
    layer(
        "layer norm of two axes", lambda: nn.LayerNorm((3, 8), eps=1e-3), lambda n: (f32(n, 3, 8),)
    ),
    layer("group norm", lambda: nn.GroupNorm(2, 4), _image),
    layer("group norm, any size", lambda: nn.GroupNorm(2, 4), _sized),
    layer("rms norm", lambda: nn.RMSNorm(8), _steps),
    layer("local response norm", lambda: nn.LocalResponseNorm(3), _image),
    call("normalize", lambda x: fn.normalize(x, dim=1), _rows),
    call("norm of rows", lambda x: torch.linalg.vector_norm(x, 2, dim=1, keepdim=True), _rows),
    call("norm by one", lambda x: torch.norm(x, p=1), _rows),
)

RECURRENCES = (
    layer("lstm", lambda: Recurrent(nn.LSTM), lambda n: (f32(2, n, 5),)),
    layer("lstm, two layers", lambda: Recurrent(nn.LSTM, num_layers=2), lambda n: (f32(n, 4, 5),)),
    layer(
        "lstm, both ways", lambda: Recurrent(nn.LSTM, bidirectional=True), lambda n: (f32(n, 4, 5),)
    ),
    layer("lstm, projected", lambda: Recurrent(nn.LSTM, proj_size=3), lambda n: (f32(n, 4, 5),)),
    layer("gru", lambda: Recurrent(nn.GRU), lambda n: (f32(n, 4, 5),)),
    layer(
        "gru, both ways",
        lambda: Recurrent(nn.GRU, bidirectional=True, num_layers=2),
        lambda n: (f32(2, n, 5),),
    ),
    layer("gru, given a state", lambda: Stated(), lambda n: (f32(4, n, 5), f32(1, n, 6))),
    layer("rnn", lambda: Recurrent(nn.RNN, nonlinearity="relu"), lambda n: (f32(n, 4, 5),)),
    layer("lstm cells", lambda: Cells(), lambda n: (f32(n, 3, 4),)),
)

ATTENTIONS = (
    layer("attention", lambda: SelfAttention(), _steps),
    layer(
        "attention with a mask",
        lambda: SelfAttention(),
        lambda n: (f32(2, n + 2, 8), torch.full((n + 2, n + 2), -1e4).triu(1)),
    ),
    layer(
        "attention with padding",
        lambda: Padded(),
        lambda n: (f32(n, 4, 8), torch.arange(4).expand(n, 4) > 2),
    ),
    call(
        "scaled dot product",
        fn.scaled_dot_product_attention,
        lambda n: (f32(n, 2, 5, 4), f32(n, 2, 6, 4), f32(n, 2, 6, 4)),
    ),
    call(
        "scaled dot product, causal",
        lambda q, k, v: fn.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda n: (f32(2, 2, n, 4), f32(2, 2, n, 4), f32(2, 2, n, 4)),
    ),
    call(
        "scaled dot product, masked",
        lambda q, k, v, m: fn.scaled_dot_product_attention(q, k, v, attn_mask=m),
        lambda n: (
            f32(n, 2, 5, 4),
            f32(n, 2, 6, 4),
            f32(n, 2, 6, 4),
            torch.ones(5, 6, dtype=torch.bool).tril(),
        ),
    ),
    call(
        "scaled dot product, biased",
        lambda q, k, v, m: fn.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3),
        lambda n: (f32(n, 2, 5, 4), f32(n, 2, 6, 4), f32(n, 2, 6, 4), f32(n, 1, 5, 6)),
    ),
    call(
        "scaled dot product, shared heads",
        lambda q, k, v: fn.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda n: (f32(n, 4, 5, 4), f32(n, 2, 6, 4), f32(n, 2, 6, 4)),
    ),
    call("causal by hand", _causal, _steps),
    layer("encoder layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), _steps),
    layer(
        "decoder layer",
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
        lambda n: (f32(n, 3, 8), f32(n, 4, 8)),
    ),
    layer("rotary", lambda: Rotary(), _steps),
    layer("windows", lambda: Windows(), lambda n: (f32(n, 4, 6, 3),)),
)

EMBEDDINGS = (
    layer("embedding", lambda: nn.Embedding(10, 4), lambda n: (i64(10, n, 3),)),
    layer(
        "embedding with padding",
        lambda: nn.Embedding(10, 4, padding_idx=0),
        lambda n: (i64(10, n),),
    ),
    layer("bag of sums", lambda: Bag("sum"), lambda n: (i64(10, n, 3),)),
    layer("bag of means", lambda: Bag("mean"), lambda n: (i64(10, n, 3),)),
    layer("bag of maxima", lambda: Bag("max"), lambda n: (i64(10, n, 3),)),
    layer("tokens and places", lambda: Positions(), lambda n: (i64(20, 2, n),)),
    layer("fixed places", lambda: FixedPositions(), lambda n: (f32(n, 8),)),
    call("one hot", lambda x: fn.one_hot(x, 5), lambda n: (i64(5, n, 2),)),
)

_ACTIVATIONS: dict[str, Any] = {
    "relu6": fn.relu6,
    "elu": fn.elu,
    "selu": fn.selu,
    "celu": fn.celu,
    "gelu": fn.gelu,
    "gelu by tanh": lambda x: fn.gelu(x, approximate="tanh"),
    "silu": fn.silu,
    "mish": fn.mish,
    "hardswish": fn.hardswish,
    "hardsigmoid": fn.hardsigmoid,
    "hardtanh": fn.hardtanh,
    "leaky relu": lambda x: fn.leaky_relu(x, 0.2),
    "softplus": lambda x: fn.softplus(x, 2, 3),
    "softsign": fn.softsign,
    "tanhshrink": fn.tanhshrink,
    "softshrink": fn.softshrink,
    "hardshrink": fn.hardshrink,
    "log sigmoid": fn.logsigmoid,
    "threshold": lambda x: fn.threshold(x, 0.1, 9.0),
    "softmax": lambda x: fn.softmax(x, 0),
    "log softmax": lambda x: fn.log_softmax(x, -1),
    "softmin": lambda x: fn.softmin(x, 1),
    "glu": lambda x: fn.glu(x, -1),
}
ACTIVATIONS = (
    *(call(name, function, _rows) for name, function in _ACTIVATIONS.items()),
    layer("prelu", lambda: nn.PReLU(4), _image),
    call("dropout, not training", lambda x: fn.dropout(x, 0.5, training=False) + 1, _rows),
)

CASES: tuple[ModuleCase, ...] = (
    *PRODUCTS,
    *CONVOLUTIONS,
    *POOLS,
    *NORMS,
    *RECURRENCES,
    *ATTENTIONS,
    *EMBEDDINGS,
    *ACTIVATIONS,
)
