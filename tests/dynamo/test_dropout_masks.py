"""Dropout masks equal torch's, and leave its generator in the same state."""

import copy
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn

import sardonyx._native as native
import sardonyx.dynamo.draws as draws
from sardonyx.train import wrap

LENGTHS = [0, 1, 311, 312, 313, 623, 624, 625, 10_000]
EARLIER_DRAWS: dict[str, Callable[[], object]] = {
    "none": lambda: None,
    "one word": lambda: torch.randint(9, (1,)),
    "all words but one": lambda: torch.randint(9, (623,)),
    "all words": lambda: torch.randint(9, (624,)),
    "cached float": lambda: torch.randn(3),
    "cached double": lambda: torch.randn(1, dtype=torch.float64),
}


@pytest.fixture(autouse=True)
def _generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.fixture
def needs_serial_torch() -> None:
    if not draws.draws_as_torch():
        pytest.skip("torch draws masks with MKL here")


def state() -> torch.Tensor:
    return torch.default_generator.get_state()


def mask_of(length: int) -> torch.Tensor:
    return torch.empty(length, dtype=torch.bool)


def check_draws(probabilities: list[float], length: int) -> None:
    """Compare draws in a row, and the states after each, from the present state."""
    begin = state()
    expected = [(mask_of(length).bernoulli_(p), state()) for p in probabilities]
    torch.default_generator.set_state(begin)
    for p, (mask, end) in zip(probabilities, expected, strict=True):
        drawn = mask_of(length)
        native.bernoulli(torch.default_generator, p, drawn.numpy())
        assert torch.equal(drawn, mask)
        assert torch.equal(state(), end)


@pytest.mark.usefixtures("needs_serial_torch")
@pytest.mark.parametrize("earlier", EARLIER_DRAWS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("p", [0.0, 1e-9, 0.1, 0.5, 0.9, 1 - 2**-53, 1.0])
def test_dropout_masks_equal_those_of_torch(p: float, length: int, earlier: str) -> None:
    torch.manual_seed(7)
    EARLIER_DRAWS[earlier]()
    check_draws([p], length)


@pytest.mark.usefixtures("needs_serial_torch")
@pytest.mark.parametrize("length", [1, 313, 1001])
def test_consecutive_dropout_masks(length: int) -> None:
    torch.manual_seed(7)
    torch.randint(9, (1,))
    check_draws([0.9, 0.1, 1.0, 0.5, 0.3], length)


@pytest.mark.usefixtures("needs_serial_torch")
def test_low_words_of_the_generator_decide_ties() -> None:
    """With p on either side of a number that torch draws, and equal to it."""
    torch.manual_seed(7)
    begin = state()
    number = torch.rand(400, dtype=torch.float64)[-1].item()
    for p, is_kept in ((number - 2**-53, False), (number, False), (number + 2**-53, True)):
        torch.default_generator.set_state(begin)
        check_draws([p], 400)
        torch.default_generator.set_state(begin)
        assert draws.bernoulli(mask_of(400), p)[-1].item() is is_kept


@pytest.mark.usefixtures("needs_serial_torch")
def test_a_mask_is_filled_in_place() -> None:
    empty = mask_of(10)
    assert draws.bernoulli(empty, 0.5) is empty


@pytest.mark.parametrize(
    "empty",
    [torch.empty(40, 30), torch.empty(40, 30, dtype=torch.bool).t()],
    ids=["floats", "not contiguous"],
)
def test_unsupported_tensors_fall_back_to_torch(empty: torch.Tensor) -> None:
    torch.manual_seed(7)
    expected = torch.ops.aten.bernoulli.p(empty, 0.7)
    torch.manual_seed(7)
    assert torch.equal(draws.bernoulli(empty, 0.7), expected)


def test_probabilities_out_of_range_are_refused() -> None:
    with pytest.raises(RuntimeError, match="expects p to be in"):
        draws.bernoulli(mask_of(10), 1.5)


def test_generator_states_of_other_layouts_are_refused() -> None:
    class Generator:
        def __init__(self, state: torch.Tensor) -> None:
            self.get_state = lambda: state

    out = mask_of(10).numpy()
    with pytest.raises(ValueError, match="too short"):
        native.bernoulli(Generator(torch.zeros(16, dtype=torch.uint8)), 0.5, out)
    with pytest.raises(ValueError, match="not the state"):
        native.bernoulli(Generator(torch.zeros(5056, dtype=torch.uint8)), 0.5, out)
    with pytest.raises(TypeError, match="one byte"):
        native.bernoulli(torch.Generator(), 0.5, torch.empty(10).numpy())


def other_values(generator: torch.Generator, p: float, out: np.ndarray) -> None:
    torch.from_numpy(out).bernoulli_(1 - p, generator=generator)


def other_state(generator: torch.Generator, p: float, out: np.ndarray) -> None:
    torch.from_numpy(out).bernoulli_(p, generator=generator)
    torch.rand(1, generator=generator)


def other_layout(generator: torch.Generator, p: float, out: np.ndarray) -> None:
    raise ValueError


@pytest.mark.parametrize("replacement", [other_values, other_state, other_layout])
def test_torch_fills_masks_where_the_self_check_fails(
    replacement: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "bernoulli", replacement)
    draws.draws_as_torch.cache_clear()
    try:
        torch.manual_seed(7)
        expected = mask_of(1000).bernoulli_(0.7)
        torch.manual_seed(7)
        assert torch.equal(draws.bernoulli(mask_of(1000), 0.7), expected)
    finally:
        draws.draws_as_torch.cache_clear()


@pytest.mark.usefixtures("needs_serial_torch")
def test_dropout_of_a_wrapped_module_equals_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, bernoulli = [], native.bernoulli

    def draw(generator: torch.Generator, p: float, out: np.ndarray) -> None:
        sizes.append(out.size)
        bernoulli(generator, p, out)

    monkeypatch.setattr(native, "bernoulli", draw)
    eager = nn.Sequential(nn.Linear(30, 50), nn.Dropout(0.1), nn.ReLU(), nn.Dropout(0.5))
    wrapped = wrap(copy.deepcopy(eager))
    x = torch.randn(20, 30)
    ends = []
    for module in (eager, wrapped):
        torch.manual_seed(3)
        torch.randint(9, (1,))
        ends.append((torch.stack([module(x) for _ in range(3)]), state()))
    (expected, expected_state), (y, end) = ends
    assert sizes == [1000] * 6
    torch.testing.assert_close(y, expected)
    assert torch.equal(y == 0, expected == 0)
    assert torch.equal(end, expected_state)
