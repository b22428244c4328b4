"""Weights in 4-bit types of bitsandbytes, implemented by `sardonyx.quantization.matmul_bnb4`."""

from sardonyx.quantization.matmul_bnb4 import MatMulBnb4Quantizer

__all__ = ["MatMulBnb4Quantizer"]
