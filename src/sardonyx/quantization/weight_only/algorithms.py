"""The algorithms of weight-only quantization, by the names that configurations give them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.quantization.weight_only import rounding
from sardonyx.quantization.weight_only.calibrated import Method
from sardonyx.quantization.weight_only.gptq import Rounding
from sardonyx.quantization.weight_only.grid import Format
from sardonyx.quantization.weight_only.stored import Codes

Array = np.ndarray[Any, Any]
Quantizer = Callable[[Array, Format], Codes]  # of a weight [K, N]


def _by_columns(round_: Quantizer) -> Callable[[Any, str], Quantizer]:
    """Return a `quantizer` that rounds some columns at a time."""
    return lambda config, name: partial(rounding.by_columns, round_=round_)


def _rtn(config: Any, name: str) -> Quantizer:
    ratio = config.ratios.get(name, 1.0)
    return partial(rounding.by_columns, round_=partial(rounding.rtn, ratio=ratio))


def _gptq(config: Any) -> Method:
    step, by_activation = config.block_size, config.actorder
    compensation = Rounding(config.percdamp, step, by_activation, config.mse, config.sweeps)
    return Method(compensation, scales=config.awq)


@frozen
class Algorithm:
    """How weights are rounded and stored; configurations have the settings."""

    # From a configuration and the name of a weight. That of calibrated algorithms is for weights
    # that no samples reach.
    quantizer: Callable[[Any, str], Quantizer] = _by_columns(rounding.default)
    method: Callable[[Any], Method] | None = None  # of calibrated algorithms, from a configuration
    zero: str | None = None  # the form of zero points; None: codes, or none if symmetric
    # Whether onnxruntime names tensors after bits and block size, as neural_compressor does.
    is_neural_compressor: bool = False
    quantizes_gather: bool = False


ALGORITHMS: Final = {
    "AWQ": Algorithm(method=lambda config: Method(None, scales=True)),
    "DEFAULT": Algorithm(quantizes_gather=True),
    "GPTQ": Algorithm(method=_gptq, is_neural_compressor=True),
    "HQQ": Algorithm(lambda config, name: rounding.hqq, zero="floats"),
    "RTN": Algorithm(_rtn, is_neural_compressor=True),
    "k_quant": Algorithm(_by_columns(rounding.k_quant), zero="codes", is_neural_compressor=True),
    "nvidia_awq": Algorithm(
        method=lambda config: Method(None, scales=config.calibration_method == "awq_lite")
    ),
}
