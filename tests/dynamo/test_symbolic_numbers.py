"""Dynamic shapes of pointwise ops and reductions: numbers computed from sizes, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional  # noqa: E402 - torch may be missing

from sardonyx.dynamo.backend import sardonyx_backend  # noqa: E402
from sardonyx.dynamo.report import Report  # noqa: E402

SHAPES: Final = ((3, 5), (4, 7), (6, 2))
FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "var": lambda x: x.var(1) + x.std(1, correction=0),  # backward: times 2 / (n - 1)
    "var of all": lambda x: x.var(),
    "var_mean": lambda x: sum(torch.var_mean(x, (0, 1))),
    "mean": lambda x: x.mean(1, keepdim=True) * x.mean() + x.sum((0, 1)),
    "argmax": lambda x: x.argmax().float() + x.argmax(1).float().sum(),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, 1) + x.norm(),
    "softmax": lambda x: functional.log_softmax(x, -1).exp() + functional.softmax(x, 0),
    "any, all": lambda x: (x > 0).any(1).float() + (x > -9).all().float(),
    "sizes": lambda x: x * x.shape[0] + x / x.shape[1] + (x > x.shape[0] - 3),
    "roots of sizes": lambda x: x * x.shape[1] ** -0.5 + x / (x.shape[0] / 3),
    "draws": lambda x: functional.dropout(x, 0.3) + torch.normal(x, x.abs()),
    "bernoulli": lambda x: x * torch.bernoulli(x.detach().sigmoid()),
    # torch runs complex products: it gets the number from our session.
    "number for torch": lambda x: (x.var(1) * torch.ones(1, dtype=torch.complex64)).real,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name: str) -> None:
    function = FUNCTIONS[name]
    torch._dynamo.reset()
    report = Report()
    compiled = torch.compile(
        function, backend=partial(sardonyx_backend, report=report), dynamic=True
    )
    for shape in SHAPES:
        torch.manual_seed(1)
        x = torch.randn(shape)
        actual, expected = (_with_gradient(f, x) for f in (compiled, function))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert len(report.graphs) <= 4  # compiled once, not once per shape


def _with_gradient(function: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    x = x.clone().requires_grad_()
    torch.manual_seed(2)
    y = function(x)
    if y.requires_grad:
        y.backward(torch.ones_like(y))
    return y.detach(), x.grad


def test_a_number_that_torch_reads() -> None:
    """A symbolic float that our session passes on is that of the run, not that of tracing."""

    def function(x: Any) -> Any:
        return torch.view_as_real(torch.mul(torch.view_as_complex(x), 2.0 / (x.shape[0] - 1)))

    compiled = torch.compile(function, backend=sardonyx_backend, dynamic=True)
    torch._dynamo.reset()
    for n in (3, 5, 9):
        x = torch.randn(n, 4, 2)
        torch.testing.assert_close(compiled(x), function(x))
