"""All ops that the torch provider has kernels for, by family."""

from __future__ import annotations

import importlib
from typing import Final

from sardonyx.providers.torch.kernel import TorchKernel

MODULES: Final = (
    "attention.dot_product",
    "attention.fused",
    "attention.group_query",
    "attention.linear",
    "attention.multi_head",
    "attention.packed",
    "attention.projected",
    "attention.relative_bias",
    "attention.rotary",
    "conv.channels_last",
    "conv.deform",
    "conv.standard",
    "elementwise.activation",
    "elementwise.arithmetic",
    "elementwise.cast",
    "elementwise.chain",
    "gather",
    "loss",
    "matmul",
    "matrix",
    "moe",
    "move",
    "nbits.blockwise",
    "nbits.fused",
    "normalize.hyper_connections",
    "normalize.skip",
    "normalize.standard",
    "optimizer",
    "pooling",
    "quantize.convert",
    "quantize.matmul_conv",
    "quantize.qlinear",
    "random",
    "recurrent.dynamic_quantize",
    "recurrent.standard",
    "reduce",
    "resize",
    "sample.grid",
    "sample.roi",
    "select",
    "shape",
    "signal",
    "softmax",
)
KERNELS: Final[dict[tuple[str, str], TorchKernel]] = {
    key: kernel
    for name in MODULES
    for key, kernel in importlib.import_module(f"sardonyx.providers.torch.{name}").KERNELS.items()
}
