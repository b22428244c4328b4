"""Quantization of ONNX models, with the interface of onnxruntime.quantization."""

from sardonyx.quantization.calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    MinMaxCalibrater,
    create_calibrator,
)
from sardonyx.quantization.calibration_table import write_calibration_table
from sardonyx.quantization.config import DynamicQuantConfig, StaticQuantConfig, get_qdq_config
from sardonyx.quantization.qdq_quantizer import QDQQuantizer
from sardonyx.quantization.quant_types import QuantFormat, QuantizationMode, QuantType
from sardonyx.quantization.quantize import quantize, quantize_dynamic, quantize_static
from sardonyx.quantization.shape_inference import quant_pre_process
from sardonyx.quantization.tensors_data import (
    CalibrationMethod,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)

__all__ = [
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "DynamicQuantConfig",
    "MinMaxCalibrater",
    "QDQQuantizer",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "StaticQuantConfig",
    "TensorData",
    "TensorsData",
    "create_calibrator",
    "get_qdq_config",
    "load_tensors_data",
    "quant_pre_process",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
    "save_tensors_data",
    "write_calibration_table",
]
