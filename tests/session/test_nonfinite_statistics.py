"""Means and deviations of rows with infinite, NaN or nearly infinite elements."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx
from tests.op_cases import f32


def statistics(x: np.ndarray) -> list[np.ndarray]:
    """What LayerNormalization gives for rows: results, means and inverse deviations."""
    node = helper.make_node("LayerNormalization", ["x", "one"], ["y", "mean", "inverse"])
    one = helper.make_tensor("one", TensorProto.FLOAT, [x.shape[1]], np.ones(x.shape[1]))
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in node.output]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(x.shape))
    graph = helper.make_graph([node], "g", [given], kinds, [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return sardonyx.InferenceSession(model.SerializeToString()).run(None, {"x": x})


@pytest.mark.parametrize("place", [0, 7, 63])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_row_with_an_infinity_has_that_mean(value: float, place: int) -> None:
    x = f32(5, 64)
    x[1, place] = value
    y, mean, inverse = statistics(x)
    np.testing.assert_array_equal(mean[1], value)
    assert np.isnan(inverse[1]).all()
    assert np.isnan(y[1]).all()
    assert np.isfinite(np.delete(y, 1, 0)).all()


@pytest.mark.parametrize("place", [0, 7, 63])
def test_a_huge_number_may_stand_anywhere(place: int) -> None:
    x = f32(5, 64)
    x[:, place] = 3e38
    y, mean, inverse = statistics(x)
    np.testing.assert_allclose(mean[:, 0], 3e38 / 64, rtol=1e-6)
    np.testing.assert_array_equal(inverse, 0)
    np.testing.assert_array_equal(y, 0)
