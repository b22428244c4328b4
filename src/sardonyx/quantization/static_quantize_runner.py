"""Command line of static quantization: samples are the `test_data_set_*` folders beside a model."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sardonyx._native import decode_tensor
from sardonyx.graph.const import Source
from sardonyx.load.source import Files
from sardonyx.load.tensor import Tensors
from sardonyx.quantization.calibrate import CalibrationDataReader
from sardonyx.quantization.config import StaticQuantConfig
from sardonyx.quantization.quant_types import QuantFormat, QuantType
from sardonyx.quantization.quantize import quantize
from sardonyx.quantization.tensors_data import CalibrationMethod
from sardonyx.session import InferenceSession

_TYPES: Final = {t.name.lower(): t for t in QuantType}
_METHODS: Final = {m.name.lower(): m for m in CalibrationMethod}
_FORMATS: Final = {f.name.lower(): f for f in QuantFormat}
# Flags, with the extra option that each sets and what it means.
_FLAGS: Final = {
    "enable_subgraph": ("EnableSubgraph", "quantize bodies of control flow too"),
    "force_quantize_no_input_check": (
        "ForceQuantizeNoInputCheck",
        "quantize ops that move elements also if their input is not quantized",
    ),
    "matmul_const_b_only": ("MatMulConstBOnly", "quantize only MatMul with a constant"),
    "add_qdq_pair_to_weight": (
        "AddQDQPairToWeight",
        "keep weights in floats, with a pair of nodes",
    ),
    "dedicated_qdq_pair": ("DedicatedQDQPair", "a pair of nodes for each reader of a tensor"),
    "calib_tensor_range_symmetric": ("CalibTensorRangeSymmetric", "ranges symmetric to 0"),
    "calib_moving_average": ("CalibMovingAverage", "moving averages of minima and maxima"),
    "disable_quantize_bias": ("QuantizeBias", "keep biases in floats"),
    "use_qdq_contrib_ops": ("UseQDQContribOps", "pairs of nodes of the domain com.microsoft"),
    "qdq_keep_removable_activations": ("QDQKeepRemovableActivations", "keep Relu and Clip"),
    "qdq_disable_weight_adjust_for_int32_bias": (
        "QDQDisableWeightAdjustForInt32Bias",
        "keep scales of weights whose bias does not fit into int32",
    ),
}


class OnnxModelCalibrationDataReader(CalibrationDataReader):
    """Reads `test_data_set_*/input_*.pb` beside a model."""

    def __init__(self, model_path: str) -> None:
        folder = os.path.dirname(os.path.abspath(model_path))
        self.model_dir = folder
        names = [i.name for i in InferenceSession(model_path).get_inputs()]
        sets = sorted(name for name in os.listdir(folder) if name.startswith("test_data_set_"))
        self._samples = iter(
            [
                {
                    name: self.read_onnx_pb_data(os.path.join(folder, data, f"input_{i}.pb"))
                    for i, name in enumerate(names)
                }
                for data in sets
            ]
        )

    def get_next(self) -> Any:
        """Return the inputs of the next folder, or None."""
        return next(self._samples, None)

    def read_onnx_pb_data(self, file_pb: str) -> Any:
        """Return the array of a TensorProto file."""
        with open(file_pb, "rb") as file:
            data = memoryview(file.read())
        tensors = Tensors(Source(data, file_pb), Files(None), {})
        return np.array(tensors.const(decode_tensor(data)).read())


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Quantize a model statically.")
    add = parser.add_argument
    add("-i", "--input_model_path", required=True, help="the model")
    add("-o", "--output_quantized_model_path", required=True, help="the quantized model")
    add("--activation_type", choices=_TYPES, default="quint8", help="type of activations")
    add("--weight_type", choices=_TYPES, default="qint8", help="type of weights")
    add("--calibration_method", choices=_METHODS, default="minmax", help="how ranges are found")
    add("--quant_format", choices=_FORMATS, default="qdq", help="how quantization is expressed")
    for flag, (_, meaning) in _FLAGS.items():
        add(f"--{flag}", action="store_true", help=meaning)
    add("--op_types_to_exclude_output_quantization", nargs="+", default=[], help="ops")
    add("--minimum_real_range", type=float, default=0.0001, help="the smallest range")
    add("--per_channel", action="store_true", help="quantize weights per channel")
    add("--nodes_to_quantize", nargs="+", default=None, help="names of nodes; default: all")
    add("--nodes_to_exclude", nargs="+", default=None, help="names of nodes that stay in floats")
    add(
        "--op_per_channel_axis",
        nargs=2,
        action="append",
        metavar=("OP_TYPE", "AXIS"),
        default=[],
        help="the axis of the channels of an op's weight",
    )
    add("--tensor_quant_overrides", help="a JSON file with the overrides of tensors")
    return parser.parse_args(arguments)


def get_tensor_quant_overrides(file: str | None) -> dict[str, Any]:
    """Return the overrides of a JSON file."""
    if not file:
        return {}
    with open(file, encoding="utf-8") as opened:
        overrides: dict[str, Any] = json.load(opened)
    for override in (o for group in overrides.values() for o in group):
        if "scale" in override:
            override["scale"] = np.array(override["scale"], np.float32)
            override["zero_point"] = np.array(override["zero_point"])
        if "quant_type" in override:
            override["quant_type"] = QuantType.from_string(override["quant_type"])
    return overrides


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize a model as the command line says."""
    args = parse_arguments(arguments)
    options = {option: getattr(args, flag) for flag, (option, _) in _FLAGS.items()}
    options["QuantizeBias"] = not args.disable_quantize_bias
    options["OpTypesToExcludeOutputQuantization"] = args.op_types_to_exclude_output_quantization
    options["MinimumRealRange"] = args.minimum_real_range
    axes = {name: int(axis) for name, axis in args.op_per_channel_axis}
    options["QDQOpTypePerChannelSupportToAxis"] = axes
    options["TensorQuantOverrides"] = get_tensor_quant_overrides(args.tensor_quant_overrides)
    config = StaticQuantConfig(
        OnnxModelCalibrationDataReader(args.input_model_path),
        _METHODS[args.calibration_method],
        _FORMATS[args.quant_format],
        _TYPES[args.activation_type],
        _TYPES[args.weight_type],
        nodes_to_quantize=args.nodes_to_quantize,
        nodes_to_exclude=args.nodes_to_exclude,
        per_channel=args.per_channel,
        extra_options=options,
    )
    quantize(args.input_model_path, args.output_quantized_model_path, config)


if __name__ == "__main__":
    main()
