"""Modules compiled with dynamic=True: one graph and one session serve all sizes, equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sardonyx.dynamo.backend import sardonyx_backend  # noqa: E402 - after the check for torch
from sardonyx.dynamo.report import Report  # noqa: E402

F = torch.nn.functional
Case = tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]

SIZES = ((5, 8), (7, 12), (11, 6), (4, 9))


def _matrix(n: int, m: int) -> tuple[Any, ...]:
    return (torch.randn(n, m, requires_grad=True),)


def _image(n: int, m: int) -> tuple[Any, ...]:
    return (torch.randn(2, 3, n, m, requires_grad=True),)


def _rows(n: int, m: int) -> tuple[Any, ...]:
    return torch.randn(n, 6, requires_grad=True), torch.randint(0, n, (m,))


def _pair(n: int, m: int) -> tuple[Any, ...]:
    return torch.randn(n, m, requires_grad=True), torch.randn(n, m, requires_grad=True)


def _counted(n: int, m: int) -> tuple[Any, ...]:
    return torch.randn(n, m, requires_grad=True), n - 2


def _written(x: Any, *at: Any) -> Any:
    y = x.clone()
    y[at] = 2.0
    return y


def _assigned(x: Any, source: Any, at: Any) -> Any:
    y = x * 1.0
    y[at] = source[at]
    return y


CASES: dict[str, Case] = {
    # Views
    "view": (lambda x: x.view(-1) * 2, _matrix),
    "flatten": (lambda x: x.flatten(1), _image),
    "split a size": (lambda x: x.reshape(x.shape[0], 1, x.shape[1]).expand(-1, 3, -1) * 2, _matrix),
    "permute": (lambda x: x.permute(0, 2, 3, 1).contiguous(), _image),
    "squeeze": (lambda x: x[:, :1].squeeze(1).unsqueeze(0), _matrix),
    "expand": (lambda x: x[:1].expand(x.shape[1], x.shape[1]).clone(), _matrix),
    "as_strided": (lambda x: (x + 0).as_strided((x.shape[0], 2), (x.shape[1], 1)) * 2, _matrix),
    # Slices
    "select last": (lambda x: x[-1] * 2, _matrix),
    "slice from": (lambda x: x[:, 2:] * 2, _matrix),
    "slice to": (lambda x: x[:-1, :-2] * 2, _matrix),
    "slice last": (lambda x: x[-3:] * 2, _matrix),
    "slice step": (lambda x: x[1::2, ::3] * 2, _matrix),
    "slice half": (lambda x: x[x.shape[0] // 2 :, : x.shape[1] // 2] * 2, _matrix),
    "slice by number": (lambda x, n: x[:n] * 2, _counted),
    "slice by negative number": (lambda x, n: x[-n:] * n, _counted),
    "select by number": (lambda x, n: x[n] * 2, _counted),
    "slice scatter": (partial(_assigned, at=(slice(1, -1),)), _pair),
    "slice scatter step": (partial(_assigned, at=(slice(None), slice(1, None, 2))), _pair),
    "select scatter": (partial(_assigned, at=(slice(None), -1)), _pair),
    "diagonal": (lambda x: x.diagonal(1) * 2, _matrix),
    "diagonal scatter": (lambda x: x.diagonal_scatter(torch.diagonal(x) * 3), _matrix),
    "diag_embed": (torch.diag_embed, _matrix),
    # Concatenations and moves
    "cat": (lambda x, y: torch.cat([x, y, x[:2]], 0), _pair),
    "cat empty": (lambda x, y: torch.cat([x, torch.zeros(0), y], 1), _pair),
    "stack": (lambda x, y: torch.stack([x, y], -1), _pair),
    "chunk": (lambda x: torch.chunk(x.repeat(1, 2), 2, dim=1), _matrix),
    "split": (lambda x: x.split([2, x.shape[0] - 2]), _matrix),
    "unbind": (lambda x: x.unbind(1)[1] * 2, _image),
    "repeat": (lambda x: x.repeat(2, 1, 3), _matrix),
    "repeat by number": (lambda x, n: x.repeat(1, n), _counted),
    "tile": (lambda x: x.tile(2), _matrix),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), _matrix),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), _matrix),
    "roll flat": (lambda x: x.roll(3), _matrix),
    "flip": (lambda x: x.flip(0, 1), _matrix),
    "rot90": (lambda x: torch.rot90(x, 1, (0, 1)), _matrix),
    "triangles": (lambda x: x.triu(1) + x.tril(-1), _matrix),
    "unfold": (lambda x: x.unfold(1, 3, 2), _matrix),
    "windows": (lambda x: F.unfold(x, 2, stride=2), _image),
    # Padding
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=0.5), _matrix),
    "pad cuts": (lambda x: F.pad(x, (-1, 2)), _matrix),
    "pad to a multiple": (lambda x: F.pad(x, (0, -x.shape[1] % 8)), _matrix),
    "reflect": (lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), _image),
    "replicate": (lambda x: F.pad(x, (1, 2, 0, 1), mode="replicate"), _image),
    "circular": (lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"), _image),
    # Tensors made of sizes
    "arange": (lambda x: x + torch.arange(x.shape[1]), _matrix),
    "arange of floats": (lambda x: x + torch.arange(x.shape[1]) * 0.1, _matrix),
    "full": (lambda x: x + torch.full((x.shape[0], 1), 2.0), _matrix),
    "eye": (lambda x: x + torch.eye(x.shape[0], x.shape[1]), _matrix),
    "causal mask": (
        lambda x: (x @ x.T).masked_fill(
            torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1), -1e9
        ),
        _matrix,
    ),
    "size as number": (lambda x: x * x.shape[0] / x.shape[1] ** 0.5, _matrix),
    # Indexing
    "embedding": (lambda x, i: F.embedding(i, x), _rows),
    "embedding padding": (lambda x, i: F.embedding(i, x, padding_idx=1), _rows),
    "index": (lambda x, i: x[i], _rows),
    "index last axis": (lambda x, i: x.T[:, i], _rows),
    "index apart": (lambda x, i: x[:, None][i, :, i.clamp(max=5)], _rows),
    "index two": (lambda x, i: x[i, i.clamp(max=5)], _rows),
    "index_put": (lambda x, i: _written(x, i), _rows),
    "index_add": (lambda x, i: x.index_add(0, i, x[i]), _rows),
    "index_add last": (lambda x, i: x.T.index_add(1, i, x[i].T), _rows),
    "index_copy": (lambda x, i: x.index_copy(0, i[:1], x[:1]), _rows),
    "mask": (lambda x: _written(x, x > 0), _matrix),
    "gather": (lambda x, i: x.gather(0, i[:, None].expand(-1, 6)), _rows),
    "scatter": (lambda x, i: x.scatter(0, i[:1, None].expand(-1, 6), 3.0), _rows),
    "scatter_add": (
        lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 6), x[i].detach()),
        _rows,
    ),
    "scatter_reduce": (
        lambda x, i: x.scatter_reduce(0, i[:, None].expand(-1, 6), x[i].detach(), "mean"),
        _rows,
    ),
    "argsort": (lambda x: x.gather(1, x.argsort(1)), _matrix),
    "masked_scatter": (lambda x, y: x.masked_scatter(y > 0, y), _pair),
    # Order
    "sort": (lambda x: x.sort(1, descending=True), _matrix),
    "topk": (lambda x: x.topk(3, 0), _matrix),
    "topk by number": (lambda x, n: x.topk(n, 0), _counted),
    "kthvalue": (lambda x: x.kthvalue(2, 1), _matrix),
    "median": (lambda x: x.median(1), _matrix),
}


class _Decoder(torch.nn.Module):  # type: ignore[misc]
    """Token and position embeddings, one causal attention block, and a loss on shifted tokens."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self._fused = fused
        self.tokens = torch.nn.Embedding(20, 16)
        self.places = torch.nn.Embedding(32, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.qkv = torch.nn.Linear(16, 48)
        self.out = torch.nn.Linear(16, 20)

    def forward(self, tokens: Any) -> Any:
        batch, length = tokens.shape
        x = self.tokens(tokens) + self.places(torch.arange(length))
        heads = self.qkv(self.norm(x)).view(batch, length, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        if self._fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            scores = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(~mask, float("-inf"))
            y = scores.softmax(-1) @ v
        logits = self.out(x + y.transpose(1, 2).reshape(batch, length, 16))
        return F.cross_entropy(logits[:, :-1].reshape(-1, 20), tokens[:, 1:].reshape(-1))


class _Pooled(torch.nn.Module):  # type: ignore[misc]
    """Mean of the valid positions of padded sequences, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = torch.nn.Linear(10, 12), torch.nn.Linear(12, 3)

    def forward(self, x: Any, lengths: Any) -> Any:
        valid = (torch.arange(x.shape[1]) < lengths[:, None]).unsqueeze(-1)
        hidden = F.gelu(self.first(x)) * valid
        return self.head(hidden.sum(1) / lengths[:, None])


class _Images(torch.nn.Module):  # type: ignore[misc]
    """Convolutions over images of any size, with batch norm and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3, stride=2)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.first(x)))
        return self.second(x).mean((2, 3)) + x[:, :, 0, -1]


def _tokens(n: int, m: int) -> tuple[Any, ...]:
    return (torch.randint(0, 20, (n, m)),)


def _padded(n: int, m: int) -> tuple[Any, ...]:
    return torch.randn(n, m, 10), torch.randint(1, m, (n,))


MODULES: dict[str, tuple[Callable[[], Any], Callable[[int, int], tuple[Any, ...]]]] = {
    "decoder": (lambda: _Decoder(False), _tokens),
    "decoder, fused attention": (lambda: _Decoder(True), _tokens),
    "pooled": (_Pooled, _padded),
    "images": (_Images, lambda n, m: (torch.randn(n, 3, 2 * m, m + 3),)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_serves_all_sizes(name: str) -> None:
    function, arguments = CASES[name]
    torch._dynamo.reset()
    report = Report()
    backend = partial(sardonyx_backend, report=report)
    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for n, m in SIZES:
        torch.manual_seed(n)
        _compare(compiled, function, arguments(n, m))
    _check_one_session(report)


@pytest.mark.parametrize("name", MODULES)
def test_modules_train_at_all_sizes(name: str) -> None:
    make, arguments = MODULES[name]
    torch._dynamo.reset()
    report = Report()
    torch.manual_seed(0)
    eager = make()
    module = make()
    module.load_state_dict(eager.state_dict())
    backend = partial(sardonyx_backend, report=report)
    compiled = torch.compile(module, backend=backend, dynamic=True, fullgraph=True)
    for n, m in SIZES:
        torch.manual_seed(n)
        args = arguments(n, m)
        outputs = [run(*args) for run in (compiled, eager)]
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
        for y in outputs:
            y.square().sum().backward()
        for mine, expected in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-3, atol=1e-4)
    _check_one_session(report)


def test_a_fallback_to_torch_between_sessions() -> None:
    report = Report()

    def function(x: Any) -> Any:
        y = x[:, 1:] * 2
        return y.mode(1).values + y[:, -1] * y.shape[1]

    backend = partial(sardonyx_backend, report=report)
    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for n, m in SIZES:
        _compare(compiled, function, _matrix(n, m))
    assert {f.op for f in report.fallbacks} == {"aten.mode.default"}
    assert len(report.graphs) == 2


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_a_size_read_from_a_tensor() -> None:
    report = Report()

    def function(x: Any, lengths: Any) -> Any:
        n = lengths.amax().item()
        return x * (torch.arange(x.shape[1]) < n) + torch.full((x.shape[0], 1), 1.0) * n

    backend = partial(sardonyx_backend, report=report)
    compiled = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
    for n, m in SIZES:
        _compare(compiled, function, (*_matrix(n, m), torch.randint(1, m, (n,))))
    assert {f.op for f in report.fallbacks} == {"aten._local_scalar_dense.default"}


def _check_one_session(report: Report) -> None:
    assert not report.fallbacks, report
    kinds = [g.kind for g in report.graphs]  # a graph that only returns views has no backward
    assert kinds in (["forward", "backward"], ["inference"]), report
    assert all(g.n_sessions == 1 for g in report.graphs), report


def _compare(compiled: Any, function: Any, args: tuple[Any, ...]) -> None:
    results = []
    for run in (function, compiled):
        leaves = [
            a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a
            for a in args
        ]
        outputs = run(*leaves)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        floats = [y for y in outputs if y.requires_grad]
        torch.manual_seed(0)
        torch.autograd.backward(floats, [torch.randn(y.shape) for y in floats])
        grads = [a.grad for a in leaves if torch.is_tensor(a) and a.requires_grad]
        results.append(([y.detach() for y in outputs], grads))
    torch.testing.assert_close(results[1], results[0])
