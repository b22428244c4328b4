"""Running statistics of batch norms in training steps: as torch updates them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as f

import sardonyx
from sardonyx.errors import InvalidArgument, ShapeError
from sardonyx.train import SGD, TrainingStep
from tests.train import models
from tests.train.test_training_step import feeds_for, with_weights


def test_running_statistics_are_those_of_torch() -> None:
    model, weights = models.image_net()
    step = TrainingStep(model, loss="loss", optimizer=SGD(0.0))
    feeds = feeds_for("image")
    norm = torch.nn.BatchNorm2d(6)
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor(weights["bn0.mean"]))
        norm.running_var.copy_(torch.tensor(weights["bn0.var"]))
    convolved = f.conv2d(
        torch.tensor(feeds["image"]), torch.tensor(weights["conv0.w"]), stride=2, padding=1
    )
    for _ in range(3):
        step.run(feeds)
        norm(convolved)
    np.testing.assert_allclose(step.state["bn0.mean"], norm.running_mean.numpy(), atol=1e-6)
    np.testing.assert_allclose(step.state["bn0.var"], norm.running_var.numpy(), rtol=1e-5)
    saved = sardonyx.InferenceSession(step.to_model()).get_inputs()
    assert {i.name for i in saved} == {"image", "labels"}


NORMALIZED = """g (float[%s, 2] x) => (float loss) {
    [norm] y, mean2, var2 = BatchNormalization<training_mode = 1>(x, s, b, mean, var)
    z = Tanh(y)  loss = ReduceSum<keepdims = 0>(z) }"""


def test_batch_norm_needs_more_than_one_value_per_channel() -> None:
    """As in torch: the variance of one number does not exist. The step changes nothing."""
    weights = {n: np.ones(2, np.float32) for n in ("s", "b", "mean", "var")}
    said = r"(?s)needs more than one value per channel: 1 is less than 2.*norm"
    with pytest.raises(ShapeError, match=said):
        TrainingStep(with_weights(NORMALIZED % 1, weights))
    step = TrainingStep(with_weights(NORMALIZED % "n", weights))
    step.run({"x": np.float32([[1, 2], [3, 5]])})
    before = copy.deepcopy((step.parameters, step.state))
    with pytest.raises(InvalidArgument, match=said):
        step.run({"x": np.ones((1, 2), np.float32)})
    for old, new in zip(before, (step.parameters, step.state), strict=True):
        assert all((old[n] == a).all() for n, a in new.items())


@pytest.mark.parametrize("batch", ["n", "8"])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_running_statistics_of_many_halves(kind: Any, batch: str) -> None:
    """They are over more elements than float16 counts to."""
    text = f"""g (float16[{batch}, 2, 100, 100] x) => (float16 loss) {{
        axes = Constant<value_ints = [2, 3]>()
        y, mean2, var2 = BatchNormalization<training_mode = 1>(x, s, b, mean, var)
        z = ReduceMean(y, axes)  loss = ReduceSum<keepdims = 0>(z) }}"""
    shapes = {"s": np.float16, "b": np.float16, "mean": kind, "var": kind}
    weights = {n: np.full(2, n in "s var", t) for n, t in shapes.items()}
    x = np.random.default_rng(0).standard_normal((8, 2, 100, 100)).astype(np.float16)
    step = TrainingStep(with_weights(text, weights), optimizer=SGD(0.1))
    step.run({"x": x * np.float16(2)})
    assert step.state["var"].dtype == kind
    np.testing.assert_allclose(step.state["var"], 1.3, rtol=0.01)
