"""The ops of com.microsoft that saved and quantized models use."""

from __future__ import annotations

from typing import Final

from sardonyx.ops.microsoft.fused import fused_conv, fused_gemm, fused_matmul
from sardonyx.ops.microsoft.gelu import bias_gelu, fast_gelu, gelu, quick_gelu
from sardonyx.ops.microsoft.group_query import group_query
from sardonyx.ops.microsoft.multi_head import multi_head
from sardonyx.ops.microsoft.nbits import gather_blocks, matmul_nbits
from sardonyx.ops.microsoft.projected import projected
from sardonyx.ops.microsoft.quantized import dynamic_lstm, dynamic_matmul, matmul_to_float
from sardonyx.ops.microsoft.rotary import rotary
from sardonyx.ops.microsoft.skip import skip_layer, skip_simplified
from sardonyx.ops.microsoft.tokenizer import tokenizer

OPS: Final = (
    fused_conv,
    fused_gemm,
    fused_matmul,
    gelu,
    fast_gelu,
    bias_gelu,
    quick_gelu,
    skip_layer,
    skip_simplified,
    dynamic_lstm,
    dynamic_matmul,
    matmul_to_float,
    matmul_nbits,
    gather_blocks,
    tokenizer,
    group_query,
    multi_head,
    projected,
    rotary,
)
