"""Indexing, einsum, sorting, scans, FFT, linear algebra and control flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.dynamo.modules.case import Function, case, f32, fixed, flags, function, ids, value

X, Y, SQUARE = f32(4, 6), f32(4, 6), f32(3, 4, 4)
ROWS = ids(4, 5)
_LAPACK = "torch calls LAPACK"
_COMPLEX = "complex numbers have no kernels"
_DATA = "how large its result is depends on data"


def _lapack(*names: str) -> dict[str, str]:
    effects = {"with_effects": "the check of LAPACK's error code"}
    return {f"aten.{name}.default": _LAPACK for name in names} | effects


class Experts(nn.Module):
    """A mixture of experts: each row goes through the two with the largest scores."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(6, 3)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        total = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            weight = (scores * (chosen == i)).sum(-1, keepdim=True)
            total = total + weight * expert(x)
        return total


class Branch(nn.Module):
    """A branch on data, by torch.cond."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: self.a(v).sin(), lambda v: self.b(v).cos(), (x,))


class ModeBranch(nn.Module):
    """Python branches, on the mode and on a size, and a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x) if i % 2 else torch.tanh(layer(x))
        if self.training and x.shape[0] > 2:
            x = x + torch.randn_like(x)
        return x


class DataBranch(nn.Module):
    """A Python branch on data: TorchDynamo ends the graph there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * 2 if y.sum() > 0 else y - 1


class Rotary(nn.Module):
    """Rotary positions, with tables in buffers."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(5.0), 0.1 ** torch.arange(0, 4, 2))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin


class Average(nn.Module):
    """A running average in a buffer, written in place, and read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


class Outputs(nn.Module):
    """Outputs in a dictionary, one of them an input, and one a view."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"x": x, "view": (x * 2)[1:], "pair": (x.sum(), [x.mean(0), None, 3])}


def _assign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[1:3, ::2] = y[:2, :3]
    z[:, -1] += 2
    return z


CASES = {
    "slices": function(lambda x: (x[1:, ::2], x[..., -1], x[:, None, 2:4]), X),
    "rows by index": function(lambda x, i: x[i], X, ROWS),
    "elements by index": function(lambda x, i: x[i, i], X, ROWS),
    "columns by index": function(lambda x, i: x[:, i, None], X, ROWS),
    "a row by a tensor": function(lambda x: x[torch.tensor([[0, -1], [2, 1]])], X),
    "rows where": function(
        lambda x, m: x[m],
        X,
        value(torch.tensor([True, False, True, True])),
        breaks=_DATA,
    ),
    "assignments": function(_assign, X, Y),
    "index_put": function(lambda x, y, i: x.index_put((i,), y[:1], accumulate=True), X, Y, ROWS),
    "gather": function(lambda x, i: x.gather(1, i), X, ids(6, 4, 3)),
    "scatter": function(
        lambda x, y: x.scatter(1, torch.tensor([[0, 2], [3, 1], [5, 4], [1, 0]]), y), X, f32(4, 2)
    ),
    "scatter_add": function(lambda x, y, i: x.scatter_add(1, i, y), X, Y, ids(6, 4, 6)),
    "scatter_reduce": function(
        lambda x, y, i: x.scatter_reduce(1, i, y, "mean"), X, Y, ids(6, 4, 6)
    ),
    "index_select": function(lambda x, i: x.index_select(1, i), X, ROWS),
    "index_add": function(lambda x, y, i: x.index_add(0, i, y), X, f32(5, 6), ROWS),
    "take_along_dim": function(lambda x, i: torch.take_along_dim(x, i, 1), X, ids(6, 4, 2)),
    "masked_fill": function(lambda x, m: x.masked_fill(m, -1e9).softmax(-1), X, flags(4, 6)),
    "where": function(lambda x, y, m: torch.where(m, x * 2, y.exp()), X, Y, flags(4, 6)),
    "tril": function(lambda x: (x.tril(-1), x.triu(1), x.diag_embed()), SQUARE),
    "diagonal": function(lambda x: (x.diagonal(1, 1, 2), torch.einsum("bii->b", x)), SQUARE),
    "roll, flip": function(lambda x: x.roll((1, 2), (0, 1)).flip(1), X),
    "repeat": function(lambda x: (x.repeat(2, 1, 3), x.repeat_interleave(2, 0), x.tile(2)), X),
    "split, stack": function(lambda x: torch.stack(x.split(2, 1)[::-1]).unbind(0), X),
    "unfold an axis": function(lambda x: x.unfold(1, 3, 2), X),
    "as strided": function(lambda x: x.as_strided((3, 2), (2, 1), 1) * 2, X),
    "matmuls by einsum": function(
        lambda a, b: torch.einsum("bij,bjk->bik", a, b), SQUARE, f32(3, 4, 2)
    ),
    "attention by einsum": function(
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1),
        f32(2, 3, 2, 4),
        f32(2, 5, 2, 4),
    ),
    "an outer product by einsum": function(
        lambda a, b: torch.einsum("i,j,...->...ij", a, b, a.sum()), f32(3), f32(4)
    ),
    "einsum with a weight": case(
        lambda: Function(lambda w, x: torch.einsum("...i,oi->...o", x, w), (5, 6)), X
    ),
    "tensordot": function(lambda a, b: torch.tensordot(a, b, ([1], [0])), X, f32(6, 2, 3)),
    "chained matmuls": function(lambda a, b: torch.linalg.multi_dot([a, b, a]), X, f32(6, 4)),
    "sort": function(lambda x: torch.sort(x, 1, descending=True), X),
    "argsort": function(lambda x: x.gather(0, x.argsort(0)), X),
    "topk": function(lambda x: torch.topk(x, 2, 0, largest=False), X),
    "kthvalue": function(lambda x: torch.kthvalue(x, 3, 1), X),
    "median": function(lambda x: x.median(1), X),
    "extremes": function(lambda x: (x.max(1), x.amin(0), x.aminmax(dim=1), x.argmax()), X),
    "cumsum": function(lambda x: (x.cumsum(0), x.cumprod(1)), X),
    "logcumsumexp": function(
        lambda x: x.logcumsumexp(1), X, in_torch={"aten.logcumsumexp.default": "a scan"}
    ),
    "moments": function(lambda x: (x.var(1), x.std(), x.mean((0, 1)), x.norm(dim=1)), X),
    "quantile": function(lambda x: x.quantile(0.3, dim=1), X),
    "histogram": function(
        lambda x, i: x.sum() + torch.bincount(i, minlength=4),
        X,
        ROWS,
        breaks=_DATA,
    ),
    "one-hot": function(
        lambda x, i: nn.functional.one_hot(i, 4).float() @ x,
        X,
        ROWS,
        in_torch={"aten._assert_async.msg": "the check of classes, which are data"},
    ),
    "buckets": function(
        lambda x: torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0])) * x, X
    ),
    "unique": function(
        lambda x, i: x.sum() * torch.unique(i).float(),
        X,
        ROWS,
        breaks=_DATA,
    ),
    "real FFT": function(
        lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=6),
        X,
        in_torch={"*": _COMPLEX},
    ),
    "FFT of both axes": function(
        lambda x: torch.fft.fft2(x).abs(),
        X,
        in_torch={"*": _COMPLEX},
    ),
    "solve": function(
        lambda a, b: torch.linalg.solve(a @ a.mT + torch.eye(4), b),
        SQUARE,
        f32(3, 4, 2),
        in_torch=_lapack("_linalg_solve_ex", "linalg_lu_solve"),
        atol=1e-3,
        rtol=1e-3,
    ),
    "Cholesky": function(
        lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(4)),
        SQUARE,
        in_torch=_lapack("linalg_cholesky_ex", "linalg_solve_triangular"),
        atol=1e-3,
        rtol=1e-3,
    ),
    "torch.cond": case(Branch, X, in_torch={"cond": "torch calls one of two compiled graphs"}),
    "branches and loops": case(ModeBranch, X),
    "a branch on data": case(DataBranch, X, breaks="the branch"),
    "mixture of experts": case(Experts, X),
    "rotary positions": case(Rotary, f32(2, 5, 4)),
    "a running average": case(Average, X),
    "outputs in a dictionary": case(Outputs, X),
    "noise": function(lambda x: x + torch.randn_like(x) * torch.rand(6) + torch.rand_like(x), X),
    "samples": function(
        lambda x: x.mean() + torch.multinomial(x.detach().softmax(-1), 2).float(),
        X,
        in_torch={"aten.multinomial.default": "it draws inside of its kernel"},
    ),
    "integers": function(
        lambda x, i: (i // 2) % 3 - i.abs() + (i << 1) + x.sum().long(), fixed(3), ROWS
    ),
    "casts": function(lambda x: x.to(torch.bfloat16).float() + x.double().float(), X),
    "numbers": function(lambda x: torch.arange(6) * x + torch.linspace(0, 1, 6) + torch.ones(6), X),
    "comparisons": function(lambda x, y: ((x > y) & ~(x == 0) | (y >= 1)).float() * x, X, Y),
    "clamps": function(lambda x, y: torch.maximum(x, y).clamp(-0.5, 1).clamp(min=y), X, Y),
    "powers": function(lambda x: (x.abs() + 0.1).pow(1.5) + x**3 + 2**x + x.square().sqrt(), X),
    "logarithms": function(lambda x: x.abs().add(1).log() + torch.logsumexp(x, 1, True), X),
    "a meshgrid": function(lambda x: torch.stack(torch.meshgrid(x[0], x[1], indexing="ij"), -1), X),
    "vmap": function(lambda x, y: torch.vmap(lambda a, b: (a * b).sum() + a)(x, y), X, Y),
}
