"""Memory of training steps: activations are freed while gradients are made, and none is lost."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sardonyx._native import BlockPool, Caching
from sardonyx.dynamo.executor import Executor
from sardonyx.dynamo.lower import GraphLowering
from sardonyx.program.native import RunSettings
from sardonyx.session.block_pools import pool_for
from sardonyx.train import wrap

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
    """Return all gradients; those that eager leaves out are zeros in a compiled module."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]


def pool() -> BlockPool:
    """The pool that the sessions of all wrapped modules share."""
    return pool_for(RunSettings(caching=Caching.PAGES, shares_memory=True))


def peak_bytes(module: nn.Module, x: torch.Tensor) -> int:
    """The most bytes of activations and gradients at once in a step that is compiled already."""
    step(module, x)
    module.zero_grad()
    gc.collect()
    pool().release_cached()
    assert pool().live_blocks == 0
    step(module, x)
    module.zero_grad()
    gc.collect()
    assert pool().live_blocks == 0
    return pool().cached_bytes


def saved_activations(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """What the forward graph saves, without parameters and the input."""
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


def test_a_budget_lowers_the_peak() -> None:
    x, peaks = rows(512), []
    for budget in (None, 0.5, 0.2):
        torch._dynamo.reset()
        peaks.append(peak_bytes(wrap(stack(), memory_budget=budget), x))
    assert peaks[1] < 0.8 * peaks[0]
    assert peaks[2] < 0.8 * peaks[1]


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
