"""Numbers in few bits: quantizing, dequantizing, and products of quantized numbers."""

from __future__ import annotations

from typing import Final

from sardonyx.ops.quantize.convert import dequantize, dynamic, quantize
from sardonyx.ops.quantize.products import (
    conv_integer,
    matmul_integer,
    qlinear_conv,
    qlinear_matmul,
)

OPS: Final = (
    quantize, dequantize, dynamic, qlinear_matmul, qlinear_conv, conv_integer, matmul_integer,
)  # fmt: skip
