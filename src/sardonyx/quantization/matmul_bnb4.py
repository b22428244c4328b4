"""MatMulBnb4Quantizer: weights in the 4-bit types of bitsandbytes, FP4 and NF4."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from sardonyx.base.log import logger
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import Const
from sardonyx.graph.dtype import U8
from sardonyx.ort.matmul_nbits_quantizer import quantize_matmul_bnb4
from sardonyx.quantization.matmul_nbits import load_for_quantization
from sardonyx.quantization.quantized_weight import release
from sardonyx.quantization.weight_only.result import QuantizedModel
from sardonyx.quantization.weight_only.rewrite import matmul_weight, replace_bnb4
from sardonyx.quantization.weight_only.rounding import matrix
from sardonyx.quantization.weight_only.stored import LazyArrays, Type

Array = np.ndarray[Any, Any]


class MatMulBnb4Quantizer:
    """Replaces each MatMul by a constant matrix by a MatMulBnb4."""

    FP4: ClassVar[int] = 0
    NF4: ClassVar[int] = 1

    def __init__(
        self,
        model: Any,
        quant_type: int,
        block_size: int,
        nodes_to_exclude: Iterable[str] | None = None,
    ) -> None:
        if quant_type not in (self.FP4, self.NF4):
            raise AssertionError(f"quant_type must be 0 for FP4 or 1 for NF4, got {quant_type}")
        if block_size < 16 or block_size & (block_size - 1):
            raise InvalidArgument(
                f"block_size is {block_size}, and must be a power of two from 16",
                hint="MatMulBnb4 has no other blocks; bitsandbytes uses 64",
            )
        self.model = QuantizedModel(load_for_quantization(model))
        self.quant_type = quant_type
        self.block_size = block_size
        self.nodes_to_exclude = set(nodes_to_exclude or ())

    def process(self) -> None:
        """Replace the nodes; weights are quantized when the model is read or saved."""
        graph = self.model.graph_model.graph
        for node in list(graph.all_nodes()):
            const = matmul_weight(node)
            if const is None or len(const.shape) != 2 or const.dtype.name == "bf16":
                continue
            if node.name in self.nodes_to_exclude:
                logger.info("%s is excluded from quantization", node)
                continue
            rows, columns = const.shape
            types: list[Type] = [
                (U8, (-(-rows * columns // 2),)),
                (const.dtype, (-(-rows * columns // self.block_size),)),
            ]
            consts = LazyArrays(types, partial(self._quantized, const)).consts()
            replace_bnb4(node, consts, self.block_size, self.quant_type)
        graph.sort()

    def _quantized(self, const: Const) -> list[Array]:
        weight = matrix(const)
        rows, columns = weight.shape
        packed = np.zeros(-(-weight.size // 2), np.uint8)
        largest = np.zeros(-(-weight.size // self.block_size), weight.dtype)
        transposed = np.ascontiguousarray(weight.T)
        settings = self.block_size, self.quant_type, columns, rows
        quantize_matmul_bnb4(packed, transposed, largest, *settings)
        release(const)
        return [packed, largest]
