"""Memory of training steps: activations are freed while gradients are made, and none is lost."""

from __future__ import annotations

import copy
import gc
import pathlib
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sardonyx._native import BlockPool, Caching
from sardonyx.base.units import format_bytes
from sardonyx.dynamo.executor import Executor
from sardonyx.dynamo.lower import GraphLowering
from sardonyx.program.native import RunSettings
from sardonyx.session.block_pools import pool_for
from sardonyx.train import optim, report, wrap

WIDTH, N_LAYERS = 128, 12


@pytest.fixture(autouse=True)
def _reset_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Layer(nn.Module):
    """The MLP of a transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Stack(nn.Sequential):
    """Equal layers; the hidden values in the middle are an output, too."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = len(self) // 2
        for layer in self[:half]:
            x = layer(x)
        y = x
        for layer in self[half:]:
            y = layer(y)
        return y, x


def stack(n_layers: int = N_LAYERS) -> nn.Module:
    torch.manual_seed(0)
    return Stack(*(Layer() for _ in range(n_layers)))


def rows(n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed))


def step(module: nn.Module, x: torch.Tensor) -> None:
    module(x)[0].square().mean().backward()


def gradients(module: nn.Module) -> list[torch.Tensor]:
    """Return all gradients, zeros for those that are absent."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]


def pool() -> BlockPool:
    """The pool that the sessions of all wrapped modules share."""
    return pool_for(RunSettings(caching=Caching.PAGES, shares_memory=True))


def peak_bytes(module: nn.Module, x: torch.Tensor) -> int:
    """The most bytes of activations and gradients at once in a step that is compiled already."""
    return peak_of(lambda: step(module, x), module)


def peak_of(train: Callable[[], object], module: nn.Module) -> int:
    """Likewise, of any function that trains a module for a step."""
    train()
    module.zero_grad()
    gc.collect()
    pool().release_cached()
    assert pool().live_blocks == 0
    train()
    module.zero_grad()
    gc.collect()
    assert pool().live_blocks == 0
    return pool().cached_bytes


def saved_activations(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return the values that the forward graph saves, without parameters and the input."""
    given = {t.data_ptr() for t in (x, *module.parameters())}
    saved = module(x)[0].grad_fn.saved_tensors
    return [t for t in saved if t is not None and t.data_ptr() not in given]


def test_activations_are_freed_as_gradients_are_made() -> None:
    module, x = wrap(stack()), rows(256)
    saved = sum(t.nbytes for t in saved_activations(module, x))
    made = sum(p.nbytes for p in module.parameters())
    assert saved > 6 << 20
    assert made > 6 << 20
    assert peak_bytes(module, x) < 0.75 * (saved + made)


def test_cheap_activations_are_not_saved() -> None:
    """Of each layer its input and the input of the activation, not what the others return."""
    module, x = wrap(stack()), rows(256)
    saved = sum(t.nbytes for t in saved_activations(module, x))
    assert saved < 1.1 * N_LAYERS * (4 + 1) * x.nbytes


class Tagger(nn.Module):
    """An embedding, whose gradient is larger than everything else, and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(10_000, 256), nn.LSTM(256, 256, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.embedding(ids))[0]  # type: ignore[no-any-return]


def test_the_last_gradient_is_the_memory_of_the_layers_before_it() -> None:
    """What is resident is what the plan says is live, and the largest gradient is made last."""
    ids = torch.randint(0, 10_000, (64, 16))
    module = wrap(Tagger(), memory_budget=0.0, cache=False)
    peak = peak_of(lambda: module(ids).square().mean().backward(), module)
    planned = report(module).step_memory()
    (timeline,) = (graph.timeline for graph in planned.backward)
    assert peak < 1.02 * planned.peak_bytes
    assert all(t.bytes < 10_000 * 256 * 4 for t in timeline.alive(timeline.peak_step))


class Block(nn.Module):
    """A transformer block with dropout."""

    def __init__(self, width: int = 64, n_heads: int = 2) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (
            self.qkv(self.norms[0](x)).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)
        )
        y = nn.functional.scaled_dot_product_attention(*heads, dropout_p=0.1)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norms[1](x)))))  # type: ignore[no-any-return]


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(6)), nn.Linear(64, 10))


def trained(budget: float | None, n_rows: int = 8) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """The loss, the gradients and the peak of a step of the transformer."""
    torch._dynamo.reset()
    module = wrap(transformer(), memory_budget=budget, cache=False)
    x = torch.randn(n_rows, 64, 64, generator=torch.Generator().manual_seed(1))
    losses = []

    def train() -> None:
        torch.manual_seed(3)
        losses.append(module(x).square().mean())
        losses[-1].backward()

    train()
    made = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    loss = losses.pop().detach()
    return loss, made, peak_of(lambda: (train(), losses.clear()), module)


def test_a_smaller_budget_never_needs_more_memory() -> None:
    """And results have the same bytes: dropout's masks are not drawn again."""
    loss, made, whole = trained(None)
    previous = whole
    for budget in (0.8, 0.6, 0.4, 0.2, 0.05, 0.0):
        again, gradients_again, peak = trained(budget)
        assert torch.equal(again, loss)
        assert all(map(torch.equal, gradients_again, made))
        assert peak <= 1.01 * previous
        previous = peak
    assert previous < 0.5 * whole


class Bessel(nn.Module):
    """A call that torch runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.special.i1(x)


def test_a_budget_holds_around_calls_that_torch_runs() -> None:
    """Values that the backward graph recomputes after the call are not live before it."""
    peaks, made = [], []
    for budget in (None, 0.2):
        torch._dynamo.reset()
        layers = list(stack(8))
        module = wrap(
            nn.Sequential(*layers[:4], Bessel(), *layers[4:]), memory_budget=budget, cache=False
        )
        module(rows(1024)).square().mean().backward()
        made.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        peaks.append(peak_of(lambda m=module: m(rows(1024)).square().mean().backward(), module))
        assert report(module).fallbacks
    assert all(map(torch.equal, *made))
    assert peaks[1] < 0.6 * peaks[0]


def test_a_split_graph_frees_activations_as_it_reads_them() -> None:
    """Those that its first session reads, too."""
    peaks = []
    for middle in (Bessel(), nn.Identity()):
        torch._dynamo.reset()
        layers = list(stack(8))
        module = wrap(nn.Sequential(*layers[:4], middle, *layers[4:]), cache=False)
        peaks.append(peak_of(lambda m=module: m(rows(1024)).square().mean().backward(), module))
    assert peaks[0] < 1.15 * peaks[1]


def test_a_budget_in_bytes() -> None:
    def saved(budget: float | None) -> int:
        torch._dynamo.reset()
        module, x = wrap(stack(), memory_budget=budget, cache=False), rows(2048)
        return sum(t.nbytes for t in saved_activations(module, x))

    whole = saved(None)
    assert saved(whole / 2) == saved(0.5) <= whole / 2
    assert saved(2.0 * whole) == whole


@pytest.mark.parametrize(
    ("make", "budget", "is_released"),
    [(torch.optim.SGD, 0.5, True), (torch.optim.SGD, None, False), (optim.AdamW, 0.5, False)],
)
def test_pages_go_back_before_updates_that_allocate(
    make: Callable[..., torch.optim.Optimizer], budget: float | None, is_released: bool
) -> None:
    module = wrap(stack(), memory_budget=budget)
    optimizer = make(module.parameters(), lr=0.1)
    other = torch.optim.SGD([torch.ones(2)], 0.1)
    for _ in range(2):
        step(module, rows(512))
        before = pool().cached_bytes
        assert before > 1 << 20
        optimizer.step()
        assert pool().cached_bytes == (0 if is_released else before)
        step(module, rows(512))
        optimizer.step()
        before = pool().cached_bytes
        other.step()  # of a model that needs no memory of ours
        assert pool().cached_bytes == before
        loss = module(rows(512))[0].square().mean()
        other.step()
        loss.backward()
        before = pool().cached_bytes
        optimizer.step()
        assert pool().cached_bytes == (0 if is_released else before)


@pytest.mark.parametrize("budget", [None, 0.2])
def test_the_report_of_a_steps_memory(budget: float | None, tmp_path: pathlib.Path) -> None:
    module, x = wrap(stack(4), memory_budget=budget, cache=False), rows(512)
    found = report(module)
    assert "no step has run" in found.memory
    saved = saved_activations(module, x)
    step(module, x)
    lines = found.memory.splitlines()
    figures = {line[:14].strip(): line[14:].strip() for line in lines if not line.startswith(" ")}
    assert figures["saved"].startswith(format_bytes(sum(t.nbytes for t in saved)))
    made = sum(p.nbytes for p in module.parameters())
    assert figures["gradients"].startswith(format_bytes(made))
    assert figures["arguments"].startswith(format_bytes(made + x.nbytes))
    assert (
        re.search(r"^ +[\d.]+ MB  addmm(_\d)?  f32\[512,512\]  \d\.up$", found.memory, re.M)
        or budget
    )
    assert " steps of backward graphs" in figures["recomputed"]
    assert re.search(r" in step \d+ of \d+, ", figures["backward peak"])
    found.save_plan(tmp_path / "step.html")
    page = (tmp_path / "step.html").read_text("utf-8")
    assert "Memory of a training step" in page
    assert '"name":"backward"' in page


@torch._dynamo.config.patch(automatic_dynamic_shapes=False)
def test_the_report_has_the_graphs_of_the_latest_step() -> None:
    module = wrap(stack(2), cache=False)
    for n_rows in (1, 8, 8, 16):
        x = rows(n_rows)
        step(module, x)
        graphs = report(module).step_memory().graphs
        assert [g.kind for g in graphs] == ["forward", "backward"]
        n_bytes = sum(p.nbytes for p in module.parameters()) + x.nbytes
        assert graphs[0].argument_bytes == n_bytes


def test_the_planned_peak_is_that_of_the_run() -> None:
    module, x = wrap(stack(), cache=False), rows(1024)
    peak = peak_bytes(module, x)
    planned = max(g.timeline.lower_bound for g in report(module).step_memory().graphs)
    assert 0.95 * peak < planned < 1.05 * peak  # small blocks are not from the pool


def _one_batch(module: nn.Module) -> None:
    step(module, rows(40))


def _retained(module: nn.Module) -> None:
    loss = module(rows(40))[0].square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def _accumulated(module: nn.Module) -> None:
    for seed in (1, 2):
        step(module, rows(40, seed))


def _interleaved(module: nn.Module) -> None:
    """The activations of two batches are alive at once."""
    losses = [module(rows(40, seed))[0].square().mean() for seed in (1, 2)]
    for loss in losses:
        loss.backward()


def _both_outputs(module: nn.Module) -> None:
    y, hidden = module(rows(40))
    (y.square().mean() + hidden.sin().mean()).backward()


def _hidden_alone(module: nn.Module) -> None:
    module(rows(40))[1].square().mean().backward()


STEPS: dict[str, Callable[[nn.Module], None]] = {
    "one batch": _one_batch, "retain_graph": _retained, "accumulated": _accumulated,
    "interleaved": _interleaved, "two outputs": _both_outputs, "an inner output": _hidden_alone,
}  # fmt: skip


@pytest.mark.parametrize("budget", [None, 0.3])
@pytest.mark.parametrize("name", STEPS)
def test_gradients_are_those_of_eager(name: str, budget: float | None) -> None:
    plain = stack(2)
    wrapped = wrap(copy.deepcopy(plain), memory_budget=budget)
    for _ in range(2):  # the second step runs in the memory of the first
        for module in (plain, wrapped):
            module.zero_grad()
            STEPS[name](module)
        torch.testing.assert_close(gradients(wrapped), gradients(plain), rtol=1e-4, atol=1e-6)


def test_saved_tensors_that_the_user_holds_keep_their_values() -> None:
    module, x = wrap(stack(4)), rows(256)
    step(module, x)
    y, hidden = module(x)
    held = [y, hidden, *(t for t in y.grad_fn.saved_tensors if t is not None)]
    copies = [t.detach().clone() for t in held]
    y.square().mean().backward()
    step(module, rows(256, 5))  # in the memory that was freed
    for tensor, expected in zip(held, copies, strict=True):
        assert torch.equal(tensor.detach(), expected)


def test_gradients_outlive_the_module() -> None:
    plain = stack(2)
    module, x = wrap(copy.deepcopy(plain)), rows(256)
    for one in (plain, module):
        step(one, x)
    held = gradients(module)
    del module
    torch._dynamo.reset()
    gc.collect()
    step(wrap(stack(2)), rows(256, 7))
    torch.testing.assert_close(held, gradients(plain), rtol=1e-4, atol=1e-6)


def test_inputs_that_no_output_depends_on() -> None:
    """Tensors are not fed; numbers are still drawn, as the generator's state is the user's."""

    def function(x: torch.Tensor, unread: torch.Tensor) -> list[torch.Tensor]:
        torch.rand(3)
        return [x * 2]

    x, unread = torch.ones(4), torch.ones(5)
    lowered = GraphLowering(make_fx(function, tracing_mode="fake")(x, unread)).run()
    assert lowered is not None
    assert [index for index, _ in lowered.tensors] == [0]
    torch.manual_seed(0)
    (found,) = Executor(lowered, 1, is_backward=False)([x, unread])
    assert found.tolist() == [2] * 4
    state = torch.get_rng_state()
    torch.manual_seed(0)
    torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)
