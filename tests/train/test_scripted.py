"""Control flow as torch.jit.script exports it: gradients against torch's autograd."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.train import gradient

torch = pytest.importorskip("torch")
nn = torch.nn


class Recurrent(nn.Module):
    """A state that a loop updates, and a list to which each branch appends."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(7, 4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        h = torch.zeros(x.size(1), 4)
        outs = []
        for t in range(x.size(0)):
            h = torch.tanh(self.cell(torch.cat([x[t], h], 1)))
            if t % 2 == 0:
                outs.append(h * 2)
            else:
                outs.append(h)
        return torch.stack(outs).pow(2).sum()


class Growing(nn.Module):
    """A tensor that grows, a list of rows of it, and a loop over the list."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3) * 0.4)

    def forward(self, x):  # type: ignore[no-untyped-def]
        rows = []
        y = x[:, 0]
        for i in range(x.size(0)):
            y = torch.cat([y, torch.tanh(y[i : i + 1] @ self.w)], 0)
            rows.append(y[-1])
        z = x[0, 0]
        for row in rows:
            z = z * row + row
        return z.sum()


class Converging(nn.Module):
    """A loop that ends by its values, with a branch by them."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3) * 0.1)

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = x[0]
        i = 0
        while bool((y * y).sum() < 50) and i < 20:
            y = y @ self.w + 1.5 * y
            if bool(y.sum() > 0):
                y = y - 0.1 * torch.sin(y)
            i += 1
        return (y * x).sum()


class Nested(nn.Module):
    """Loops in loops, and a list that only some iterations extend."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3) * 0.5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        kept = [x[0, 0]]
        total = torch.zeros(3)
        for i in range(x.size(0)):
            inner = x[i, 0]
            for j in range(i):
                inner = torch.tanh(inner * self.w + x[j, 1])
            total = total + inner
            if i > 0:
                kept.append(inner * total)
        return torch.stack(kept).sum() + total.pow(2).sum()


@pytest.mark.parametrize("kind", [Recurrent, Growing, Converging, Nested])
def test_scripted(kind: Any) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(5, 2, 3)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated; the other has no loops
        torch.onnx.export(
            torch.jit.script(module), (x,), file, input_names=["x"], output_names=["loss"],
            dynamic_axes={"x": {0: "n"}}, opset_version=17, dynamo=False,
        )  # fmt: skip
    parameters = dict(module.named_parameters())
    session = sardonyx.InferenceSession(gradient(file.getvalue(), "loss", ["x", *parameters]))
    for rows in (5, 3, 1):
        values = torch.randn(rows, 2, 3, requires_grad=True)
        loss = module(values)
        wanted = torch.autograd.grad(loss, [values, *parameters.values()], allow_unused=True)
        found = session.run(None, {"x": values.detach().numpy()})
        np.testing.assert_allclose(found[0], loss.detach(), 1e-5)
        for a, b in zip(found[1:], wanted, strict=True):
            expected = np.zeros_like(a) if b is None else b.numpy()
            np.testing.assert_allclose(a, expected, 1e-4, 1e-5 * max(1, np.abs(expected).max()))
