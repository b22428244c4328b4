"""Executors: tensors are read and returned by one native call, without arrays in between."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from sardonyx._native import TensorExchange
from sardonyx.dynamo import executor as executor_module
from sardonyx.dynamo.executor import Executor
from sardonyx.dynamo.lower import GraphLowering


def executor_of(function: Callable[..., Any], *args: torch.Tensor) -> Executor:
    """The executor of a function that returns a tuple."""
    lowered = GraphLowering(make_fx(function)(*args)).run()
    assert lowered is not None
    return Executor(lowered, 1)


@pytest.fixture(params=["exchange", "arrays"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code reads tensors or, for older torches, arrays over their memory."""
    if request.param == "arrays":
        monkeypatch.setattr(executor_module, "EXCHANGE", None)


CASES: dict[str, torch.Tensor] = {
    "plain": torch.randn(3, 5),
    "large": torch.randn(300, 50),
    "gaps": torch.randn(6, 5)[::2],
    "transposed": torch.randn(5, 3).t(),
    "expanded": torch.randn(3, 1).expand(3, 5),
    "offset": torch.randn(20)[5:].view(3, 5),
    "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 5),
    "a gradient is wanted": torch.randn(3, 5, requires_grad=True),
    "parameter": nn.Parameter(torch.randn(3, 5)),
    "bfloat16": torch.randn(3, 5).to(torch.bfloat16),
    "float16": torch.randn(3, 5).half(),
    "float64": torch.randn(3, 5).double(),
    "int64": torch.arange(15).view(3, 5),
    "int8": torch.arange(15, dtype=torch.int8),
    "uint8": torch.arange(15, dtype=torch.uint8),
}


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("name", CASES)
def test_tensors_of_every_kind(name: str) -> None:
    x = CASES[name]
    run = executor_of(lambda x: (x + x, x * 2), x.detach())
    args = [x]
    results = run(args)
    assert not args
    for result in results:
        assert result.dtype is x.dtype
        assert not result.requires_grad
        assert torch.equal(result, x.detach() + x.detach())


@pytest.mark.usefixtures("_both_ways")
def test_masks() -> None:
    x = torch.tensor([True, False, True])
    (result,) = executor_of(lambda x: (~x,), x)([x])
    assert result.tolist() == [False, True, False]


@pytest.mark.skipif(executor_module.EXCHANGE is None, reason="torch has no exchange API")
def test_results_are_made_by_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant, an argument, a draw and a result that is returned twice do not change that."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        mask = torch.bernoulli(torch.empty_like(x), 0.5)
        z = x * mask
        return z, mask, x, torch.full((3,), 2.0), z, y.t()

    x, y = torch.randn(4, 5), torch.randn(2, 3)
    run = executor_of(function, x, y)
    monkeypatch.setattr(run.session, "run", None)  # the path with arrays
    torch.manual_seed(0)
    z, mask, same, constant, again, transposed = run([x, y])
    torch.manual_seed(0)
    expected = function(x, y)
    assert same is x
    found = (z, mask, x, constant, again, transposed)
    assert all(map(torch.equal, found, expected))


def test_results_outlive_the_session() -> None:
    x = torch.randn(64, 64)
    run = executor_of(lambda x: (x + 1, x.sum()), x)
    large, small = run([x])
    expected = x + 1
    del run
    gc.collect()
    assert torch.equal(large, expected)
    assert torch.allclose(small, x.sum())
    large += 1
    assert torch.equal(large, expected + 1)


def test_a_step_that_fails_raises_its_error() -> None:
    table, index = torch.randn(5, 3), torch.tensor([1, 7])
    run = executor_of(lambda t, i: (nn.functional.embedding(i, t),), table, torch.tensor([1, 2]))
    with pytest.raises(Exception, match="index 7"):
        run([table, index])
    (result,) = run([table, torch.tensor([1, 2])])
    assert torch.equal(result, table[1:3])


@pytest.mark.skipif(executor_module.EXCHANGE is None, reason="torch has no exchange API")
def test_a_class_without_an_exchange_is_refused() -> None:
    with pytest.raises(TypeError, match="no DLPack exchange API"):
        TensorExchange(int)
    with pytest.raises(TypeError, match="no DLPack exchange API"):
        TensorExchange(torch.randn(3))
