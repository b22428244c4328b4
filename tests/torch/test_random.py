"""Random ops in torch: their shapes, types and distributions, and which seeds are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T

from sardonyx.place.provider import No
from tests.op_cases import Case, case, f16, f32, of
from tests.oracle import feeds_of
from tests.test_ops import sizes_of

torch = pytest.importorskip("torch")
from sardonyx.providers.torch.claim import kernel_of  # noqa: E402 - torch may be missing
from tests.torch.test_functions import _graph, call  # noqa: E402

MANY = np.zeros((100, 200), np.float32)
CHANCES = np.full((100, 200), 0.25, np.float32)
TRUE = np.array(True)


def about(mean: float, deviation: float) -> Callable[[Any], bool]:
    """Whether 20 000 numbers have a mean and a deviation, within 6 standard errors."""
    return lambda y: (
        abs(y.astype(np.float64).mean() - mean) < 0.05
        and abs(y.astype(np.float64).std() - deviation) < 0.05
    )


DRAWN = [
    (case("RandomNormal", shape=[100, 200], mean=2.0, scale=0.5), np.float32, about(2.0, 0.5)),
    (case("RandomUniform", shape=[100, 200], dtype=T.DOUBLE), np.float64, about(0.5, 12**-0.5)),
    (case("RandomNormalLike", MANY), np.float32, about(0.0, 1.0)),
    (case("RandomNormalLike", MANY, dtype=T.FLOAT16), np.float16, about(0.0, 1.0)),
    (case("RandomUniformLike", MANY, low=-1.0), np.float32, about(0.0, 3**-0.5)),
    (case("Bernoulli", CHANCES), np.float32, about(0.25, 0.1875**0.5)),
    (case("Bernoulli", CHANCES, dtype=T.BOOL), np.bool_, about(0.25, 0.1875**0.5)),
    (case("Multinomial", of([[0.0, -np.inf, 0.0]] * 10), sample_size=2000), np.int32,
     about(1.0, 1.0)),
    (case("Dropout", MANY + 1, of(0.75), TRUE), np.float32, about(1.0, 3**0.5)),
]  # fmt: skip


@pytest.mark.parametrize(("case", "dtype", "fits"), DRAWN, ids=range(len(DRAWN)))
def test_distribution(case: Case, dtype: Any, fits: Callable[[Any], bool]) -> None:
    """Each draw has the distribution that it should, and the next one differs."""
    first, second = drawn(case), drawn(case)
    assert first.dtype == dtype
    assert fits(first)
    assert not np.array_equal(first, second)


def test_certain() -> None:
    """Chances of 0 and 1 leave nothing to chance."""
    chances = of([0.0, 1.0, 0.0, 1.0])
    assert np.array_equal(drawn(case("Bernoulli", chances)), chances)
    scores = of([[-np.inf, 0.0, -np.inf], [0.0, -np.inf, -np.inf]])
    assert drawn(case("Multinomial", scores, sample_size=2)).tolist() == [[1, 1], [0, 0]]


def drawn(case: Case) -> Any:
    """The first output of a case."""
    node = only_node(case)
    found = kernel_of(node)
    assert not isinstance(found, No)
    feeds = feeds_of(case)
    arrays = [None if v is None else feeds[v.name] for v in node.inputs]
    return call(found, node, arrays, sizes_of(case))[0]


def only_node(case: Case) -> Any:
    """The node of a case, inferred."""
    graph = _graph(case, ())
    assert graph is not None
    (node,) = graph.sorted_nodes()
    return node


@pytest.mark.parametrize(
    "case",
    [
        case("RandomNormal", shape=[2], seed=1.0),
        case("RandomUniformLike", f32(2), seed=1.0),
        case("Bernoulli", CHANCES, seed=2.0),
        case("Multinomial", f32(2, 3), seed=2.0),
        case("Dropout", f16(3), of(0.5), TRUE, seed=3),
    ],
    ids=str,
)
def test_seeds_stay_on_the_cpu(case: Case) -> None:
    """A seed promises the same numbers as ever, which only the CPU's generator gives."""
    found = kernel_of(only_node(case))
    assert isinstance(found, No)
    assert "leave it out" in found.why
