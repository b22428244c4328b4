"""Attention in training through the backend: values, gradients and draws equal eager's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from sardonyx.dynamo.attention import attention, attention_backward  # noqa: E402
from sardonyx.dynamo.backend import sardonyx_backend  # noqa: E402
from sardonyx.dynamo.report import Report  # noqa: E402

attend = functional.scaled_dot_product_attention
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float64: 1e-11}


def heads(batch: int, count: int, rows: int, width: int, dtype: Any = torch.float32) -> Any:
    """A leaf, laid out as projections write it: heads after rows."""
    x = torch.randn(batch, rows, count, width, dtype=torch.float64).to(dtype)
    return x.transpose(1, 2).requires_grad_()


def compare(function: Any, tensors: Any, dynamic: bool | None = None) -> Report:
    """Compare the result and all gradients with eager's, with one seed; returns what ran where."""
    report = Report()
    torch._dynamo.reset()
    backend = partial(sardonyx_backend, report=report)
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    check(function, compiled, tensors)
    return report


def check(function: Any, compiled: Any, tensors: Any) -> None:
    results = []
    for call in (function, compiled):
        torch.manual_seed(3)
        y = call(*tensors)
        seed = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype)
        leaves = [t for t in tensors if t.requires_grad]
        grads = torch.autograd.grad(y, leaves, seed)
        results.append((y, grads, torch.rand(3)))  # the next draw is eager's as well
    tolerance = TOLERANCES[tensors[0].dtype]
    torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)


def masks(rows: int, keys: int) -> dict[str, dict[str, Any]]:
    visible = torch.rand(rows, keys) > 0.3
    visible[0] = False  # a query that sees no key
    return {
        "none": {},
        "bools": {"attn_mask": visible},
        "floats": {"attn_mask": torch.randn(2, 1, rows, keys)},
        "keys": {"attn_mask": torch.arange(keys)[None, None, None] < torch.tensor(keys - 1)},
        "causal": {"is_causal": True},
    }


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", masks(2, 2))
@pytest.mark.parametrize("size", [1, 7, 17, 129, 197])
def test_trains_as_eager(size: int, mask: str, dropout: float) -> None:
    torch.manual_seed(0)
    tensors = [heads(2, 3, size, 16) for _ in range(3)]
    report = compare(partial(attend, dropout_p=dropout, **masks(size, size)[mask]), tensors)
    assert not report.fallbacks


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_types(dtype: Any, dropout: float) -> None:
    torch.manual_seed(0)
    tensors = [heads(2, 3, 9, 8, dtype) for _ in range(3)]
    report = compare(partial(attend, dropout_p=dropout, is_causal=True), tensors)
    assert not report.fallbacks


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("scale", [None, 0.4])
def test_grouped_heads_and_other_lengths(dropout: float, scale: float | None) -> None:
    torch.manual_seed(0)
    tensors = heads(2, 6, 5, 8), heads(2, 2, 11, 8), heads(2, 2, 11, 8)
    function = partial(attend, dropout_p=dropout, enable_gqa=True, scale=scale)
    assert not compare(function, tensors).fallbacks


def test_values_of_another_width() -> None:
    torch.manual_seed(0)
    tensors = heads(2, 3, 5, 8), heads(2, 3, 11, 8), heads(2, 3, 11, 6)
    assert not compare(partial(attend, dropout_p=0.3), tensors).fallbacks


def test_one_graph_serves_all_lengths() -> None:
    torch.manual_seed(0)
    report = Report()
    torch._dynamo.reset()
    function = partial(attend, dropout_p=0.3, is_causal=True)
    backend = partial(sardonyx_backend, report=report)
    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for batch, size in ((2, 9), (3, 40), (4, 129)):
        check(function, compiled, [heads(batch, 3, size, 16) for _ in range(3)])
    assert [g.kind for g in report.graphs] == ["forward", "backward"]
    assert not report.fallbacks


def test_dropout_without_gradients() -> None:
    torch.manual_seed(0)
    tensors = [heads(2, 3, 17, 16).detach() for _ in range(3)]
    torch._dynamo.reset()
    compiled = torch.compile(partial(attend, dropout_p=0.3), backend=sardonyx_backend)
    with torch.no_grad():
        torch.manual_seed(3)
        expected = attend(*tensors, dropout_p=0.3)
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(*tensors), expected)


@pytest.mark.parametrize(
    ("change", "dropout"),
    [
        (lambda t: (*t, torch.randn(9, 9).requires_grad_()), 0.3),  # the mask has a gradient
        (lambda t: [x[0] for x in t], 0.3),  # no batch
        (lambda t: t, 1.0),  # nothing is kept
    ],
    ids=["mask", "rank", "all"],
)
def test_unsupported_calls_fall_back_to_torch(change: Any, dropout: float) -> None:
    torch.manual_seed(0)
    tensors = change([heads(2, 3, 9, 16) for _ in range(3)])
    function = partial(attend, dropout_p=dropout)
    compare(lambda *t: function(*t), tensors)


def test_autocast() -> None:
    torch.manual_seed(0)
    tensors = [heads(2, 3, 17, 16) for _ in range(3)]

    def function(*tensors: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return attend(*tensors, dropout_p=0.3)

    results = []
    torch._dynamo.reset()
    for call in (function, torch.compile(function, backend=sardonyx_backend)):
        torch.manual_seed(3)
        y = call(*tensors)
        assert y.dtype is torch.bfloat16
        results.append((y, torch.autograd.grad(y.sum(), tensors)))
    torch.testing.assert_close(results[1], results[0], rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_scores_are_not_saved(dropout: float) -> None:
    """Dropout saves a byte per score, and attention a number per row."""
    torch.manual_seed(0)
    tensors = [heads(2, 3, 40, 8) for _ in range(3)]
    torch._dynamo.reset()
    compiled = torch.compile(partial(attend, dropout_p=dropout), backend=sardonyx_backend)
    saved: list[Any] = []

    def pack(x: Any) -> Any:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        compiled(*tensors)
    assert sum(x.shape == (2, 3, 40) for x in saved) == 1
    scores = [x.dtype for x in saved if x.numel() == 2 * 3 * 40 * 40]
    assert scores == [torch.bool] * (dropout > 0)


def test_encoder_layer() -> None:
    """The module calls attention without weights, with its own dropout between."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True)
    x = torch.randn(2, 19, 32).requires_grad_()
    assert not compare(lambda x: layer(x), [x]).fallbacks


@pytest.mark.parametrize("mask", masks(2, 2))
def test_torch_implementation_of_the_ops(mask: str) -> None:
    """The implementation in torch, which runs if the ops are not lowered."""
    torch.manual_seed(0)
    q, k, v = heads(2, 4, 9, 8), heads(2, 2, 9, 8), heads(2, 2, 9, 8)
    options = masks(9, 9)[mask]
    keep = torch.rand(2, 4, 9, 9) > 0.3
    rest = options.get("attn_mask"), keep, mask == "causal", 0.4, 1 / 0.7
    y, lse = attention(q, k, v, *rest)
    expected = attend(q, k, v, enable_gqa=True, scale=0.4, **options)
    everything = torch.ones_like(keep)
    kept, _ = attention(q, k, v, rest[0], everything, mask == "causal", 0.4, 1.0)
    torch.testing.assert_close(kept.transpose(1, 2), expected)
    dy = torch.randn_like(y)
    grads = attention_backward(dy, y, lse, q, k, v, *rest)
    found = torch.autograd.grad(y, (q, k, v), dy)
    torch.testing.assert_close([g.transpose(1, 2) for g in grads], list(found))
