"""A wrapped module behaves as the plain one: training, evaluation, state, and what is reported."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache

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
    torch._dynamo.utils.counters.clear()  # what other tests could not capture or compile
    torch._dynamo.utils.clear_compilation_metrics()
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


def test_the_module_keeps_its_class_and_state() -> None:
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


def test_warnings_once_break_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    warned = lru_cache(None)(lambda logger, text: logger.warning(text))
    monkeypatch.setattr(logging.Logger, "warning_once", warned, raising=False)
    log = logging.getLogger("of a model")

    class Warns(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            log.warning_once("only once")  # type: ignore[attr-defined]
            return super().forward(x)

    module = wrap(Warns())
    module(torch.ones(2, 6)).sum().backward()
    assert not report(module).graph_breaks
    assert [g.kind for g in report(module).graphs] == ["forward", "backward"]


def test_nan_losses_propagate() -> None:
    _, wrapped = both(Mlp)
    loss = wrapped(torch.full((2, 6), float("nan"))).sum()
    assert loss.isnan()


def test_nan_in_a_row_reaches_the_gradients_of_eager() -> None:
    plain, wrapped = both(Mlp)
    x = torch.randn(4, 6)
    x[1, 2] = torch.nan
    found = []
    for module in (plain.eval(), wrapped.eval()):
        y = module(x)
        y[0].sum().backward()
        found.append((y, [p.grad for p in module.parameters()]))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)
    assert found[1][0].isnan().any()


class OfType(nn.Module):
    """A product in a type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight)


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (torch.float64, ""),
        (torch.complex64, "unsupported dtype torch.complex64"),
    ],
)
def test_types(dtype: torch.dtype, reason: str) -> None:
    plain = OfType(dtype)
    wrapped = wrap(copy.deepcopy(plain))
    x = torch.randn(3, 6, dtype=dtype)
    results = []
    for module in (plain, wrapped):
        y = module(x)
        y.abs().sum().backward()
        results.append((y, module.weight.grad))
    torch.testing.assert_close(results[1], results[0])
    text = str(report(wrapped))
    assert reason in text
    assert bool(report(wrapped).fallbacks) == bool(reason)
    assert not reason or "self.weight" in text  # the user's line


def test_a_module_that_is_not_captured_is_reported() -> None:
    wrapped = wrap(nn.GaussianNLLLoss())  # raises an error where data are negative
    arguments = torch.randn(3), torch.randn(3), torch.rand(3)
    torch.testing.assert_close(wrapped(*arguments), nn.GaussianNLLLoss()(*arguments))
    text = str(report(wrapped))
    assert "nothing is compiled" in text
    assert "Data dependent operator" in text
    assert "TORCH_LOGS=graph_breaks" in text


class Modes(Mlp):
    """A branch on an attribute, which each graph is compiled for."""

    mode = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * len(self.mode)


def test_too_many_compilations_are_reported() -> None:
    plain, wrapped = both(Modes)
    x = torch.randn(2, 6)
    for n in range(torch._dynamo.config.recompile_limit + 2):
        plain.mode = wrapped.mode = "m" * n
        torch.testing.assert_close(wrapped.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)
    assert "torch._dynamo.config.recompile_limit is the limit" in str(report(wrapped))


def test_modules_of_one_class_have_limits_of_their_own() -> None:
    x = torch.randn(2, 6)
    for _ in range(torch._dynamo.config.recompile_limit + 2):
        plain, wrapped = both(Mlp)
        torch.testing.assert_close(wrapped.eval()(x), plain.eval()(x), rtol=1e-4, atol=1e-5)
        assert report(wrapped).graphs


def test_wrong_sizes_are_errors_of_torch() -> None:
    _, wrapped = both(Mlp)
    wrapped(torch.randn(2, 6))
    with pytest.raises(Exception, match=r"must have same reduction dim(.|\n)*self\.layers\(x\)"):
        wrapped(torch.randn(2, 5))
    assert wrapped(torch.randn(2, 3, 6)).shape == (2, 3, 6)  # another rank is another graph


def test_quantized_modules_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates its quantized types
        plain = torch.ao.quantization.quantize_dynamic(Mlp().eval(), {nn.Linear}, torch.qint8)
    wrapped = wrap(copy.deepcopy(plain))
    x = torch.randn(3, 6)
    with torch.no_grad():
        torch.testing.assert_close(wrapped(x), plain(x), rtol=1e-4, atol=1e-5)
    text = str(report(wrapped))
    assert "runs in torch" in text or "graph break" in text or "nothing is compiled" in text


def test_bad_arguments() -> None:
    with pytest.raises(InvalidArgument, match=r"takes a torch\.nn\.Module, not int"):
        wrap(3)  # type: ignore[arg-type]
    for budget in (40, -0.1, float("nan"), float("inf")):
        with pytest.raises(InvalidArgument, match="from 0 to 1, or at least 1024 bytes"):
            wrap(Mlp(), memory_budget=budget)
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
