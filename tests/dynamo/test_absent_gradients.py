"""Gradients of steps in which some results have no gradient are those of eager torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._autograd import _get_sequence_nr
from torch._dynamo import compiled_autograd
from torch.nn import functional

from sardonyx.dynamo import absent_gradients
from sardonyx.dynamo.backend import sardonyx_backend
from sardonyx.dynamo.report import Report

Function = Callable[..., Any]
Tensors = tuple[torch.Tensor, ...]
INF = float("inf")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield tmp_path
    torch._dynamo.reset()


class Scaled(torch.autograd.Function):
    """An autograd function that needs zeros for absent gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Tensors:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2 + grads[1] * 3


def chain(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    """A loss with the values that it is computed from, as in Hugging Face models."""
    hidden = torch.tanh(a @ w)
    logits = functional.layer_norm(hidden, (4,)) @ w
    return functional.cross_entropy(logits, torch.tensor([0, 1, 2])), logits, hidden


def attention(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    """Keys and values are results, split and permuted."""
    heads = (a @ torch.cat([w, w, w], 1)).view(1, 3, 2, 6).transpose(1, 2)
    q, k, v = heads.split(2, -1)
    return functional.scaled_dot_product_attention(q, k, v), k, v


def of_infinity(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    """Zeros for the second gradient would make NaN of a's."""
    return (a @ w).exp(), a * torch.full_like(a, INF), w.sum()


def aliases(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    """Two views of one value, and an argument."""
    product = torch.sin(a @ w)
    return product[0], product.t(), a, w.view(-1)


def after_function(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    """The nodes that come first belong to autograd functions of the user."""
    return a, a.view(-1), (a * w.sum()).exp()


def gathered(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    x = functional.embedding(torch.tensor([1, 3, 3]), w)
    y = torch.where(a > 0, x, x * 2)
    return y.cumsum(0), torch.cat([x, y]).sum(1, keepdim=True), y[1:, ::2], x.mean()


def mutated(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    b = a * 1
    b.mul_(w.sum())
    return b, torch.relu(b)


def in_torch(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    """A call without a lowering, between two sessions."""
    return torch.special.i1(a @ w), a.exp(), torch.special.i1(w) * 2


def convolved(a: torch.Tensor, w: torch.Tensor) -> Tensors:
    x = functional.conv1d(a[None], w[:3, :3, None])
    return (
        x.relu(),
        functional.max_pool1d(x, 2),
        functional.batch_norm(x, None, None, training=True),
    )


FUNCTIONS: dict[str, Function] = {
    f.__name__: f for f in (chain, attention, of_infinity, aliases, gathered, mutated, convolved)
}
PATTERNS: dict[str, Sequence[Sequence[int]]] = {  # of each step: results with a gradient
    "the first": [[0], [0]],
    "the last": [[-1], [-1]],
    "present later": [[0], [0, 1], [1], [0]],
    "absent later": [[0, 1, -1], [-1, 0], [1]],
}


def operands() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    a, w = torch.randn(3, 4, generator=generator), torch.randn(4, 4, generator=generator)
    return a.requires_grad_(), w.requires_grad_()


def compiled(function: Function, **options: Any) -> Function:
    return torch.compile(function, backend=partial(sardonyx_backend, options=options))


def stepped(call: Function, pattern: Sequence[Sequence[int]], arguments: Tensors) -> list[Any]:
    """Return the gradients of each step."""
    found: list[Any] = []
    for used in pattern:
        for tensor in arguments:
            tensor.grad = None
        results = call(*arguments)
        sum((results[i].sin().sum() for i in used), torch.zeros(())).backward()
        found += [tensor.grad for tensor in arguments]
    return found


def check(expected: list[Any], found: list[Any]) -> None:
    """None only for None, and NaN for NaN."""
    assert [g is None for g in found] == [g is None for g in expected]
    given = [(e, f) for e, f in zip(expected, found, strict=True) if e is not None]
    for e, f in given:
        torch.testing.assert_close(f, e, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_gradients_are_those_of_eager(function: Function, pattern: Sequence[Any]) -> None:
    expected = stepped(function, pattern, operands())
    check(expected, stepped(compiled(function), pattern, operands()))
    torch._dynamo.reset()  # again, with graphs of the cache
    check(expected, stepped(compiled(function), pattern, operands()))


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_calls_in_torch_get_zeros(pattern: Sequence[Any]) -> None:
    expected = stepped(in_torch, pattern, operands())
    likes = operands() * len(pattern)
    zeros = [torch.zeros_like(t) if g is None else g for t, g in zip(likes, expected, strict=True)]
    check(zeros, stepped(compiled(in_torch), pattern, operands()))


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_with_a_memory_budget(budget: float) -> None:
    pattern = PATTERNS["present later"]
    expected = stepped(chain, pattern, operands())
    check(expected, stepped(compiled(chain, memory_budget=budget), pattern, operands()))


def test_functions_of_the_user_get_zeros() -> None:
    """Only the node of the compiled function gets None, not those of the graph before it."""
    call, found = compiled(after_function), []
    for run in (after_function, call, call):
        a, w = operands()
        first, second = Scaled.apply(a)
        results = run(first, w)
        (results[1].sum() + results[2].sum()).backward()
        found.append([a.grad, w.grad])
        assert second.requires_grad
    check(found[0] * 2, found[1] + found[2])


def test_absent_results_are_not_computed() -> None:
    report = Report()
    call = torch.compile(chain, backend=partial(sardonyx_backend, report=report))
    for used in ([0], [0, 1]):
        stepped(call, [used], operands())
    (backward,) = [g.executor for g in report.graphs if g.kind == "backward"]
    names = [{v.name for v in e.lowered.model.graph.inputs} for e in backward._executors.values()]
    n_tangents = sorted(sum(n.startswith("tangents_") for n in own) for own in names)
    assert n_tangents == [1, 2]


def test_sizes_that_change_have_zeros() -> None:
    call = torch.compile(chain, backend="sardonyx", dynamic=True)
    for n in (3, 3):
        a, w = operands()
        expected = stepped(chain, [[0], [1]], (a[:n].detach().requires_grad_(), w))
        check(expected, stepped(call, [[0], [1]], (a[:n].detach().requires_grad_(), w)))


def test_hooks_of_results() -> None:
    """Torch calls those of all results of a compiled function, in eager those with a gradient."""
    found = []
    for call in (of_infinity, compiled(of_infinity)):
        a, w = operands()
        results = call(a, w)
        for result in results:
            result.register_hook(lambda grad: None if grad is None else grad * 3)
        (results[0].sum() + results[2]).backward()
        found.append([a.grad, w.grad])
    check(*found)


def test_twice_through_one_graph() -> None:
    found = []
    for call in (chain, compiled(chain)):
        a, w = operands()
        loss, logits, _ = call(a, w)
        loss.backward(retain_graph=True)
        (loss * 2 + logits.sum()).backward()
        found.append([a.grad, w.grad])
    check(*found)


def test_gradients_that_require_gradients() -> None:
    """`create_graph` works as long as nothing differentiates again, as in any compiled function."""
    found = []
    for call in (chain, compiled(chain)):
        a, w = operands()
        (grad,) = torch.autograd.grad(call(a, w)[0], a, create_graph=True)
        assert grad.requires_grad
        found.append([grad.detach()])
    check(*found)


def test_compiled_autograd_gets_zeros() -> None:
    call = compiled(chain)
    expected = stepped(chain, [[0], [0]], operands())
    with compiled_autograd._enable(torch.compile(backend="eager")):
        check(expected, stepped(call, [[0], [0]], operands()))
    check(expected, stepped(call, [[0], [0]], operands()))


def test_without_torchs_support_there_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absent_gradients, "_accepts_none", lambda: False)
    expected = stepped(chain, [[0], [0, 2]], operands())
    check(expected, stepped(compiled(chain), [[0], [0, 2]], operands()))


class Heads(nn.Module):
    """A head whose result the loss does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.unused = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Tensors:
        x = torch.relu(self.body(x))
        return self.used(x), torch.sigmoid(self.unused(x))


def test_parameters_that_the_loss_does_not_depend_on_are_not_updated() -> None:
    """Weight decay of AdamW would change those with a gradient of zeros."""
    found = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        module: Any = Heads()
        call = compiled(module) if wrapped else module
        optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            call(torch.ones(2, 4))[0].sum().backward()
            optimizer.step()
        found.append([p.detach() for p in module.parameters()])
    check(*found)


class Parallel(nn.Module):
    """A loss next to the result of layers with parameters of their own."""

    def __init__(self, between: Function) -> None:
        super().__init__()
        self.body, self.before, self.after = (nn.Linear(4, 4) for _ in range(3))
        self.between = between

    def forward(self, x: torch.Tensor) -> Tensors:
        x = torch.tanh(self.body(x))
        return x.square().sum(), self.after(self.between(self.before(x)))


BETWEEN: dict[str, Function] = {
    "relu": torch.relu,
    "hardtanh": functional.hardtanh,
    "dropout": functional.dropout,
    "cumsum": lambda x: x.cumsum(0),
    "sort": lambda x: x.sort(-1)[0],
    "max": lambda x: x.max(-1, keepdim=True)[0] + x,
    "part": lambda x: functional.pad(x, (1, 1))[:, 1:5],
    "concatenation": lambda x: torch.cat([x, x * 2], 1)[:, 2:6],
    "convolution": lambda x: functional.conv1d(x[:, None], torch.ones(1, 1, 3), padding=1)[:, 0],
    "batch norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "pooling": lambda x: functional.max_pool1d(x, 3, 1, 1),
    "attention": lambda x: functional.scaled_dot_product_attention(*(x[None],) * 3)[0],
    "upsampling": lambda x: functional.interpolate(x[:, None], scale_factor=2)[:, 0, ::2],
}


def gradients_of(module: nn.Module) -> list[Any]:
    return [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
def test_parameters_before_any_op_have_no_gradient(between: Function) -> None:
    found = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        module: Any = Parallel(between)
        (compiled(module) if wrapped else module)(torch.randn(3, 4))[0].backward()
        found.append(gradients_of(module))
    check(*found)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None


def test_all_gradients_may_be_absent() -> None:
    found = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        module: Any = Heads()
        results = (compiled(module) if wrapped else module)(torch.ones(2, 4))
        sum(NoGradient.apply(result).sum() for result in results).backward()
        found.append(gradients_of(module))
    check(*found)


class Tasks(nn.Module):
    """Results of which each step has another loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = torch.relu(self.body(x))
        return [head(x).sin() for head in self.heads] + [x]


def test_sessions_are_limited() -> None:
    report = Report()
    module, reference = Tasks(), Tasks()
    reference.load_state_dict(module.state_dict())
    call = torch.compile(module, backend=partial(sardonyx_backend, report=report))
    x = torch.randn(3, 4)
    for chosen in range(1, 64, 4):
        for one, run in ((module, call), (reference, reference)):
            one.zero_grad()
            results = run(x)
            sum(r.sum() for i, r in enumerate(results) if chosen >> i & 1).backward()
        check(gradients_of(reference), gradients_of(module))
    (backward,) = [g.executor for g in report.graphs if g.kind == "backward"]
    assert len(backward._executors) <= absent_gradients._MAX_SESSIONS + 1


@pytest.mark.parametrize("name", ["a parameter", "an argument"])
def test_hooks_get_tensors(name: str) -> None:
    found = []
    for wrapped in (False, True):
        torch.manual_seed(0)
        module: Any = Parallel(torch.relu)
        inner = torch.randn(3, 4, requires_grad=True)
        x = inner.sin()
        hooked = x if name == "an argument" else module.after.weight
        hooked.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
        (compiled(module) if wrapped else module)(x)[0].backward()
        found.append([inner.grad, module.body.weight.grad])
    check(*found)


def test_nodes_of_other_threads_get_zeros() -> None:
    """Each thread has sequence numbers of its own: higher ones do not say that the call made it."""
    both = torch.compile(lambda x: (x * 2, x.sin()), backend="aot_eager")

    def argument(a: torch.Tensor) -> torch.Tensor:
        while _get_sequence_nr() < 50_000:
            a * 1
        return both(a)[0]  # type: ignore[no-any-return]

    def views(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        return x.view(-1), (x @ w).sin()

    def gradients(call: Function) -> list[Any]:
        a, w = operands()
        with ThreadPoolExecutor(1) as pool:
            x = pool.submit(argument, a).result()
        call(x, w)[0].sum().backward()
        return [a.grad, w.grad]

    with ThreadPoolExecutor(1) as pool:  # with few numbers so far
        check(*pool.map(gradients, (views, compiled(views))))
