"""N-bit weights, implemented by `sardonyx.quantization.matmul_nbits`.

As in onnxruntime, names of other modules can be imported from this one too.
"""

from sardonyx.quantization import CalibrationDataReader, QuantFormat
from sardonyx.quantization.matmul_nbits import (
    AWQWeightOnlyQuantConfig,
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    NVAWQWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
    main,
)
from sardonyx.quantization.onnx_model import ONNXModel
from sardonyx.quantization.quant_utils import attribute_to_kwarg

__all__ = [
    "AWQWeightOnlyQuantConfig",
    "CalibrationDataReader",
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "NVAWQWeightOnlyQuantConfig",
    "ONNXModel",
    "QuantFormat",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
    "attribute_to_kwarg",
]

if __name__ == "__main__":
    main()
