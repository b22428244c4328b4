"""Normalizations, losses, attention and matmuls: OpInfo samples, and options that those lack."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")

from torch.nn import functional  # noqa: E402

from sardonyx.dynamo.backend import sardonyx_backend  # noqa: E402
from sardonyx.dynamo.report import Report  # noqa: E402
from tests.dynamo.op_info import OPS, check, samples  # noqa: E402

N_SAMPLES = 3
NAMES = (
    "native_layer_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_batch_norm_with_update", "native_group_norm", "nn.functional.rms_norm",
    "nn.functional.layer_norm", "nn.functional.group_norm", "nn.functional.batch_norm",
    "nn.functional.cross_entropy", "nn.functional.nll_loss", "nn.functional.mse_loss",
    "nn.functional.huber_loss", "nn.functional.smooth_l1_loss", "nn.functional.kl_div",
    "nn.functional.scaled_dot_product_attention", "nn.functional.linear", "nn.functional.bilinear",
    "addmm", "addmv", "addr", "baddbmm", "bmm", "mm", "mv", "dot", "einsum", "matmul",
)  # fmt: skip
Case = tuple[Callable[..., Any], tuple[Any, ...]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_op_info(name: str, dtype: Any) -> None:
    op = OPS[name]
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip(f"torch has no {dtype} for {name}")
    for sample in samples(op, dtype, N_SAMPLES):
        assert not check(op, dtype, sample).fallbacks


def _tensor(*sizes: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(*sizes, dtype=torch.float64).to(dtype).requires_grad_()


def _heads(count: int, rows: int, dtype: Any = torch.float32) -> Any:
    return _tensor(2, count, rows, 8, dtype=dtype)


def _cases() -> dict[str, Case]:
    torch.manual_seed(0)
    attend = functional.scaled_dot_product_attention
    visible = torch.rand(5, 7) > 0.3
    visible[2] = False  # a query that sees no key
    bias = torch.randn(2, 1, 5, 7)
    targets = torch.tensor([1, -100, 0, 3])
    classes = torch.randint(0, 5, (2, 2, 2))
    none_count = torch.full((4,), -100)
    weight = torch.rand(5)
    three = _heads(3, 5), _heads(3, 7), _heads(3, 7)
    grouped = partial(attend, enable_gqa=True)
    half = torch.bfloat16
    return {
        "causal": (partial(attend, is_causal=True), three),
        "bool mask": (partial(attend, attn_mask=visible), three),
        "float mask": (partial(attend, attn_mask=bias), three),
        "scale": (partial(attend, scale=0.3), three),
        "grouped heads": (grouped, (_heads(6, 5), _heads(2, 5), _heads(2, 5))),
        "bf16": (partial(attend, is_causal=True), tuple(_heads(3, 5, half) for _ in range(3))),
        "ignored targets": (lambda x: functional.cross_entropy(x, targets), (_tensor(4, 5),)),
        "class weights": (
            lambda x: functional.cross_entropy(x, targets, weight, reduction="sum"),
            (_tensor(4, 5),),
        ),
        "all ignored": (
            lambda x: functional.cross_entropy(x, none_count, reduction="sum"),
            (_tensor(4, 5),),
        ),
        "label smoothing": (
            lambda x: functional.cross_entropy(x, targets, label_smoothing=0.1),
            (_tensor(4, 5),),
        ),
        "two-dimensional": (
            lambda x: functional.cross_entropy(x, classes),
            (_tensor(2, 5, 2, 2),),
        ),
        "alpha and beta": (
            partial(torch.addmm, beta=0.5, alpha=2),
            (_tensor(4), _tensor(3, 5), _tensor(5, 4)),
        ),
    }


@pytest.mark.parametrize("name", _cases())
def test_options(name: str) -> None:
    function, tensors = _cases()[name]
    report = Report()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=partial(sardonyx_backend, report=report))
    results = []
    for call in (function, compiled):
        y = call(*tensors)
        seed = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
        results.append((y, torch.autograd.grad(y, tensors, seed)))
    tolerance = 4e-2 if tensors[0].dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)
    assert not report.fallbacks


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integer_matmuls_wrap_as_torch(dtype: Any) -> None:
    torch._dynamo.reset()
    x, y = (torch.randint(0, 120, s).to(dtype) for s in ((3, 40), (40, 5)))
    compiled = torch.compile(torch.mm, backend=sardonyx_backend)
    assert torch.equal(compiled(x, y), torch.mm(x, y))
