"""Compiled graphs are stored and loaded again, and never for another graph or another setting."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sardonyx.dynamo import cache as graph_cache
from sardonyx.dynamo import cache_limit
from sardonyx.train import report, wrap

if not graph_cache._IS_AVAILABLE:
    pytest.skip("this torch has no cache for our graphs", allow_module_level=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(graph_cache.VARIABLE, raising=False)
    torch._dynamo.reset()
    yield tmp_path
    torch._dynamo.reset()


def entries(folder: Path) -> list[Path]:
    return sorted(p for p in folder.glob("aotautograd/*/*") if p.is_file())


class Layers(nn.Module):
    """Linear layers; `act` and `p` are constants of the graph."""

    def __init__(self, act: Callable[..., Any] = nn.functional.gelu, p: float = 0.2) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 6)
        self.act, self.p = act, p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.act(self.first(x)), self.p, self.training)
        return self.last(self.norm(x))  # type: ignore[no-any-return]


class Convs(nn.Module):
    """A convolution with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x[:, None, None, :]))).flatten(1)


class Recurrent(nn.Module):
    """Two layers of an LSTM, with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, dropout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x[:, None])[0]  # type: ignore[no-any-return]


class Draws(nn.Module):
    """Every form of a draw, and a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.scale + torch.rand(x.shape) + torch.randn_like(x)
        y = y * torch.bernoulli(torch.full_like(x, 0.5)) + torch.normal(x, 0.1)
        return (y + torch.tensor([1.0, 2, 3, 4, 5, 6]))[torch.randperm(len(x))]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "layers": Layers, "convs": Convs, "recurrent": Recurrent, "draws": Draws,
}  # fmt: skip


def ran(
    make: Callable[[], nn.Module], n: int = 5, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[list[torch.Tensor], list[bool]]:
    """Train a new module for a step: its loss, gradients and state, and which graphs were loaded.

    With `eager=True` torch runs it; other options are those of `wrap`.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    is_eager, sizes = options.pop("eager", False), options.pop("sizes", (n,))
    module = make().to(dtype)
    called = module if is_eager else wrap(module, **options)
    results: list[torch.Tensor] = []
    for size in sizes:
        loss = called(torch.linspace(-2, 2, size * 6, dtype=dtype).reshape(size, 6)).square().mean()
        loss.backward()
        results.append(loss.detach())
    results += [p.grad for p in module.parameters() if p.grad is not None]
    results += [b.clone() for b in module.buffers()]
    return results, [] if is_eager else [g.is_cached for g in report(module).graphs]


def check(results: list[torch.Tensor], make: Callable[[], nn.Module], **options: Any) -> None:
    """Compare results with those of eager torch."""
    for ours, theirs in zip(results, ran(make, eager=True, **options)[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_the_second_compilation_loads_the_graphs(name: str, folder: Path) -> None:
    make = MODULES[name]
    first, were_cached = ran(make)
    assert were_cached == [False, False]
    assert len(entries(folder)) == 1
    second, are_cached = ran(make)
    assert are_cached == [True, True]
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    check(second, make)


def test_dynamic_sizes() -> None:
    """Graphs for all sizes, with draws and results whose sizes are formulas."""

    class Doubled(Draws):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return torch.cat([y, torch.rand(2 * len(x) + 1, 6)]) * x.shape[0]

    _, were_cached = ran(Doubled, dynamic=True, sizes=(5, 7))
    assert were_cached == [False, False]
    results, are_cached = ran(Doubled, dynamic=True, sizes=(4, 9))
    assert are_cached == [True, True]
    check(results, Doubled, sizes=(4, 9))


def test_inference() -> None:
    for expected in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = wrap(Layers().eval())
        x = torch.ones(3, 6)
        with torch.no_grad():
            y = module(x)
        assert [(g.kind, g.is_cached) for g in report(module).graphs] == [("inference", expected)]
        torch.manual_seed(0)
        torch.testing.assert_close(y, Layers().eval()(x))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


CHANGES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], Any]] = {
    "activation": (lambda: Layers(nn.functional.silu), {}, nullcontext()),
    "probability": (lambda: Layers(p=0.3), {}, nullcontext()),
    "evaluation": (lambda: Layers().eval(), {}, nullcontext()),
    "dtype": (Layers, {"dtype": torch.float64}, nullcontext()),
    "shape": (Layers, {"n": 6}, nullcontext()),
    "default dtype": (Layers, {}, default_dtype(torch.float64)),
    "autocast": (Layers, {}, torch.autocast("cpu", torch.bfloat16)),
    "attention": (Layers, {}, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_graph_has_another_entry(name: str, folder: Path) -> None:
    ran(Layers)
    make, options, context = CHANGES[name]
    with context:
        results, were_cached = ran(make, **options)
        if name != "autocast":  # whose roundings differ
            check(results, make, **options)
    assert were_cached == [False, False]
    assert len(entries(folder)) == 2


def test_a_memory_budget_has_another_entry() -> None:
    ran(Layers)
    assert ran(Layers, memory_budget=0.5)[1] == [False, False]
    assert ran(Layers, memory_budget=0.5)[1] == [True, True]


@pytest.mark.parametrize("target", ["_package_digest", "version"])
def test_another_version_has_another_entry(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran(Layers)
    if target == "version":
        monkeypatch.setattr("sardonyx._native.version", "0.0.0")
    else:
        monkeypatch.setattr(graph_cache, target, lambda: "another")
    assert ran(Layers)[1] == [False, False]


def test_another_build_of_the_extension_changes_the_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest_of_package = graph_cache._package_digest.__wrapped__
    built = tmp_path / "_native.so"
    built.write_bytes(b"one build")
    monkeypatch.setattr("sardonyx._native.__file__", str(built))
    first = digest_of_package()
    assert digest_of_package() == first
    times = built.stat()
    built.write_bytes(b"new build")
    os.utime(built, ns=(times.st_atime_ns, times.st_mtime_ns))  # as installers may
    assert digest_of_package() != first


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    "damage",
    [truncated, lambda _: b"", lambda _: b"not a pickle", lambda _: pickle.dumps({"of": "others"})],
    ids=["truncated", "empty", "text", "foreign"],
)
def test_damaged_files_are_ignored(damage: Callable[[bytes], bytes], folder: Path) -> None:
    ran(Layers)
    (path,) = entries(folder)
    path.write_bytes(damage(path.read_bytes()))
    results, were_cached = ran(Layers)
    assert were_cached == [False, False]
    check(results, Layers)


def test_a_read_only_folder(folder: Path) -> None:
    (folder / "aotautograd").write_text("a file in the place of the folder")
    results, were_cached = ran(Layers)
    assert were_cached == [False, False]
    check(results, Layers)


@pytest.mark.parametrize("how", ["argument", "variable", "torch without it"])
def test_disabled_cache(how: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "variable":
        monkeypatch.setenv(graph_cache.VARIABLE, "0")
    elif how == "torch without it":
        monkeypatch.setattr(graph_cache, "_IS_AVAILABLE", False)
    for _ in range(2):
        results, were_cached = ran(Layers, cache=how != "argument")
        assert were_cached == [False, False]
        check(results, Layers)
    assert not entries(folder)


def test_graphs_with_calls_in_torch_are_not_stored(folder: Path) -> None:
    class Spectral(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * torch.view_as_real(torch.fft.rfft(x)).sum()

    for _ in range(2):
        results, were_cached = ran(Spectral)
        assert were_cached == [False, False]
        check(results, Spectral)
    assert not entries(folder)


def test_graphs_with_custom_torch_ops_are_not_stored(folder: Path) -> None:
    """The code of an op that a program defines may change without a trace in the graph."""
    library: Any = torch.library.Library("cache_test", "DEF")  # type: ignore[no-untyped-call]
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: x * 2.0, "CompositeImplicitAutograd")

    class Scaled(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.cache_test.scaled(super().forward(x))  # type: ignore[no-any-return]

    results, _ = ran(Scaled)
    check(results, Scaled)
    assert not entries(folder)


def test_another_process_loads_the_graphs(folder: Path) -> None:
    script = (
        "import torch; from torch import nn; from sardonyx.train import report, wrap\n"
        "m = wrap(nn.Sequential(nn.Linear(4, 4), nn.GELU()))\n"
        "m(torch.ones(2, 4)).sum().backward()\n"
        "print([g.is_cached for g in report(m).graphs])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True,
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)},
        ).stdout.strip()
        for _ in range(2)
    ]  # fmt: skip
    assert outputs == ["[False, False]", "[True, True]"]


def test_stored_graphs_are_limited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache_limit.VARIABLE, "0")
    results, were_cached = ran(Layers)
    assert were_cached == [False, False]
    check(results, Layers)
    assert not entries(folder)
    monkeypatch.delenv(cache_limit.VARIABLE)
    ran(Layers)
    assert len(entries(folder)) == 1
    assert cache_limit._is_cached_graph(str(entries(folder)[0]))


@torch.no_grad()
def test_graphs_of_inference_have_parameters_as_constants(folder: Path) -> None:
    """The constants are those of the module that loads the graph."""
    x = torch.randn(3, 6)
    for seed, is_cached in ((0, False), (1, True)):
        torch._dynamo.reset()
        torch.manual_seed(seed)
        module = Layers().eval()
        wrapped = wrap(module)
        for _ in range(2):
            torch.testing.assert_close(wrapped(x), module._call_impl(x))
            module.last.weight.neg_()
        assert [graph.is_cached for graph in report(wrapped).graphs] == [is_cached]
    assert len(entries(folder)) == 1
