"""Functions of tensors: shapes, indices, order, reductions, arithmetic, losses, control flow."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

from tests.exported.module_case import ModuleCase, call, f32, i64, positive, truths


def _put(x: Tensor, rows: Tensor, value: Tensor) -> Tensor:
    y = x.clone()
    y[rows] = value
    return y


def _put_part(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3] = 0.5
    y[..., -1] += 1
    return y


def _rows(n: int) -> tuple[Tensor, ...]:
    return (f32(n, 6),)


def _cube(n: int) -> tuple[Tensor, ...]:
    return (f32(n, 3, 4),)


def _image(n: int) -> tuple[Tensor, ...]:
    return (f32(2, 3, n + 3, 6),)


def _wholes(n: int) -> tuple[Tensor, ...]:
    return (i64(9, n, 4, low=-9), i64(5, n, 4, low=1))


def _signed(n: int) -> tuple[Tensor, ...]:
    return (i64(9, n, 4, low=-9), torch.tensor([[-2, 3, -4, 1]]))


def _classes(n: int) -> tuple[Tensor, ...]:
    return (f32(n, 5), i64(5, n))


def _pair(n: int) -> tuple[Tensor, ...]:
    return (f32(n, 5), f32(n, 5) * 0.5 + 0.1)


SHAPES = (
    call("arange of a size", lambda x: torch.arange(x.shape[0]) * 2, _rows),
    call("arange by floats", lambda x: torch.arange(0, 2, 0.25) + x[:, :1], _rows),
    call("arange, fixed", lambda x: torch.arange(32).unsqueeze(0) + x[:, :1].long(), _rows),
    call("arange backwards", lambda x: torch.arange(x.shape[0], -1, -1), _rows),
    call("arange from a size", lambda x: torch.arange(x.shape[1], x.shape[1] + x.shape[0]), _rows),
    call(
        "variance at fixed places",
        lambda x: x.index_select(1, torch.arange(4)).var(1),
        _rows,
    ),
    call("linspace", lambda x: torch.linspace(-1, 1, 7) + x[:, :1], _rows),
    call("linspace of a size", lambda x: torch.linspace(0, 1, x.shape[0]), _rows),
    call(
        "meshgrid",
        lambda x: torch.stack(
            torch.meshgrid(torch.arange(x.shape[0]), torch.arange(x.shape[1]), indexing="ij"), -1
        ),
        _rows,
    ),
    call(
        "meshgrid of pixels",
        lambda x: (
            torch.meshgrid(torch.linspace(0, 1, 3), torch.linspace(0, 2, 4), indexing="xy")[0]
            + x.mean()
        ),
        _rows,
    ),
    call("view of sizes", lambda x: x.view(x.size(0), -1), _cube),
    call("view as heads", lambda x: x.view(x.shape[0], -1, 2, 2).transpose(1, 2), _cube),
    call("reshape to one", lambda x: x.reshape(-1), _cube),
    call("reshape by division", lambda x: x.reshape(x.shape[0], x.shape[1] // 3, 12), _cube),
    call("flatten", lambda x: torch.flatten(x, 1), _cube),
    call("unflatten", lambda x: x.unflatten(1, (2, 3)), _rows),
    call(
        "expand as",
        lambda x, y: x.unsqueeze(1).expand_as(y) + y,
        lambda n: (f32(n, 4), f32(n, 3, 4)),
    ),
    call("expand of a size", lambda x: x[:1].expand(x.shape[0], -1), _rows),
    call("repeat", lambda x: x.repeat(2, 1, 3), _cube),
    call("repeat by a size", lambda x: torch.ones(1, 3).repeat(x.shape[0], 1) * x[:, :3], _rows),
    call("tile", lambda x: torch.tile(x, (2, 2)), _rows),
    call("repeat interleave", lambda x: x.repeat_interleave(3, dim=1), _rows),
    call(
        "stack and cat",
        lambda x, y: torch.cat((torch.stack((x, y), 1).flatten(1), x), 1),
        lambda n: (f32(n, 3), f32(n, 3)),
    ),
    call("split", lambda x: x.split([1, 2, 3], dim=1), _rows),
    call("split by size", lambda x: x.split(2, dim=1), _rows),
    call("chunk", lambda x: x.chunk(4, dim=1), _rows),
    call("unbind", lambda x: x.unbind(1), _cube),
    call("narrow", lambda x: x.narrow(1, 1, 3), _rows),
    call("select", lambda x: x.select(1, -1), _cube),
    call("permute", lambda x: x.permute(2, 0, 1).contiguous(), _cube),
    call("movedim", lambda x: x.movedim(0, -1), _cube),
    call("squeeze", lambda x: x[:, :1].squeeze(1), _cube),
    call("steps", lambda x: x[:, 1:6:2], _rows),
    call("last of each", lambda x: x[:, -2:], _rows),
    call("up to a size", lambda x: x[:, : x.shape[0] - 1], lambda n: (f32(n, n + 3),)),
    call("half of a size", lambda x: x[: x.shape[0] // 2], _rows),
    call("all but the last", lambda x: (x[:-1], x[1:]), _rows),
    call("roll", lambda x: torch.roll(x, (1, -2), (0, 1)), _rows),
    call("flip", lambda x: x.flip(0, 1), _rows),
    call("rot90", lambda x: torch.rot90(x, 1, (0, 1)), _rows),
    call("diagonal", lambda x: torch.diagonal(x, 0, -2, -1), lambda n: (f32(n, 4, 4),)),
    call("triangles", lambda x: (x.tril(), x.triu(1)), _rows),
    call("zeros like", lambda x: torch.zeros_like(x) + torch.ones_like(x[:1]), _rows),
    call("full of a size", lambda x: torch.full((x.shape[0], 2), 3.0) * x[:, :2], _rows),
    call("eye", lambda x: torch.eye(6) @ x.t(), _rows),
    call("number of elements", lambda x: x.sum() / x.numel(), _cube),
    call("windows along a line", lambda x: x.unfold(1, 3, 2), _rows),
    call("pad by zero", lambda x: fn.pad(x, (1, 2)), _rows),
    call("pad by less", lambda x: fn.pad(x, (-1, 2, 1, 0), value=0.5), _rows),
    call("pad by reflection", lambda x: fn.pad(x, (2, 1, 1, 2), mode="reflect"), _image),
    call("pad by the edge", lambda x: fn.pad(x, (2, 1, 0, 2), mode="replicate"), _image),
    call("pad around", lambda x: fn.pad(x, (2, 1, 1, 2), mode="circular"), _image),
    call(
        "pad to a multiple",
        lambda x: fn.pad(x, (0, (4 - x.shape[1] % 4) % 4)),
        lambda n: (f32(2, n + 2),),
    ),
    call("interpolate to nearest", lambda x: fn.interpolate(x, scale_factor=2), _image),
    call("interpolate to a size", lambda x: fn.interpolate(x, (7, 5), mode="bilinear"), _image),
    call(
        "interpolate by corners",
        lambda x: fn.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True),
        _image,
    ),
    call(
        "interpolate by cubes",
        lambda x: fn.interpolate(x, scale_factor=2, mode="bicubic"),
        _image,
        1e-3,
    ),
    call("interpolate a line", lambda x: fn.interpolate(x, scale_factor=2, mode="linear"), _cube),
    call(
        "interpolate as another",
        lambda x, y: fn.interpolate(x, y.shape[2:], mode="nearest"),
        lambda n: (f32(2, 3, 4, 5), f32(2, 3, n + 5, 8)),
    ),
    call(
        "interpolate areas",
        lambda x: fn.interpolate(x, (2, 3), mode="area"),
        lambda n: (f32(n, 3, 4, 6),),
    ),
    call(
        "grid sample",
        lambda x, g: fn.grid_sample(x, g, align_corners=False),
        lambda n: (f32(n, 3, 5, 6), f32(n, 4, 4, 2).tanh()),
    ),
    call(
        "affine grid",
        lambda t: fn.affine_grid(t, (3, 2, 4, 5), align_corners=True),
        lambda n: (f32(3, 2, 3),),
    ),
)

INDICES = (
    call("gather", lambda x, i: x.gather(1, i), lambda n: (f32(n, 6), i64(6, n, 3))),
    call("index select", lambda x, i: x.index_select(1, i), lambda n: (f32(n, 6), i64(6, 4))),
    call("index by rows", lambda x, i: x[i], lambda n: (f32(5, 6), i64(5, n, low=-5))),
    call("index by pairs", lambda x, i, j: x[i, j], lambda n: (f32(5, 6), i64(5, n), i64(6, n))),
    call(
        "index by rows and columns",
        lambda x, i, j: x[i[:, None], j],
        lambda n: (f32(5, 6), i64(5, n), i64(6, 2)),
    ),
    call("index after an axis", lambda x, i: x[:, i, 1:], lambda n: (f32(2, 5, 4), i64(5, n))),
    call("take", lambda x, i: x.take(i), lambda n: (f32(5, 6), i64(30, n))),
    call("take along", lambda x: torch.take_along_dim(x, x.argsort(1), 1), _rows),
    call("put rows", _put, lambda n: (f32(7, 6), torch.tensor([0, 3, 5])[:n], f32(min(n, 3), 6))),
    call("put a part", _put_part, _rows),
    call("put by mask", lambda x: torch.where(x > 0, x, torch.zeros_like(x)), _rows),
    call(
        "index put, added",
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda n: (f32(7), i64(7, n), f32(n)),
    ),
    call(
        "index add",
        lambda x, i, v: x.index_add(0, i, v),
        lambda n: (f32(7, 2), i64(7, n), f32(n, 2)),
    ),
    call(
        "index copy",
        lambda x, i, v: x.index_copy(0, i, v),
        lambda n: (f32(7, 2), torch.arange(n), f32(n, 2)),
    ),
    call(
        "scatter",
        lambda x, i, v: x.scatter(1, i, v),
        lambda n: (f32(n, 6), torch.arange(3).expand(n, 3), f32(n, 3)),
    ),
    call(
        "scatter a number", lambda x, i: x.scatter(1, i, 9.0), lambda n: (f32(n, 6), i64(6, n, 3))
    ),
    call(
        "scatter add",
        lambda x, i, v: x.scatter_add(1, i, v),
        lambda n: (f32(n, 6), i64(6, n, 4), f32(n, 4)),
    ),
    call(
        "scatter the largest",
        lambda x, i, v: x.scatter_reduce(1, i, v, reduce="amax"),
        lambda n: (f32(n, 6), i64(6, n, 4), f32(n, 4)),
    ),
    call("masked fill", lambda x, m: x.masked_fill(m, -1e9), lambda n: (f32(n, 6), truths(n, 6))),
    call(
        "masked scatter",
        lambda x, m, v: x.masked_scatter(m, v),
        lambda n: (f32(n, 6), truths(n, 6), f32(n, 6)),
    ),
    call("masked select", lambda x: torch.masked_select(x, x > 0), _rows),
    call("nonzero", lambda x: torch.nonzero(x > 0), _rows),
    call("rows of a mask", lambda x: x[x[:, 0] > -9], _rows),
    call("top k", lambda x: x.topk(3, dim=1), _rows),
    call("top k, smallest", lambda x: x.topk(2, dim=0, largest=False), _rows),
    call("sort", lambda x: x.sort(dim=1, descending=True), _rows),
    call("argsort", lambda x: x.argsort(dim=0), _rows),
    call("kthvalue", lambda x: x.kthvalue(2, 1).values, _rows),
    call("median", lambda x: x.median(1).values, _rows),
    call("argmax", lambda x: (x.argmax(1), x.argmin(0, keepdim=True), x.argmax()), _rows),
    call("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5])), _rows),
    call("searchsorted", lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 0.5]), x), _rows),
)

REDUCTIONS = (
    call("sums", lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)), _cube),
    call("means", lambda x: (x.mean(), x.mean(-1, keepdim=True)), _cube),
    call("products", lambda x: (x.prod(), x.prod(1)), _cube),
    call("extremes", lambda x: (x.amax((1, 2)), x.amin(0), x.max(), x.min(1).values), _cube),
    call("max with places", lambda x: x.max(1), _cube),
    call("variance", lambda x: (x.var(1), x.std(0, unbiased=False)), _cube),
    call("variance and mean", lambda x: torch.var_mean(x, (1, 2)), _cube),
    call("logsumexp", lambda x: x.logsumexp(1), _cube),
    call("cumsum", lambda x: (x.cumsum(0), x.cumsum(-1)), _cube),
    call("cumsum of wholes", lambda x, y: x.cumsum(1) + y, _wholes),
    call("cumprod", lambda x: x.cumprod(1), _rows),
    call("cummax", lambda x: x.cummax(1).values, _rows),
    call("any and all", lambda x: ((x > 0).any(1), (x > -9).all()), _cube),
    call("count", lambda x: (x > 0).sum(1), _rows),
    call("nan mean", lambda x: torch.where(x > 1, torch.nan, x).nanmean(1), _rows),
    call("difference", lambda x: x.diff(dim=1), _rows),
)

ARITHMETIC = (
    call("division of wholes", lambda x, y: (x // y, x % y), _wholes),
    call("division of negatives", lambda x, y: (x // y, torch.remainder(x, y)), _signed),
    call("division cut off", lambda x, y: torch.div(x, y, rounding_mode="trunc"), _signed),
    call("division rounded down", lambda x, y: torch.div(x, y, rounding_mode="floor"), _signed),
    call("true division", lambda x, y: x / y, _signed),
    call("fmod", lambda x, y: torch.fmod(x, y), _signed),
    call("fmod of floats", lambda x: (torch.fmod(x, 0.7), torch.remainder(x, -0.7)), _rows),
    call("floor of floats", lambda x: torch.floor_divide(x, 0.3), _rows),
    call("by a number", lambda x, y: (x // 3, x % -4, x * 2 - y), _signed),
    call("bits", lambda x, y: (x & y, x | y, x ^ y, ~x), _wholes),
    call("shifts", lambda x, y: (y << 2, y >> 1), _wholes),
    call("logic", lambda x, y: ((x > 0) & (y > 2), (x > 0) | ~(y > 2), (x > 0) ^ (y > 2)), _wholes),
    call("comparisons", lambda x, y: (x == y, x != y, x >= y, x < 2), _wholes),
    call("where", lambda x, y: torch.where(x > y, x, y + 10), _wholes),
    call("where of a number", lambda x: torch.where(x > 0, 1.0, x), _rows),
    call("clamp", lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clamp(max=-0.1)), _rows),
    call("clamp of wholes", lambda x, y: x.clamp(-2, 3) + y, _wholes),
    call("clamp by tensors", lambda x, y: torch.clamp(x, -y.abs(), y.abs()), _pair),
    call("rounding", lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()), _rows),
    call("round to decimals", lambda x: torch.round(x, decimals=1), _rows),
    call("powers", lambda x: (x.pow(2), x**3, 2.0**x, x.abs().pow(0.5)), _rows),
    call("powers of wholes", lambda x, y: (y**2, y.pow(3)), _wholes),
    call(
        "roots",
        lambda x: (x.sqrt(), x.rsqrt(), x.reciprocal(), x.log(), x.log2(), x.log1p()),
        lambda n: (positive(n, 6),),
    ),
    call("exponentials", lambda x: (x.exp(), x.expm1(), x.exp2(), x.sigmoid(), x.tanh()), _rows),
    call("angles", lambda x: (x.sin(), x.cos(), x.atan(), torch.atan2(x, x + 0.3)), _rows),
    call(
        "hyperbolas", lambda x: (x.sinh(), x.cosh(), x.asinh(), x.clamp(-0.9, 0.9).atanh()), _rows
    ),
    call("error function", lambda x: (x.erf(), x.erfc()), _rows),
    call("signs", lambda x: (x.sign(), x.abs(), -x, torch.copysign(x, -x)), _rows),
    call(
        "extremes of two",
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y)),
        _pair,
    ),
    call(
        "nan and infinity",
        lambda x: (
            (x / (x - x)).isnan(),
            (x / 0.0).isinf(),
            torch.nan_to_num(x / 0.0, 1.0, 2.0, 3.0),
        ),
        _rows,
    ),
    call(
        "nan through extremes",
        lambda x: torch.maximum(torch.where(x > 0, torch.nan, x), torch.zeros(1)),
        _rows,
    ),
    call("lerp", lambda x, y: torch.lerp(x, y, 0.3), _pair),
    call("addcmul", lambda x, y: torch.addcdiv(torch.addcmul(x, x, y, value=2), x, y), _pair),
    call("types", lambda x: (x.long(), x.int().float() / 2, x.double(), (x > 0).float()), _rows),
    call("type promotion", lambda x, y: x * 0.5 + y.float(), _wholes),
    call("half", lambda x: (x.half() * 2).float(), _rows, 1e-2),
    call("hypot", torch.hypot, _pair, 1e-3),
    call("logit", lambda x: torch.logit(x.sigmoid(), eps=1e-6), _rows, 1e-3),
    call("cross", lambda x, y: torch.linalg.cross(x, y), lambda n: (f32(n, 3), f32(n, 3) + 1)),
)

LOSSES = (
    call("cross entropy", fn.cross_entropy, _classes),
    call(
        "cross entropy, smoothed",
        lambda x, y: fn.cross_entropy(x, y, label_smoothing=0.1),
        _classes,
    ),
    call(
        "cross entropy, some ignored",
        lambda x, y: fn.cross_entropy(x, y, ignore_index=2, reduction="sum"),
        _classes,
    ),
    call(
        "cross entropy of pixels",
        lambda x, y: fn.cross_entropy(x, y, reduction="none"),
        lambda n: (f32(n, 3, 2, 4), i64(3, n, 2, 4)),
    ),
    call(
        "nll",
        lambda x, y: fn.nll_loss(fn.log_softmax(x, 1), y, torch.tensor([1.0, 2, 3, 4, 5])),
        _classes,
    ),
    call("squares", fn.mse_loss, _pair),
    call("absolute", lambda x, y: fn.l1_loss(x, y, reduction="sum"), _pair),
    call("smooth", lambda x, y: fn.smooth_l1_loss(x, y, beta=0.5), _pair),
    call("huber", lambda x, y: fn.huber_loss(x, y, delta=0.3), _pair),
    call(
        "binary cross entropy",
        lambda x, y: fn.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
        _pair,
    ),
    call(
        "binary cross entropy of logits",
        lambda x, y: fn.binary_cross_entropy_with_logits(
            x, y.sigmoid(), pos_weight=torch.tensor(2.0)
        ),
        _pair,
    ),
    call(
        "divergence",
        lambda x, y: fn.kl_div(fn.log_softmax(x, 1), fn.softmax(y, 1), reduction="batchmean"),
        _pair,
    ),
    call("hinge", lambda x, y: fn.hinge_embedding_loss(x, torch.where(y > 0, 1.0, -1.0)), _pair),
    call("margin", lambda x, y: fn.margin_ranking_loss(x, y, torch.sign(x), margin=0.1), _pair),
    call("triplet", lambda x, y: fn.triplet_margin_loss(x, y, -x), _pair),
    call("poisson", lambda x, y: fn.poisson_nll_loss(x, y.abs()), _pair),
    call("soft margin", lambda x, y: fn.soft_margin_loss(x, torch.sign(y)), _pair),
)


class Chosen(nn.Module):
    """torch.cond on what is in a tensor."""

    def forward(self, x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2 - 1, (x,))


class Doubling(nn.Module):
    """A while loop, by TorchScript."""

    def forward(self, x: Tensor) -> Tensor:
        i = 0
        while i < x.size(0):
            x = x * 0.5 + 1.0
            i += 1
        return x


class Branching(nn.Module):
    """An if on a size and one on data, by TorchScript."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2 if x.size(0) > 3 else x - 1
        if bool((x.sum() > 0).item()):
            y = y + 1
        return y


class Collecting(nn.Module):
    """A loop that collects rows in a list, by TorchScript."""

    def forward(self, x: Tensor) -> Tensor:
        rows: list[Tensor] = []
        for i in range(x.size(0)):
            rows.append(x[i] * i)  # noqa: PERF401 - TorchScript knows no such comprehension
        return torch.stack(rows)


class Counting(nn.Module):
    """A loop with an early end, by TorchScript."""

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.size(1))
        for i in range(x.size(0)):
            total = total + x[i]
            if bool((total.sum() > 1.5).item()):
                break
        return total


CONTROL = (
    ModuleCase("cond", Chosen, _rows),
    ModuleCase("while loop", Doubling, _rows, is_scripted=True),
    ModuleCase("branches", Branching, _rows, is_scripted=True),
    ModuleCase("collected rows", Collecting, _rows, is_scripted=True),
    ModuleCase("loop with a break", Counting, _rows, is_scripted=True),
)

CASES: tuple[ModuleCase, ...] = (*SHAPES, *INDICES, *REDUCTIONS, *ARITHMETIC, *LOSSES, *CONTROL)
