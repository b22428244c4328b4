"""N-bit weights, implemented by `sardonyx.quantization.matmul_nbits`."""

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

__all__ = [
    "AWQWeightOnlyQuantConfig",
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer",
    "NVAWQWeightOnlyQuantConfig",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]

if __name__ == "__main__":
    main()
