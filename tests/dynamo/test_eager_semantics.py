"""Identity of results, strides, types and errors are as in eager torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sardonyx.dynamo.backend import sardonyx_backend
from sardonyx.dynamo.report import Report
from sardonyx.train.ortmodule import ORTModule

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _new_graphs() -> None:
    torch._dynamo.reset()


def compiled(function: Function) -> tuple[Function, Report]:
    report = Report()
    return torch.compile(function, backend=partial(sardonyx_backend, report=report)), report


def x(*shape: int, grad: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


COPIES: dict[str, Function] = {
    "clone": lambda y: y.clone(),
    "detach": lambda y: y.detach(),
    "detached copy": lambda y: y.detach().float().clone(),
    "copy of the same type": lambda y: y.to(torch.float32, copy=True),
    "cat of one": lambda y: torch.cat([y]),
}


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_copies_are_distinct_tensors(copy: Function) -> None:
    """A result keeps its gradient, whatever another result with the same numbers does."""

    def function(a: torch.Tensor) -> Any:
        y = torch.tanh(a * 2)
        return y, copy(y)

    for call in (function, compiled(function)[0]):
        a = x(2, 3, grad=True)
        y, other = call(a)
        assert y is not other
        assert y.requires_grad
        expected = 2 * (1 - y.detach() ** 2)
        if not other.requires_grad and other.data_ptr() != y.data_ptr():
            other.zero_()
        y.sum().backward()
        torch.testing.assert_close(a.grad, expected)


def test_a_copy_may_be_written_to_before_the_backward_pass() -> None:
    a = x(2, 3, grad=True)
    y = compiled(lambda a: torch.tanh(a).clone())[0](a)
    y.mul_(2).sum().backward()
    torch.testing.assert_close(a.grad, 2 * (1 - torch.tanh(a.detach()) ** 2))


LAYOUTS: dict[str, tuple[Function, Callable[[], torch.Tensor]]] = {
    "transposed": (lambda a: a.t() + 1, lambda: x(4, 6)),
    "transposed, with gradients": (lambda a: a.t() * 2, lambda: x(4, 6, grad=True)),
    "permuted": (lambda a: torch.relu(a.permute(2, 0, 1)), lambda: x(2, 3, 4)),
    "channels last": (
        lambda a: torch.relu(a).exp(), lambda: x(2, 3, 5, 4).to(memory_format=torch.channels_last),
    ),
    "contiguous": (lambda a: a.t().contiguous(), lambda: x(4, 6)),
}  # fmt: skip


@pytest.mark.parametrize(("function", "operand"), LAYOUTS.values(), ids=LAYOUTS)
def test_results_have_the_strides_of_eager(
    function: Function, operand: Callable[[], torch.Tensor]
) -> None:
    call = compiled(function)[0]
    expected, found = function(operand()), call(operand())
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
    found.detach().mul_(2)
    if not found.requires_grad:
        found.mul_(2)  # torch does not let users write to views of compiled functions


STRIDED: dict[str, Function] = {
    "transposed": lambda a: (a.t() + 1).as_strided((2, 3), (3, 1), 1),
    "with gaps": lambda a: (a[:, 0] + 1)[:, None].expand(4, 3).as_strided((2, 3), (1, 1), 0) * 2,
    "scatter": lambda a: torch.as_strided_scatter(  # of contiguous memory, where a has a gradient
        a + 1 if a.requires_grad else a.t() + 1, a.new_zeros(2, 3), (2, 3), (3, 1), 1
    ),
}


@pytest.mark.parametrize("function", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize("grad", [False, True])
def test_strides_refer_to_the_memory_of_eager(function: Function, grad: bool) -> None:
    grads = []
    for call in (function, compiled(function)[0]):
        a = x(4, 6, grad=grad)
        y = call(a)
        if grad:
            y.square().sum().backward()
        grads.append((y.detach(), a.grad))
    torch.testing.assert_close(*grads)


def test_tensors_with_the_negative_bit() -> None:
    a = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert a.is_neg()
    torch.testing.assert_close(compiled(lambda a: a * 2 + 1)[0](a), a * 2 + 1)


INDICES: dict[str, tuple[Function, Any]] = {
    "embedding": (lambda i, t: functional.embedding(i, t), [1, -1]),
    "gather": (lambda i, t: t.gather(1, i[None]), [0, -1]),
    "index_select": (lambda i, t: t.index_select(0, i), [0, -2]),
    "scatter": (lambda i, t: t.scatter(1, i[None], 1.0), [0, -1]),
    "scatter_add": (lambda i, t: t.scatter_add(1, i[None], t[:1]), [0, -1]),
    "cross entropy": (lambda i, t: functional.cross_entropy(t[:2], i), [0, -1]),
    "too large": (lambda i, t: functional.embedding(i, t), [0, 5]),
}


@pytest.mark.parametrize(("function", "index"), INDICES.values(), ids=INDICES)
def test_indices_out_of_range_are_index_errors(function: Function, index: list[int]) -> None:
    i, t = torch.tensor(index), x(5, 4)
    with pytest.raises((IndexError, RuntimeError)):
        function(i, t)
    with pytest.raises(IndexError, match="outside"):
        compiled(function)[0](i, t)
    legal = i.clamp(0, 3)
    torch.testing.assert_close(compiled(function)[0](legal, t), function(legal, t))


def test_ignored_labels_may_be_negative() -> None:
    labels, scores = torch.tensor([1, -100, -1]), x(3, 4)
    for ignore in (-100, -1):
        kept = torch.where(labels == -100 - 1 - ignore, 0, labels)
        function = partial(functional.cross_entropy, ignore_index=ignore)
        torch.testing.assert_close(compiled(function)[0](scores, kept), function(scores, kept))


WIDE: dict[str, Function] = {
    "conv": lambda a: functional.conv2d(a, a[:1]),
    "transposed conv": lambda a: functional.conv_transpose2d(a, a),
    "bilinear": lambda a: functional.interpolate(a, scale_factor=2.0, mode="bilinear"),
    "adaptive": lambda a: functional.adaptive_avg_pool2d(a, 3),
    "pool": lambda a: functional.avg_pool2d(a, 2),
    "layer norm": lambda a: functional.layer_norm(a, a.shape[-1:]),
    "group norm": lambda a: functional.group_norm(a, 2),
}


@pytest.mark.parametrize("function", WIDE.values(), ids=WIDE)
def test_float64_keeps_its_precision(function: Function) -> None:
    results = []
    for call in (function, compiled(function)[0]):
        a = x(2, 2, 5, 5).double().requires_grad_()
        y = call(a)
        (y * torch.arange(y.numel(), dtype=y.dtype).view_as(y).cos()).sum().backward()
        results.append((y.detach(), a.grad))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_take_empty_batches(kind: Any) -> None:
    layer = kind(3, 4)
    a = torch.zeros(5, 0, 3, requires_grad=True)
    y = compiled(layer)[0](a)[0]
    assert y.shape == (5, 0, 4)
    y.sum().backward()
    assert a.grad is not None
    assert all(not p.grad.any() for p in layer.parameters())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_under_autocast(kind: Any) -> None:
    layer, a = kind(3, 4), x(5, 2, 3)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert compiled(layer)[0](a)[0].dtype == layer(a)[0].dtype


def test_other_backends_run_recurrent_layers() -> None:
    """The setting that lets TorchDynamo capture them for us does not reach other backends."""
    layer, a = nn.LSTM(3, 4), x(5, 2, 3)
    y = torch.compile(layer, backend="aot_eager")(a)[0]
    torch.testing.assert_close(y, layer(a)[0])
    y.sum().backward()


def test_query_heads_that_broadcast() -> None:
    q, k = x(2, 1, 5, 8, grad=True), x(2, 4, 5, 8)
    attend = functional.scaled_dot_product_attention
    expected, found = attend(q, k, k), compiled(attend)[0](q, k, k)
    torch.testing.assert_close(found, expected)
    found.sum().backward()


class Parent(nn.Module):
    """A module with an ORTModule inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = ORTModule(nn.Linear(3, 3)), nn.Linear(3, 3)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.outer(self.inner(a))  # type: ignore[no-any-return]


def test_ortmodule_delegates_to_its_module() -> None:
    import copy
    import pickle

    first, second = Parent(), Parent()
    assert list(first.state_dict()) == list(dict(first.named_parameters()))
    second.load_state_dict(first.state_dict())
    a = x(2, 3)
    torch.testing.assert_close(second(a), first(a))
    for other in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert other.inner.module._compiled_call_impl is not None
        torch.testing.assert_close(other(a), first(a))
    module = first.inner
    module.weight = nn.Parameter(torch.zeros(3, 3))
    module.register_buffer("scale", torch.ones(1))
    module.factor = 3
    assert module.module.factor == 3
    assert not module.module.weight.any()
    assert list(first.state_dict())[:3] == ["inner.weight", "inner.bias", "inner.scale"]
    torch.testing.assert_close(module(a), module.bias.expand(2, 3))
