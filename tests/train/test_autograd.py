"""Gradient rules against the autograd of PyTorch, for ops that it has or that are easy to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import sardonyx
from sardonyx.train import gradient
from tests.op_cases import Array, Case, case, f32, f64, of
from tests.oracle import feeds_of, model_of
from tests.train import torch_ops
from tests.train.gradient_cases import apart, pos, sizes
from tests.train.sampling import grid

Forward = Callable[..., Any]  # of the case's floats
_INDEX = of([[0, 1, 1], [0, 0, 2]], np.int64)
_ZEROS = of([[2, 0, 3, 1], [0, 0, 5, 1], [2, 3, 4, 0.5]], np.float64)
_REGIONS = of([[1.2, 0.7, 5.3, 4.1], [0.3, 2.2, 1.4, 3.1], [-3.3, -2.1, 12.7, 9.4]], np.float64)
_NUMBERS = of([0, 1, 1], np.int64)

SAMPLING: list[tuple[Case, Forward]] = [
    *(
        (
            case("GridSample", f64(2, 3, 5, 6), grid(2, 4, 3), mode=mode, padding_mode=padding,
                 align_corners=corners),
            lambda x, g, m=named, p=padding, c=corners: F.grid_sample(x, g, m, p, bool(c)),
        )
        for mode, named in (("linear", "bilinear"), ("cubic", "bicubic"), ("nearest", "nearest"))
        for padding in ("zeros", "border", "reflection")
        for corners in (0, 1)
    ),
    *(
        (
            case("GridSample", f64(1, 2, 3, 4, 3), grid(1, 2, 3, 2), padding_mode=padding),
            lambda x, g, p=padding: F.grid_sample(x, g, "bilinear", p, align_corners=False),
        )
        for padding in ("zeros", "border", "reflection")
    ),
    # Positions on the border, where the left and the right derivative differ.
    *(
        (
            case("GridSample", f64(1, 2, 4, 4), of([[[[-1, 1], [1, -1]]]], np.float64),
                 align_corners=1, padding_mode=padding),
            lambda x, g, p=padding: F.grid_sample(x, g, "bilinear", p, align_corners=True),
        )
        for padding in ("zeros", "border")
    ),
    *(
        (
            case("AffineGrid", f64(2, n, n + 1), sizes(*size), align_corners=corners),
            lambda theta, s=size, c=corners: F.affine_grid(theta, list(s), bool(c)),
        )
        for n, size in ((2, (2, 3, 4, 5)), (3, (2, 1, 2, 3, 4)))
        for corners in (0, 1)
    ),
    *(
        (
            case("RoiAlign", apart(2, 3, 6, 7), _REGIONS, _NUMBERS, mode=mode, output_height=2,
                 output_width=3, sampling_ratio=ratio),
            lambda x, rois, m=mode, r=ratio: torch_ops.roi_align(x, rois, _NUMBERS, m, (2, 3), r),
        )
        for mode in ("avg", "max")
        for ratio in (0, 2)
    ),
    (
        case("DeformConv", f64(2, 4, 5, 6), f64(6, 2, 2, 3), f64(2, 24, 4, 3), f64(6),
             f64(2, 12, 4, 3), group=2, offset_group=2, strides=[1, 2], pads=[0, 1, 0, 1],
             dilations=[1, 1]),
        lambda *xs: torch_ops.deform_conv(xs, groups=(2, 2), stride=(1, 2), pad=(0, 1)),
    ),
    (
        case("Col2Im", f64(2, 12, 6), sizes(4, 5), sizes(2, 3), pads=[0, 1, 0, 1], strides=[1, 2],
             dilations=[2, 1]),
        lambda x: F.fold(x, (4, 5), (2, 3), dilation=(2, 1), padding=(0, 1), stride=(1, 2)),
    ),
    (
        case("MaxUnpool", f64(1, 2, 2, 3), np.arange(12).reshape(1, 2, 2, 3) * 4,
             kernel_shape=[2, 2], strides=[2, 2]),
        # torch counts in each image.
        lambda x: F.max_unpool2d(x, torch.arange(12).reshape(1, 2, 2, 3) % 6 * 4, (2, 2)),
    ),
    (
        case("ConvTranspose", f64(1, 2, 4, 5), f64(2, 3, 3, 2), strides=[2, 3],
             output_shape=[7, 12]),
        lambda x, w: F.conv_transpose2d(x, w, stride=(2, 3))[..., 1:8, 1:13],
    ),
    (
        case("MaxPool", apart(2, 2, 5, 6), kernel_shape=[3, 2], storage_order=1),
        lambda x: F.max_pool2d(x, (3, 2), 1),
    ),
    (
        case("SpaceToDepth", f64(2, 3, 4, 6), blocksize=2, mode="CRD"),
        lambda x: F.pixel_unshuffle(x, 2),
    ),
]  # fmt: skip

NORMALIZED: list[tuple[Case, Forward]] = [
    (
        case("LRN", f64(2, 5, 3, 2), size=3, alpha=0.3, beta=0.6, bias=1.5),
        lambda x: F.local_response_norm(x, 3, float(np.float32(0.3)), float(np.float32(0.6)), 1.5),
    ),
    *((case("LpNormalization", f64(2, 3, 4), p=p, axis=1),
       lambda x, p=p: F.normalize(x, p, 1)) for p in (1, 2)),
    (
        case("MeanVarianceNormalization", f64(2, 3, 4, 2)),
        lambda x: (x - x.mean((0, 2, 3), keepdim=True))
        / (x.std((0, 2, 3), keepdim=True, correction=0) + 1e-9),
    ),
    *(
        (case("LpPool", pos(2, 2, 6, 5), kernel_shape=[3, 2], strides=[2, 1], p=p),
         lambda x, p=p: F.lp_pool2d(x, p, (3, 2), (2, 1)))
        for p in (1, 2, 3)
    ),
    *(
        (case("GlobalLpPool", f64(2, 3, 4, 5), p=p),
         lambda x, p=p: torch.linalg.vector_norm(x, p, (2, 3), keepdim=True))
        for p in (1, 2, 3)
    ),
]  # fmt: skip

# Both operands are 0 or the exponent is: x^0 is constant in x, and 0^p in p.
POWERS: list[tuple[Case, Forward]] = [
    (case("Pow", of([0, 0, 0, 2, 3], np.float64), of([0, 1, 2, 0, 2], np.float64)), torch.pow),
    (case("Pow", of([0, 1, 2], np.float64), of([[0], [1]], np.int64)),
     lambda x: x ** torch.tensor([[0], [1]])),
]  # fmt: skip


REDUCED: list[tuple[Case, Forward]] = [
    *((case("ReduceProd", x, sizes(1)), lambda x: x.prod(1, keepdim=True))
      for x in (f64(3, 4), _ZEROS)),
    *((case("CumProd", x, of(1, np.int64)), lambda x: x.cumprod(1)) for x in (f64(3, 9), _ZEROS)),
    (case("CumProd", _ZEROS, of(1, np.int64), reverse=1),
     lambda x: x.flip(1).cumprod(1).flip(1)),
    *((case("Det", x), torch.linalg.det)
      for x in (f64(1, 1), f64(2, 4, 4), np.eye(34) + f64(34, 34) * 0.1)),
    # By its formula: torch's gradient of a singular matrix depends on how LAPACK rounds.
    (case("Det", of([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float64)), torch_ops.determinant),
    (case("Einsum", f64(2, 3, 3), f64(3, 4), equation="...ii,ij->...j"),
     lambda x, w: torch.einsum("...ii,ij->...j", x, w)),
    (case("Einsum", f64(3, 3), equation="ii"), torch.trace),
    (case("Einsum", f64(3, 2, 3, 3), equation="ijii->ij"),
     lambda x: torch.einsum("ijii->ij", x)),
    *(
        (case("ScatterElements", x, _INDEX, u, axis=1, reduction=reduction),
         lambda x, u, name=name: x.scatter_reduce(1, torch.from_numpy(_INDEX), u, name))
        for reduction, name in (("max", "amax"), ("min", "amin"), ("mul", "prod"), ("add", "sum"))
        for x, u in ((apart(2, 3), apart(2, 3)[::-1]), (np.zeros((2, 3)), np.ones((2, 3))),
                     (np.ones((2, 3)), np.ones((2, 3))))
    ),
]  # fmt: skip

SIGNAL: list[tuple[Case, Forward]] = [
    *((case("DFT", f64(2, 6, 2), of(n, np.int64)),
       lambda x, n=n: torch.view_as_real(torch.fft.fft(torch.view_as_complex(x), n)))
      for n in (4, 6, 9)),
    (case("DFT", f64(2, 6, 2), inverse=1),
     lambda x: torch.view_as_real(torch.fft.ifft(torch.view_as_complex(x)))),
    *((case("DFT", f64(2, 6, 1), of(n, np.int64), onesided=1),
       lambda x, n=n: torch.view_as_real(torch.fft.rfft(x[..., 0], n))) for n in (5, 6, 8)),
    *((case("DFT", f64(2, 5, 2), of(n, np.int64), inverse=1, onesided=1),
       lambda x, n=n: torch.fft.irfft(torch.view_as_complex(x), n)[..., None]) for n in (7, 8, 12)),
    *((case("STFT", f64(2, 11, 1), of(3, np.int64), f64(5), onesided=onesided),
       lambda x, w, o=onesided: torch.view_as_real(torch.stft(
           x[..., 0], 5, 3, 5, w, center=False, onesided=bool(o), return_complex=True
       )).transpose(1, 2)) for onesided in (0, 1)),
]  # fmt: skip

ATTENDED: list[tuple[Case, Forward]] = [
    *(
        (case("RotaryEmbedding", f32(2, 3, 4, 8), f32(6, 3), f32(6, 3),
              of([[0, 5, 2, 2], [1, 1, 3, 4]], np.int64), interleaved=i, rotary_embedding_dim=6),
         lambda x, c, s, i=i: torch_ops.rotary(
             x, c, s, torch.tensor([[0, 5, 2, 2], [1, 1, 3, 4]]), bool(i)))
        for i in (0, 1)
    ),
    *(
        (case("LinearAttention", f32(2, 6, 16), f32(2, 6, 8), f32(2, 6, 6), f32(2, 2, 4, 3), decay,
              beta, update_rule=name, q_num_heads=4, kv_num_heads=2, outputs=1),
         lambda q, k, v, s, *rest, d=decay is not None: torch_ops.linear_attention(
             (q, k, v, s), rest[0] if d else None, rest[-1] if len(rest) > d else None, (4, 2)))
        for name, decay, beta in (
            ("linear", None, None),
            ("gated", -pos(2, 6, 2).astype(np.float32), None),
            ("gated", -pos(2, 6, 8).astype(np.float32), None),
            ("delta", None, pos(2, 6, 2).astype(np.float32)),
            ("gated_delta", -pos(2, 6, 2).astype(np.float32), pos(2, 6, 1).astype(np.float32)),
        )
    ),
]  # fmt: skip

CASES = [*SAMPLING, *NORMALIZED, *POWERS, *REDUCED, *SIGNAL, *ATTENDED]


@pytest.mark.parametrize(
    ("case", "forward"), CASES, ids=lambda x: str(x) if isinstance(x, Case) else ""
)
def test_gradient_is_that_of_autograd(case: Case, forward: Forward) -> None:
    feeds = feeds_of(case)
    floats = {n: torch.from_numpy(np.array(x)) for n, x in feeds.items() if x.dtype.kind == "f"}
    leaves = [x.double().requires_grad_() for x in floats.values()]
    y = forward(*leaves)
    seed = torch.from_numpy(np.random.default_rng(0).standard_normal(tuple(y.shape)))
    expected = torch.autograd.grad(y, leaves, seed, allow_unused=True)
    by = [n for n, g in zip(floats, expected, strict=True) if g is not None and g.any()]
    constants = [n for n in feeds if n not in by]
    made = gradient(model_of(case, constants=constants), "y0", by, seeds=True)
    dtype = feeds[by[0]].dtype
    results = sardonyx.InferenceSession(made).run(
        ["y0", *(f"{n}_grad" for n in by)],
        {n: feeds[n] for n in by} | {"y0_grad": seed.numpy().astype(dtype)},
    )
    close(results[0], y)
    grads = {n: g for n, g in zip(floats, expected, strict=True) if n in by}
    for actual, grad in zip(results[1:], grads.values(), strict=True):
        close(actual, grad)


def close(actual: Array, expected: Any) -> None:
    tolerance = 1e-9 if actual.dtype == np.float64 else 1e-4
    np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=tolerance, atol=tolerance)


def test_statistics_of_layer_normalization() -> None:
    c = case("LayerNormalization", f32(3, 4, 5), f32(5), f32(5), outputs=3)
    feeds, names = feeds_of(c), ["y0", "y1", "y2"]
    leaves = [torch.from_numpy(x).double().requires_grad_() for x in feeds.values()]
    x = leaves[0]
    mean = x.mean(-1, keepdim=True)
    inverse = (x.var(-1, keepdim=True, correction=0) + 1e-5).rsqrt()
    outputs = [(x - mean) * inverse * leaves[1] + leaves[2], mean, inverse]
    rng = np.random.default_rng(0)
    seeds = [torch.from_numpy(rng.standard_normal(tuple(y.shape))) for y in outputs]
    expected = torch.autograd.grad(outputs, leaves, seeds)
    made = gradient(model_of(c), names, list(feeds), seeds=True)
    fed = {f"{n}_grad": s.numpy().astype(np.float32) for n, s in zip(names, seeds, strict=True)}
    actual = sardonyx.InferenceSession(made).run([f"{n}_grad" for n in feeds], feeds | fed)
    for ours, theirs in zip(actual, expected, strict=True):
        close(ours, theirs)


_DOUBLE_ZERO = of([[0, 2, 0, 3]], np.float64)
TWICE: list[tuple[Case, Forward]] = [
    *((case("ReduceProd", x, sizes(1)), lambda x: torch_ops.product(x.unbind(1))[:, None])
      for x in (f64(3, 4), _ZEROS, _DOUBLE_ZERO)),
    *((case("CumProd", x, of(1, np.int64)),
       lambda x: torch.stack([torch_ops.product(x.unbind(1)[: i + 1]) for i in range(4)], 1))
      for x in (f64(3, 4), _ZEROS, _DOUBLE_ZERO)),
    *((case("Det", x), torch_ops.determinant)
      for x in (f64(3, 3), of([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float64), np.ones((3, 3)))),
    *((case("ScatterElements", x, of([1, 1, 0], np.int64), u, reduction="mul"),
       lambda x, u: torch.stack((x[0] * u[2], x[1] * u[0] * u[1])))
      for x, u in ((of([2, 3], np.float64), of([0, 5, 7], np.float64)),
                   (of([2, 0], np.float64), of([3, 5, 7], np.float64)))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "forward"), TWICE, ids=lambda x: str(x) if isinstance(x, Case) else ""
)
def test_gradient_of_gradient_at_zeros_and_singular_matrices(case: Case, forward: Forward) -> None:
    feeds = {n: x for n, x in feeds_of(case).items() if x.dtype.kind == "f"}
    leaves = [torch.from_numpy(np.array(x)).requires_grad_() for x in feeds.values()]
    y, rng = forward(*leaves), np.random.default_rng(0)
    seed = torch.from_numpy(rng.standard_normal(tuple(y.shape)))
    grads = torch.autograd.grad(y, leaves, seed, create_graph=True)
    second = [torch.from_numpy(rng.standard_normal(tuple(g.shape))) for g in grads]
    expected = torch.autograd.grad(grads, leaves, second)
    constants = [n for n in feeds_of(case) if n not in feeds]
    once = gradient(model_of(case, constants=constants), "y0", list(feeds), seeds=True)
    twice = gradient(once, [f"{n}_grad" for n in feeds], list(feeds), seeds=True)
    new = [d.name for d in twice.inputs if d.name not in (*feeds, "y0_grad")]
    fed = {n: s.numpy() for n, s in zip(new, second, strict=True)} | {"y0_grad": seed.numpy()}
    outputs = [d.name for d in twice.outputs[-len(feeds) :]]
    actual = sardonyx.InferenceSession(twice).run(outputs, feeds | fed)
    for ours, theirs in zip(actual, expected, strict=True):
        close(ours, theirs)
