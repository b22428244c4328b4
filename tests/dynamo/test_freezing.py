"""Parameters as constants in inference: results follow every change of them, and none is leaked."""

from __future__ import annotations

import copy
import ctypes
import gc
import mmap
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sardonyx._native import MemoryDigest
from sardonyx.dynamo.backend import sardonyx_backend
from sardonyx.dynamo.freezing import FreezingExecutor


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FreezingExecutor]]:
    """The executors that a test compiles."""
    torch._dynamo.reset()
    executors: list[FreezingExecutor] = []
    init = FreezingExecutor.__init__

    def noted(self: FreezingExecutor, *args: Any) -> None:
        init(self, *args)
        executors.append(self)

    monkeypatch.setattr(FreezingExecutor, "__init__", noted)
    yield executors
    torch._dynamo.reset()


def network() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8)
    norm.running_mean, norm.running_var = torch.randn(8), torch.rand(8) + 0.5
    layers = (nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 5))
    return nn.Sequential(*layers).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def compiled(module: nn.Module, **options: Any) -> Callable[..., Any]:
    return torch.compile(module, backend="sardonyx", options={"cache": False, **options})


@torch.no_grad()
def assert_equal(module: nn.Module, call: Callable[..., Any], *args: torch.Tensor) -> None:
    """Compare with the module in eager torch."""
    args = args or (X,)
    torch.testing.assert_close(call(*args), module(*args), rtol=1e-4, atol=1e-5)


def n_frozen(made: list[FreezingExecutor]) -> list[int]:
    return [executor.n_frozen for executor in made]


def test_parameters_are_constants(made: list[FreezingExecutor]) -> None:
    module = network()
    call = compiled(module)
    for _ in range(3):
        assert_equal(module, call)
    assert n_frozen(made) == [1]
    (known,) = made[0]._known.values()
    assert known.run is not None
    assert [i.name for i in known.run.session.get_inputs()] == [known.run.lowered.tensors[0][1]]
    kernels = [node.op.name for node, *_ in known.run.session._compiled.program.nodes()]
    assert "BatchNormalization" not in kernels


def test_constants_are_the_memory_of_parameters(made: list[FreezingExecutor]) -> None:
    """An embedding is read where it is; what a kernel packs is extra, as in any session."""
    module = nn.Embedding(5000, 64).eval()
    ids = torch.tensor([[1, 4999]])
    assert_equal(module, compiled(module), ids)
    (known,) = made[0]._known.values()
    assert known.run is not None
    layouts = known.run.session._compiled.program.layouts
    (table,) = (a for a in layouts._arrays.values() if a.nbytes == 5000 * 64 * 4)
    assert table.ctypes.data == module.weight.data_ptr()


@torch.no_grad()
def test_version_counters_are_trusted_on_request(made: list[FreezingExecutor]) -> None:
    """Writes that torch counts are noticed; the bytes of parameters are not read."""
    module = network()
    call = compiled(module, freeze="versions")
    before = call(X)
    assert n_frozen(made) == [1]
    module[0].weight.data.mul_(2)  # type: ignore[index, union-attr]
    torch.testing.assert_close(call(X), before, rtol=0, atol=0)
    module[0].bias.add_(1)  # type: ignore[index, union-attr]
    assert_equal(module, call)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_memory_digests(threads: int) -> None:
    """A digest covers every byte and its position, for any split into threads."""
    memory = np.arange(3 * 2**18 + 13, dtype=np.uint8)
    spans = [(memory.ctypes.data, 2**18 + 3), (memory.ctypes.data + 2**19, 2**18 + 13)]
    digest = MemoryDigest(spans)
    first = digest.compute(1)
    assert digest.compute(threads) == first
    for at in (0, 8, 2**18 - 1, 2**18 + 2, 2**19, 3 * 2**18 + 12):
        memory[at] ^= 128
        assert digest.compute(threads) != first
        memory[at] ^= 128
    memory[2**18 + 3] ^= 1  # between the spans
    assert digest.compute(threads) == first
    assert MemoryDigest(spans[::-1]).compute(threads) != first
    assert MemoryDigest([]).compute(threads) == MemoryDigest([(0, 0)]).compute(1)


def _read_from_a_pipe(memory: np.ndarray[Any, Any]) -> None:
    """The kernel writes, not an instruction of this process."""
    ends = os.pipe()
    os.write(ends[1], b"written")
    with open(ends[0], "rb", buffering=0) as file:
        file.readinto(memory[2**19 + 5 : 2**19 + 9].data)
    os.close(ends[1])


def _write_in_a_thread(memory: np.ndarray[Any, Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(memory.fill, 3).result()


def _write_after_a_fork(memory: np.ndarray[Any, Any]) -> None:
    """Pages of a parent are copied on their first write after a fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    memory[2**20] ^= 1


WRITES: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "the first byte": lambda m: m.__setitem__(0, 9),
    "the last byte": lambda m: m.__setitem__(-1, 9),
    "a page": lambda m: m[2**19 : 2**19 + 4096].__imul__(3),
    "everything": lambda m: m.fill(7),
    "memset": lambda m: ctypes.memset(m.ctypes.data + 2**20, 3, 1),
    "a system call": _read_from_a_pipe,
    "a thread": _write_in_a_thread,
    "after a fork": _write_after_a_fork,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("is_shared", [False, True])
def test_digests_follow_writes_to_watched_memory(
    write: Callable[[np.ndarray[Any, Any]], Any], is_shared: bool
) -> None:
    """Also those of several digests of one memory, and of memory that cannot be watched."""
    anonymous = mmap.mmap(-1, 2**21 + 4096)
    shared = np.frombuffer(anonymous, np.uint8)[40 : 2**21 + 40]
    memory = shared if is_shared else np.zeros(2**21 + 40, np.uint8)[40:]
    memory[:] = np.arange(2**21, dtype=np.uint8)
    span = (memory.ctypes.data, memory.nbytes)
    digests = [MemoryDigest([span]), MemoryDigest([span]), MemoryDigest([(span[0] + 64, 2**20)])]
    before = [[digest.compute(1) for digest in digests] for _ in range(8)]
    assert all(values == before[0] for values in before)
    watched = [digest.watched_bytes for digest in digests]
    assert watched[0] == watched[1]
    assert watched[2] == 0
    assert not (is_shared and watched[0])
    write(memory)
    for _ in range(2):
        for digest, value in zip(digests[:2], before[0], strict=False):
            assert digest.compute(1) != value
        for digest in digests:
            assert digest.compute(2) == digest.compute(1)


def test_a_child_process_reads_watched_memory() -> None:
    memory = np.ones(2**20, np.uint8)
    digest = MemoryDigest([(memory.ctypes.data, memory.nbytes)])
    before = [digest.compute(1) for _ in range(8)][-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        is_same = digest.compute(1) == before
        memory[2**19] = 3
        os._exit(0 if is_same and digest.compute(1) != before else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert digest.compute(1) == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"freeze": "always"}, "freeze must be True, False or \"versions\", got 'always'"),
        ({"budget": 0.4}, "has no option 'budget'; it has memory_budget, cache, freeze"),
        (
            {"memory_budget": 7},
            "memory_budget must be a fraction of the activations' bytes from 0 to 1",
        ),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    call = torch.compile(nn.Linear(2, 2), backend="sardonyx", options=options)
    with pytest.raises(Exception, match=match):
        call(torch.ones(1, 2))


def test_parameters_stay_inputs_on_request(made: list[FreezingExecutor]) -> None:
    module = network()
    assert_equal(module, compiled(module, freeze=False))
    assert not made


def steps_of_sgd(module: nn.Module) -> None:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with torch.enable_grad():
        module(X).square().mean().backward()
    optimizer.step()


def loaded(module: nn.Module, assign: bool = False) -> None:
    state = {k: v * 2 if v.is_floating_point() else v for k, v in module.state_dict().items()}
    module.load_state_dict(state, assign=assign)


def statistics_updated(module: nn.Module) -> None:
    module.train()
    module(X)
    module.eval()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda m: m[0].weight.mul_(2),
    "one element": lambda m: m[0].weight[2, 1, 1].__setitem__(1, 9.0),
    "bias": lambda m: m[0].bias.add_(1),
    "data": lambda m: setattr(m[0].weight, "data", torch.randn_like(m[0].weight)),
    "writes through data": lambda m: m[0].weight.data.mul_(2),
    "one element through data": lambda m: m[0].weight.data[2, 1, 1].__setitem__(1, 9.0),
    "one element through numpy": lambda m: m[1].bias.detach().numpy().__setitem__(3, 7.0),
    "signs through data": lambda m: m[4].weight.data.neg_(),
    "two rows exchanged": lambda m: m[4].weight.data.copy_(m[4].weight[[1, 0, 2, 3, 4]]),
    "writes through numpy": lambda m: m[4].weight.detach().numpy().__imul__(2),
    "a new parameter": lambda m: setattr(m[4], "weight", nn.Parameter(torch.randn(5, 8 * 64))),
    "load_state_dict": loaded,
    "load_state_dict(assign)": lambda m: loaded(m, assign=True),
    "an optimizer": steps_of_sgd,
    "statistics": statistics_updated,
    "a buffer": lambda m: m[1].running_var.mul_(3),
    "another memory format": lambda m: m.to(memory_format=torch.channels_last),
    "another type and back": lambda m: m.double().float(),
}


@pytest.mark.parametrize("name", CHANGES)
@torch.no_grad()
def test_results_follow_changes(name: str, made: list[FreezingExecutor]) -> None:
    module = network()
    call = compiled(module)
    assert_equal(module, call)
    before = call(X)
    assert n_frozen(made) == [1]
    CHANGES[name](module)
    for _ in range(2):
        assert_equal(module, call)
    if name not in ("another memory format", "another type and back"):
        assert not torch.allclose(before, call(X))


LARGE_CHANGES: dict[str, Callable[[Any], Any]] = {
    "one element through data": lambda m: m[0].weight.data[500, 7].neg_(),
    "writes through numpy": lambda m: m[0].weight.detach().numpy().__imul__(2),
    "an older array": lambda m: m.array.__imul__(2),
    "load_state_dict": loaded,
    "other memory": lambda m: setattr(m[0].weight, "data", torch.randn(512, 512)),
    "freed and made again": lambda m: m.__setitem__(0, nn.Linear(512, 512)),
}


@pytest.mark.parametrize("change", LARGE_CHANGES.values(), ids=LARGE_CHANGES)
@torch.no_grad()
def test_results_follow_changes_of_watched_parameters(
    change: Callable[[Any], Any], made: list[FreezingExecutor]
) -> None:
    torch.manual_seed(0)
    module: Any = nn.Sequential(nn.Linear(512, 512), nn.Tanh()).eval()
    module.array = module[0].weight.detach().numpy()
    x, call = torch.randn(2, 512), compiled(module)
    for _ in range(3):
        for _ in range(9):
            assert_equal(module, call, x)
        before = call(x)
        change(module)
        for _ in range(2):
            assert_equal(module, call, x)
        assert not torch.allclose(before, call(x))


@torch.no_grad()
def test_parameters_that_stay_are_frozen_again(made: list[FreezingExecutor]) -> None:
    """Once calls with parameters as inputs took as long as freezing did."""
    module = network()
    call = compiled(module)
    assert_equal(module, call)
    for seconds, expected in ((float("inf"), 0), (1e-9, 1)):
        (known,) = made[0]._known.values()
        known.seconds_to_freeze = seconds
        module[0].weight.mul_(1.5)  # type: ignore[index]
        assert_equal(module, call)
        assert n_frozen(made) == [0]
        for _ in range(3):
            assert_equal(module, call)
        assert n_frozen(made) == [expected]


def test_alternating_training_and_evaluation() -> None:
    module = network()
    reference = copy.deepcopy(module)
    call = compiled(module)
    for _ in range(3):
        for one, run in ((module, call), (reference, reference)):
            one.train()
            optimizer = torch.optim.SGD(one.parameters(), 0.1)
            run(X).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            one.eval()
        assert_equal(reference, call)


class Tied(nn.Module):
    """An embedding that is the classifier, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding(ids)))  # type: ignore[no-any-return]


@torch.no_grad()
def test_tied_weights() -> None:
    module, ids = Tied().eval(), torch.tensor([[3, 7, 49]])
    call = compiled(module)
    assert_equal(module, call, ids)
    module.embedding.weight.neg_()
    assert_equal(module, call, ids)
    module.head.weight = nn.Parameter(torch.randn(50, 16))  # no longer tied
    assert_equal(module, call, ids)


class Transposed(nn.Module):
    """Parameters over the same memory, with other strides."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(64, 64))
        self.second = nn.Parameter(self.first.detach().t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(nn.functional.linear(x, self.first))
        return nn.functional.linear(hidden, self.second)


@torch.no_grad()
def test_a_matrix_and_its_transpose(made: list[FreezingExecutor]) -> None:
    module, x = Transposed().eval(), torch.randn(3, 64)
    call = compiled(module)
    assert_equal(module, call, x)
    assert n_frozen(made) == [1]
    module.first.mul_(2)
    assert_equal(module, call, x)


def test_modules_of_one_class_have_their_own_constants(made: list[FreezingExecutor]) -> None:
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval() for _ in range(4)]
    forward = torch.compile(
        lambda module, x: module(x), backend=partial(sardonyx_backend, options={"cache": False})
    )
    x = torch.randn(3, 8)
    for _ in range(3):
        for layer in layers:
            assert_equal(layer, partial(forward, layer), x)
    assert sum(n_frozen(made)) == len(layers)


def test_sizes_that_change(made: list[FreezingExecutor]) -> None:
    module = network()
    call = compiled(module)
    for n in (2, 3, 5):
        assert_equal(module, call, torch.randn(n, 3, 8, 8))
    assert n_frozen(made) == [1, 1]  # for 2, and for any size


def test_calls_that_run_in_torch(made: list[FreezingExecutor]) -> None:
    """The graph is split; the submodules that are ours have constants."""

    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(5, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.fft.rfft(self.first(x)).abs())  # type: ignore[no-any-return]

    module, x = Spectrum().eval(), torch.randn(3, 8)
    call = compiled(module)
    assert_equal(module, call, x)
    assert n_frozen(made) == [1, 1]
    with torch.no_grad():
        module.second.weight.neg_()
    assert_equal(module, call, x)


def test_tensors_without_counted_writes_stay_inputs(made: list[FreezingExecutor]) -> None:
    with torch.inference_mode():
        module = nn.Linear(8, 3).eval()
        call, x = compiled(module), torch.randn(2, 8)
        torch.testing.assert_close(call(x), module(x))
        module.weight.mul_(2)
        torch.testing.assert_close(call(x), module(x))
    assert n_frozen(made) == [0]


def test_graphs_with_gradients_have_no_constants(made: list[FreezingExecutor]) -> None:
    module = network()
    compiled(module)(X).sum().backward()
    assert not made
    assert module[0].weight.grad is not None  # type: ignore[index,union-attr]


def test_deleted_modules_are_freed(made: list[FreezingExecutor]) -> None:
    module = network()
    call = compiled(module)
    assert_equal(module, call)
    (known,) = made[0]._known.values()
    assert known.run is not None
    session = weakref.ref(known.run.session)
    weight = weakref.ref(module[0].weight)  # type: ignore[index]
    del module, call, known
    gc.collect()  # torch's compiled code stays
    assert weight() is None
    assert session() is None
    assert not made[0]._known


def test_packed_weights_are_shared_between_graphs(made: list[FreezingExecutor]) -> None:
    """The graph for any batch size reads what was packed for the first."""
    module = nn.Sequential(nn.Linear(256, 512), nn.ReLU()).eval()
    call = compiled(module)
    for n in (2, 3):
        assert_equal(module, call, torch.randn(n, 256))
    runs = [known.run for executor in made for known in executor._known.values()]
    first, second = (run.session._compiled.program.layouts._arrays.values() for run in runs if run)
    packed = {a.ctypes.data for a in first if a.nbytes >= 256 * 512 * 4}
    assert packed
    assert packed == {a.ctypes.data for a in second if a.nbytes >= 256 * 512 * 4}
