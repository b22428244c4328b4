"""Random numbers of training steps: by the number of the run, so that a step can be resumed."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from sardonyx.train import SGD, TrainingStep
from tests.train.test_training_step import (
    DROPOUT,
    FEEDS,
    SHAPES,
    classifier,
    dropping,
    losses_of,
    with_weights,
)

BRANCHED = """dropped = If ({}) <
    then_branch = t () => (float[batch, 8] p) {{ p = Dropout(active, ratio, yes) }},
    else_branch = f () => (float[batch, 8] q) {{ n = RandomNormalLike(active) q = Mul(active, n) }}
    >"""
# Nodes from `active` to `dropped` that draw random numbers.
DRAWING = {
    "RandomNormalLike": "noise = RandomNormalLike(active)  dropped = Add(active, noise)",
    "RandomUniformLike": "noise = RandomUniformLike(active)  dropped = Mul(active, noise)",
    "RandomNormal": "noise = RandomNormal<shape = [4, 8]>()  dropped = Add(active, noise)",
    "RandomUniform": "noise = RandomUniform<shape = [8]>()  dropped = Mul(active, noise)",
    "Bernoulli": "p = Sigmoid(active)  n = Bernoulli(p)  dropped = Mul(active, n)",
    "Multinomial": """c = Multinomial(active)  n = Cast<to = 1>(c)
        dropped = Mul(active, n)""",
    "a mode that is fed": "dropped, mask = Dropout(active, ratio, on)",
    "Dropout in If": BRANCHED.format("on"),
    "RandomNormalLike in If": BRANCHED.format("off"),
    "nested": """dropped = If (on) <
        then_branch = t2 () => (float[batch, 8] p2) { p2 = If (on) <
            then_branch = t () => (float[batch, 8] p) { p = Dropout(active, ratio, yes) },
            else_branch = f () => (float[batch, 8] q) { q = Identity(active) }> },
        else_branch = f2 () => (float[batch, 8] q2) { q2 = Identity(active) }>""",
}


@pytest.mark.parametrize("name", DRAWING)
def test_random_numbers_depend_on_the_run_number(name: str) -> None:
    """They differ between runs, and a step that is resumed continues with the same."""
    text = DROPOUT.replace("dropped, mask = Dropout(active, ratio, yes)", DRAWING[name])
    text = text.replace("labels)", "labels, bool on, bool off)", 1)
    model, feeds = with_weights(text, classifier()[1]), {**FEEDS, "on": True, "off": False}
    feeds = {n: np.asarray(a) for n, a in feeds.items()}
    first, second, still = (
        TrainingStep(model, parameters=list(SHAPES), optimizer=SGD(lr)) for lr in (0.1, 0.1, 0.0)
    )
    losses_of(first, feeds, 3)
    second.load(*copy.deepcopy((first.parameters, first.state)))
    assert losses_of(first, feeds, 3) == losses_of(second, feeds, 3)
    for key, array in first.parameters.items():
        np.testing.assert_array_equal(array, second.parameters[key])
    assert len(set(losses_of(still, feeds, 10))) > 5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_masks_of_nodes_with_and_without_a_seed_differ(seed: int) -> None:
    text = f"""g (float[64] x) => (float loss, float[64] p, float[64] q, float[64] r) {{
        ratio = Constant<value_float = 0.5>()  yes = Constant<value = bool {{1}}>()
        a = Mul(x, w)  p = Dropout(a, ratio, yes)  q = Dropout<seed = {seed}>(a, ratio, yes)
        r = Dropout(a, ratio, yes)  s = Sum(p, q, r)  loss = ReduceSumSquare<keepdims = 0>(s) }}"""
    step = TrainingStep(with_weights(text, {"w": np.ones(64, np.float32)}), loss="loss")
    found = step.run({"x": np.ones(64, np.float32)})
    assert len({found[n].tobytes() for n in "pqr"}) == 3


def test_disabled_dropout() -> None:
    text = DROPOUT.replace("ratio, yes)", "ratio, on)").replace("labels)", "labels, bool[1] on)", 1)
    step = TrainingStep(with_weights(text, classifier()[1]), optimizer=SGD(0.0))
    plain = TrainingStep(classifier()[0], loss="loss").run(FEEDS)["loss"]
    assert losses_of(step, FEEDS | {"on": np.array([False])}, 2) == [plain] * 2
    assert len(set(losses_of(step, FEEDS | {"on": np.array([True])}, 9))) > 3


def test_dropout_masks_differ_between_runs() -> None:
    step = TrainingStep(dropping(), optimizer=SGD(0.0))
    assert step.session._fast_path is not None
    assert len(set(losses_of(step, FEEDS, 20))) > 10
