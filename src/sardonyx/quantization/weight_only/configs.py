"""The configurations of onnxruntime's matmul_nbits_quantizer, and of calibrated AWQ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.errors import InvalidArgument
from sardonyx.quantization.quant_types import QuantFormat

Samples = Any  # an iterable of dicts, or an object with get_next() and perhaps rewind()
Types = Sequence[str] | None
Axes = Sequence[tuple[str, int]] | None

_BITS: Final = (2, 3, 4, 8)


class WeightOnlyQuantConfig:
    """Which algorithm quantizes which ops; the base of all configurations."""

    def __init__(
        self,
        algorithm: str,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Types = None,
        quant_axes: Axes = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.quant_format = quant_format
        self.op_types_to_quantize = set(op_types_to_quantize or ("MatMul",))
        self.quant_axes = dict(quant_axes or (("MatMul", 0), ("Gather", 1)))
        self.customized_weight_config = customized_weight_config

    @property
    def is_qdq(self) -> bool:
        """Whether DequantizeLinear is to dequantize weights."""
        return _is_qdq(self.quant_format)


def _is_qdq(quant_format: Any) -> bool:
    """Return whether a format, of any enumeration, is QDQ."""
    return getattr(quant_format, "name", str(quant_format)) == "QDQ"


def _check_operator(what: str, quant_format: Any) -> None:
    if _is_qdq(quant_format):
        raise InvalidArgument(
            f"{what} makes quantized operators only", hint="use QuantFormat.QOperator"
        )


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounds to the nearest code of each block's range, which includes 0."""

    def __init__(  # noqa: PLR0913 - the signature of onnxruntime
        self,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Types = None,
        quant_axes: Axes = None,
        bits: int = 4,
        channel_wised_quantize: bool = False,
    ) -> None:
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        if channel_wised_quantize and not self.is_qdq:
            raise NotImplementedError("channel_wised_quantize needs QuantFormat.QDQ")
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.bits = bits
        self.accuracy_level = accuracy_level
        self.channel_wised_quantize = channel_wised_quantize


class _OperatorConfig(WeightOnlyQuantConfig):
    """For quantized operators only, with onnxruntime's arguments of RTN and k-quant."""

    name: str  # of the algorithm
    title: str  # the same in errors

    def __init__(
        self,
        ratios: Mapping[str, float] | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Types = None,
        customized_weight_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        _check_operator(self.title, quant_format)
        types = op_types_to_quantize
        super().__init__(self.name, quant_format, types, None, customized_weight_config)
        self.ratios = dict(ratios or {})


class RTNWeightOnlyQuantConfig(_OperatorConfig):
    """Rounds to the nearest code of each block's range; `ratios` shrink ranges by weight name."""

    name = title = "RTN"


class KQuantWeightOnlyQuantConfig(_OperatorConfig):
    """Fits scale and zero point of each block, as llama.cpp does."""

    name, title = "k_quant", "k-quant"


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Half-quadratic quantization, with zero points that are floats."""

    def __init__(
        self,
        block_size: int = 128,
        bits: int = 4,
        axis: int = 1,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Types = None,
        quant_axes: Axes = None,
    ) -> None:
        _check_operator("HQQ", quant_format)
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.bits = bits
        self.axis = axis


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounds a weight row by row, and compensates for the errors in the rows that follow.

    `block_size` is the number of rows between two updates of the rest, not that of the format.
    Unlike onnxruntime's, rows of large activations come first (`actorder`) and ranges are clipped
    for the least error (`mse`) by default. `perchannel` is accepted: every column has scales of its
    own. `sweeps` of a descent over codes and scales may follow, and `awq` scales channels first.
    """

    def __init__(  # noqa: PLR0913 - the signature of onnxruntime
        self,
        calibration_data_reader: Samples = None,
        percdamp: float = 0.01,
        block_size: int = 128,
        actorder: bool = True,
        mse: bool = True,
        perchannel: bool = True,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Types = None,
        sweeps: int = 0,
        awq: bool = False,
    ) -> None:
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        self.calibration_data_reader = calibration_data_reader
        self.percdamp = percdamp
        self.block_size = block_size
        self.actorder = actorder
        self.mse = mse
        self.perchannel = perchannel
        self.sweeps = sweeps
        self.awq = awq


class AWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Gives channels of large activations finer weights, and clips ranges: AWQ, by samples.

    Channels are scaled where a normalization makes the activation, whose scale is divided.
    """

    def __init__(
        self,
        calibration_data_reader: Samples = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Types = None,
    ) -> None:
        super().__init__("AWQ", quant_format, op_types_to_quantize)
        self.calibration_data_reader = calibration_data_reader


class NVAWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """AWQ in the QDQ format, as TensorRT Model Optimizer makes it, by samples that are given.

    onnxruntime downloads a data set and a tokenizer by their names; nothing is downloaded here.
    `calibration_method` is "awq_lite" (scales channels) or "awq_clip" (clips ranges only).
    """

    def __init__(
        self,
        tokenizer_dir: Any = None,
        dataset_name: str = "cnn",
        cache_dir: str = "./cache",
        calibration_method: str = "awq_lite",
        calibration_data_reader: Samples = None,
    ) -> None:
        if calibration_data_reader is None:
            raise InvalidArgument(
                f"no samples are given, and the data set {dataset_name!r} is not downloaded",
                hint="tokenize samples yourself, and pass them as calibration_data_reader",
            )
        if calibration_method not in ("awq_lite", "awq_clip"):
            raise InvalidArgument(
                f"calibration_method must be awq_lite or awq_clip, got {calibration_method!r}"
            )
        super().__init__("nvidia_awq", QuantFormat.QDQ)
        self.tokenizer_dir = tokenizer_dir
        self.cache_dir = cache_dir
        self.calibration_method = calibration_method
        self.calibration_data_reader = calibration_data_reader


def samples_of(reader: Samples) -> Iterable[Mapping[str, Any]]:
    """Yield the samples of a data reader, or of anything that yields dicts."""
    if reader is None:
        raise InvalidArgument(
            "calibration_data_reader is missing",
            hint="pass samples: dicts from input names to arrays, or a CalibrationDataReader",
        )
    if not hasattr(reader, "get_next"):
        yield from reader
        return
    if hasattr(reader, "rewind"):
        reader.rewind()
    while (sample := reader.get_next()) is not None:
        yield sample


def check_bits(config: WeightOnlyQuantConfig) -> None:
    """Raise for bits that weights cannot have; onnxruntime's class of error."""
    bits = getattr(config, "bits", 4)
    if bits not in _BITS:
        raise AssertionError(f"bits must be 2, 3, 4 or 8, got {bits}")
