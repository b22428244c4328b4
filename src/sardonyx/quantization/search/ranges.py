"""Activation ranges from one calibration: min-max, percentile, or least squared error (MSE)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.quantization.calibrate import create_calibrator
from sardonyx.quantization.document import ModelDoc
from sardonyx.quantization.histogram import Histogram
from sardonyx.quantization.tensors_data import CalibrationMethod, TensorData, TensorsData

METHODS: Final = ("minmax", "percentile", "least squares")
_PERCENTILE: Final = 99.99
_STEPS: Final = 255  # of 8 bits
_SHARES: Final = np.linspace(1.0, 0.3, 29)  # of the range that the MSE search tries


def calibrated(
    document: ModelDoc, op_types: Sequence[str], feeds: Iterable[Any]
) -> dict[str, TensorsData]:
    """Return the ranges of activations by method; samples run twice, or once if they are small."""
    options = {"percentile": _PERCENTILE, "symmetric": False}
    calibrator = create_calibrator(
        document,
        op_types,
        augmented_model_path=None,
        calibrate_method=CalibrationMethod.Percentile,
        extra_options=options,
    )
    calibrator.collect_data(feeds)
    percentiles = calibrator.compute_data()
    found: dict[str, dict[str, Any]] = {method: {} for method in METHODS}
    for name, histogram in calibrator.collector.get_histogram_dict().items():
        found["minmax"][name] = _data(histogram, histogram.lowest, histogram.highest)
        low, high = percentiles[name].range_value
        found["percentile"][name] = _data(histogram, low, high)
        found["least squares"][name] = _data(histogram, *least_squares(histogram))
    return {m: TensorsData(CalibrationMethod.MinMax, data) for m, data in found.items()}


def _data(histogram: Histogram, low: Any, high: Any) -> TensorData:
    dtype = histogram.edges.dtype if histogram.edges.dtype == np.float16 else np.float32
    return TensorData(lowest=np.array(low, dtype), highest=np.array(high, dtype))


def least_squares(histogram: Histogram) -> tuple[float, float]:
    """Return the range whose 8-bit codes have the least mean squared error.

    A value inside the range has the rounding error step^2 / 12, one outside its clipping error.
    """
    counts = histogram.counts.astype(np.float64)
    values = ((histogram.edges[:-1] + histogram.edges[1:]) / 2).astype(np.float64)
    low, high = min(float(histogram.lowest), 0.0), max(float(histogram.highest), 0.0)
    if high <= low or not counts.sum():
        return low, high
    lows, highs = (_SHARES if low else np.ones(1)) * low, (_SHARES if high else np.ones(1)) * high
    below = np.array([(counts * np.maximum(edge - values, 0) ** 2).sum() for edge in lows])
    above = np.array([(counts * np.maximum(values - edge, 0) ** 2).sum() for edge in highs])
    rounded = _rounded(counts, values)
    step = (highs[None, :] - lows[:, None]) / _STEPS
    cost = below[:, None] + above[None, :] + rounded * step**2 / 12
    i, j = np.unravel_index(int(cost.argmin()), cost.shape)
    return float(lows[i]), float(highs[j])


def _rounded(counts: Array, values: Array) -> float:
    """Return how many values are rounded: those in the bin of 0 are mostly zeros of a Relu."""
    zero = int(np.abs(values).argmin())
    return float(counts.sum() - counts[zero])
