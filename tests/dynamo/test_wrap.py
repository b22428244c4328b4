"""A wrapped module behaves as the plain one: training, evaluation, state, and what is reported."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sardonyx.errors import InvalidArgument
from sardonyx.train import report, wrap

Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _reset_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Mlp(nn.Module):
    """Linear layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16), nn.Linear(16, 6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Convs(nn.Module):
    """Convolutions with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.down = nn.Conv2d(8, 6, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.reshape(2, 2, 4, 6).permute(0, 3, 1, 2)
        return self.down(torch.relu(self.norm(self.conv(image)))).flatten(1)  # type: ignore[no-any-return]


class Tied(nn.Module):
    """One weight as embedding and as output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = x.abs().mul(3).long().clamp(0, 10)
        return self.head(self.embedding(ids))  # type: ignore[no-any-return]


class Checkpointed(Mlp):
    """Activations recomputed by torch.utils.checkpoint."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)  # type: ignore[no-any-return]


class InPlace(Mlp):
    """A buffer that is updated in place, and an input that is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        hidden = self.layers(x)
        hidden[:, 0] = self.count
        return hidden.relu_()  # type: ignore[no-any-return]


MODULES: dict[str, type[nn.Module]] = {
    "dropout": Mlp, "running statistics": Convs, "tied weights": Tied,
    "checkpoint": Checkpointed, "in place": InPlace,
}  # fmt: skip


def train(module: nn.Module, n_steps: int = 4) -> list[float]:
    """Losses of steps with accumulation and clipping."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        for _ in range(2):
            loss = module(torch.randn(16, 6)).square().mean()
            loss.backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    return losses


def both(kind: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    """A plain module, and a wrapped one with the same weights."""
    torch.manual_seed(0)
    plain = kind()
    return plain, wrap(copy.deepcopy(plain))


@pytest.mark.parametrize("name", MODULES)
def test_training_is_that_of_eager(name: str) -> None:
    plain, wrapped = both(MODULES[name])
    assert train(wrapped) == pytest.approx(train(plain), rel=1e-5)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(wrapped.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    assert not report(wrapped).fallbacks, str(report(wrapped))


@pytest.mark.parametrize("name", MODULES)
def test_evaluation_and_no_grad(name: str) -> None:
    plain, wrapped = both(MODULES[name])
    x = torch.randn(16, 6)
    for module in (plain, wrapped):
        module.eval()
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), plain(x), rtol=1e-4, atol=1e-5)
    assert report(wrapped).graphs[-1].kind == "inference"


def test_autocast() -> None:
    plain, wrapped = both(Mlp)
    x = torch.randn(16, 6)
    found = []
    for module in (plain.eval(), wrapped.eval()):
        with torch.autocast("cpu", torch.bfloat16):
            y = module(x)
        y.float().sum().backward()
        found.append((y, [p.grad for p in module.parameters()]))
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.05)
    assert not report(wrapped).fallbacks


def test_sizes_may_change() -> None:
    plain, wrapped = both(Mlp)
    for n in (4, 7, 9, 12):
        x = torch.randn(n, 6)
        torch.testing.assert_close(wrapped.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)
    # One graph for the first size, and one for all others.
    assert sum(g.kind == "forward" for g in report(wrapped).graphs) == 2


def test_the_module_stays_what_it_is() -> None:
    plain, wrapped = both(Mlp)
    assert type(wrapped) is Mlp
    assert list(wrapped.state_dict()) == list(plain.state_dict())
    train(wrapped, 1)
    plain.load_state_dict(wrapped.state_dict())
    copied = copy.deepcopy(wrapped)
    saved = io.BytesIO()
    torch.save(wrapped, saved)
    saved.seek(0)
    x = torch.randn(3, 6)
    expected = plain.eval()(x)
    for other in (wrapped, copied, torch.load(saved, weights_only=False)):
        torch.testing.assert_close(other.eval()(x), expected, rtol=1e-4, atol=1e-5)


def test_hooks_run() -> None:
    _, wrapped = both(Mlp)
    calls: list[str] = []
    wrapped.register_forward_hook(lambda *_: calls.append("forward"))
    for p in wrapped.parameters():
        p.register_post_accumulate_grad_hook(lambda _: calls.append("gradient"))
    train(wrapped, 1)
    assert calls.count("forward") == 2
    assert calls.count("gradient") == 2 * len(list(wrapped.parameters()))


class WithFallback(Mlp):
    """An op that has no lowering, between ops that have one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return torch.linalg.qr(y @ y.T + torch.eye(len(y)))[1] * y.sum()  # type: ignore[no-any-return]


def test_fallbacks_are_right_and_reported() -> None:
    plain, wrapped = both(WithFallback)
    assert train(wrapped, 1) == pytest.approx(train(plain, 1), rel=1e-4)
    text = str(report(wrapped))
    assert "aten.linalg_qr.default runs in torch: it has no lowering" in text
    assert "torch.linalg.qr(y @ y.T" in text  # the user's line


class WithBreak(Mlp):
    """A call that TorchDynamo cannot trace."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        torch._dynamo.graph_break()
        return y * 2  # type: ignore[no-any-return]


def test_graph_breaks_are_reported() -> None:
    plain, wrapped = both(WithBreak)
    assert train(wrapped, 1) == pytest.approx(train(plain, 1), rel=1e-4)
    assert "graph break" in str(report(wrapped))


def test_nan_losses_stay_nan() -> None:
    _, wrapped = both(Mlp)
    loss = wrapped(torch.full((2, 6), float("nan"))).sum()
    assert loss.isnan()


def test_bad_arguments() -> None:
    with pytest.raises(InvalidArgument, match=r"takes a torch\.nn\.Module, not int"):
        wrap(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="must be from 0 to 1"):
        wrap(Mlp(), memory_budget=40)
    with pytest.raises(InvalidArgument, match="not wrapped"):
        report(Mlp())


class NormalizedConvs(torch.nn.Module):
    """Convolutions with batch normalization, whose running statistics each step replaces."""

    def __init__(self) -> None:
        super().__init__()
        layers = (torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        inner = (torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
        self.layers = torch.nn.Sequential(*layers, *inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


@pytest.mark.parametrize("budget", [None, 0.4, 0.0])
def test_batch_norm_is_computed_again_without_running_statistics(budget: float | None) -> None:
    torch.manual_seed(0)
    plain = NormalizedConvs()
    wrapped = wrap(copy.deepcopy(plain), memory_budget=budget)
    for module in (plain, wrapped):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(torch.randn(4, 3, 10, 11)).backward()
            optimizer.step()
    for (name, ours), theirs in zip(
        wrapped.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=name)


def test_a_memory_budget_changes_nothing_but_memory() -> None:
    plain, _ = both(Mlp)
    tight = wrap(copy.deepcopy(plain), memory_budget=0.2)
    assert train(tight) == pytest.approx(train(plain), rel=1e-5)
