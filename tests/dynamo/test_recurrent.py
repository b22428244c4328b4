"""nn.LSTM, nn.GRU and nn.RNN through the backend: outputs, gradients and draws equal eager's."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from sardonyx.dynamo.backend import sardonyx_backend  # noqa: E402
from sardonyx.dynamo.report import Report  # noqa: E402

KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RELU": partial(nn.RNN, nonlinearity="relu"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch_first": {"batch_first": True},
    "no_bias": {"bias": False},
    "bidirectional": {"bidirectional": True, "num_layers": 2},
    "dropout": {"num_layers": 3, "dropout": 0.3, "batch_first": True},
}
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float64: 1e-12}


class Layer(nn.Module):
    """A recurrent layer whose outputs and final states all contribute to the result."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, state: Any = None) -> Any:
        y, last = self.layer(x, state)
        return y, *(last if isinstance(last, tuple) else (last,))


def compare(layer: nn.Module, x: Any, state: Any = None, dtype: Any = torch.float32) -> Report:
    """Compare outputs and all gradients with eager's; returns what ran where."""
    report = Report()
    torch._dynamo.reset()
    results = []
    for is_ours in (False, True):
        module = Layer(copy.deepcopy(layer))
        if dtype is torch.bfloat16 and not is_ours:  # eager rounds after every step
            module, x = module.float(), x.float()
        call: Any = module
        if is_ours:
            backend = partial(sardonyx_backend, report=report)
            call = torch.compile(module, backend=backend, fullgraph=True)
        leaf = x.to(dtype if is_ours else x.dtype).clone().requires_grad_()
        torch.manual_seed(3)
        outputs = call(leaf, state)
        seeds = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape) for y in outputs]
        torch.autograd.backward(outputs, seeds)
        results.append((outputs, leaf.grad, [p.grad for p in module.parameters()]))
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(
        results[1], results[0], rtol=5 * tolerance, atol=10 * tolerance, check_dtype=False
    )
    return report


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_eager(kind: str, options: str) -> None:
    torch.manual_seed(0)
    layer = KINDS[kind](5, 7, **OPTIONS[options])
    report = compare(layer, torch.randn(4, 3, 5))
    assert not report.fallbacks


@pytest.mark.parametrize(
    ("length", "batch", "inputs", "hidden"), [(1, 1, 3, 1), (6, 13, 20, 33), (3, 30, 64, 96)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_sizes(kind: str, length: int, batch: int, inputs: int, hidden: int) -> None:
    torch.manual_seed(0)
    compare(KINDS[kind](inputs, hidden), torch.randn(length, batch, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_initial_states(kind: str) -> None:
    torch.manual_seed(0)
    state: Any = torch.randn(1, 3, 7)
    state = (state, torch.randn(1, 3, 7)) if kind == "LSTM" else state
    compare(KINDS[kind](5, 7), torch.randn(4, 3, 5), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_types(kind: str, dtype: Any) -> None:
    torch.manual_seed(0)
    compare(KINDS[kind](5, 7).to(dtype), torch.randn(4, 3, 5, dtype=dtype), dtype=dtype)


def test_unbatched_sequences() -> None:
    torch.manual_seed(0)
    compare(nn.LSTM(5, 7), torch.randn(4, 5))


def test_projections_fall_back_to_torch() -> None:
    torch.manual_seed(0)
    compare(nn.LSTM(5, 7, proj_size=3), torch.randn(4, 3, 5))


def test_one_session_serves_all_lengths() -> None:
    torch.manual_seed(0)
    report = Report()
    torch._dynamo.reset()
    layer = nn.LSTM(5, 7, batch_first=True)
    call = torch.compile(layer, backend=partial(sardonyx_backend, report=report), dynamic=True)
    for length, batch in ((4, 3), (6, 2), (9, 5)):
        x = torch.randn(batch, length, 5, requires_grad=True)
        (grad,) = torch.autograd.grad(call(x)[0].square().sum(), x)
        (expected,) = torch.autograd.grad(layer(x)[0].square().sum(), x)
        torch.testing.assert_close(grad, expected)
    assert len(report.graphs) == 2
    assert not report.fallbacks


def test_inference() -> None:
    torch.manual_seed(0)
    report = Report()
    torch._dynamo.reset()
    layer = nn.GRU(5, 7, 2).eval()
    call = torch.compile(layer, backend=partial(sardonyx_backend, report=report))
    x = torch.randn(4, 3, 5)
    with torch.no_grad():
        torch.testing.assert_close(call(x), layer(x))
    assert [g.kind for g in report.graphs] == ["inference"]
    assert not report.fallbacks


def test_autocast() -> None:
    torch.manual_seed(0)
    report = Report()
    torch._dynamo.reset()
    model = nn.LSTM(8, 16)
    call = torch.compile(model, backend=partial(sardonyx_backend, report=report))
    x = torch.randn(4, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = call(x)[0], model(x)[0]
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=0.02)
