"""MatMulNBitsQuantizer: weights of 2 to 8 bits for MatMul and Gather, as onnxruntime makes them.

    python -m sardonyx.quantization.matmul_nbits --input_model MODEL --output_model OUT

Weights are quantized when the model is saved, each read once; calibrated ones by `process`.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.compile import load_model
from sardonyx.errors import InvalidArgument
from sardonyx.graph.infer import infer
from sardonyx.load.model import Model
from sardonyx.quantization.quant_types import QuantFormat
from sardonyx.quantization.weight_only.apply import Settings, apply
from sardonyx.quantization.weight_only.configs import (
    AWQWeightOnlyQuantConfig,
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    NVAWQWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
    check_bits,
)
from sardonyx.quantization.weight_only.grid import Format
from sardonyx.quantization.weight_only.result import QuantizedModel

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
    "main",
]


class MatMulNBitsQuantizer:
    """Quantizes constant weights of a model, given as its path or as a ModelProto.

    `process` quantizes; `model` is the result, with `save_model_to_file(path, external)` and the
    ModelProto as `model.model`. With `algo_config`, arguments that it has replace those here.
    """

    def __init__(  # noqa: PLR0913 - the signature of onnxruntime
        self,
        model: Any,
        bits: int = 4,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Iterable[str] | None = None,
        nodes_to_include: Iterable[str] | None = None,
        quant_format: Any = QuantFormat.QOperator,
        op_types_to_quantize: Sequence[str] | None = None,
        quant_axes: Sequence[tuple[str, int]] | None = None,
        channel_wised_quantize: bool = False,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        if algo_config is None:
            algo_config = DefaultWeightOnlyQuantConfig(
                block_size=block_size,
                is_symmetric=is_symmetric,
                accuracy_level=accuracy_level,
                quant_format=quant_format,
                op_types_to_quantize=op_types_to_quantize,
                quant_axes=quant_axes,
                bits=bits,
                channel_wised_quantize=channel_wised_quantize,
            )
        check_bits(algo_config)
        self.model = QuantizedModel(load_for_quantization(model))
        self.model_path = os.fspath(model) if isinstance(model, str | os.PathLike) else None
        self.bits = bits
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.accuracy_level = accuracy_level
        self.nodes_to_exclude = set(nodes_to_exclude or ())
        self.nodes_to_include = set(nodes_to_include) if nodes_to_include else None
        self.algo_config = algo_config

    def process(self) -> None:
        """Quantize: by samples now, without samples when the model is read or saved."""
        apply(self.model.graph_model, self._settings())

    def _settings(self) -> Settings:
        config: Any = self.algo_config
        form = Format(self.bits, self.block_size, self.is_symmetric)
        level = self.accuracy_level
        if config.algorithm == "DEFAULT":
            form = Format(config.bits, config.block_size, config.is_symmetric)
            level = config.accuracy_level
        elif config.algorithm == "HQQ":
            form, level = Format(config.bits, config.block_size, is_symmetric=False), None
        elif config.algorithm == "k_quant":
            form = Format(self.bits, self.block_size, is_symmetric=False)
        elif config.algorithm == "GPTQ" and config.block_size < 1:
            raise InvalidArgument(f"block_size of GPTQ must be at least 1, got {config.block_size}")
        excluded, included = self.nodes_to_exclude, self.nodes_to_include or ()
        return Settings(config, form, level or 0, frozenset(excluded), frozenset(included))


def load_for_quantization(model: Any) -> Model:
    """Return a model with the facts of its values, which refers to the weights of its file."""
    loaded = load_model(model)
    infer(loaded.graph)
    return loaded


_METHODS: Final = ("default", "hqq", "rtn", "k_quant", "gptq", "awq")


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize a model file, with the options of onnxruntime's command."""
    given = _parser().parse_args(arguments)
    if os.path.exists(given.output_model):
        raise SystemExit(f"{given.output_model} exists already")
    quantizer = MatMulNBitsQuantizer(
        given.input_model,
        bits=given.bits,
        block_size=given.block_size,
        is_symmetric=given.symmetric and given.quant_method != "hqq",
        accuracy_level=given.accuracy_level,
        nodes_to_exclude=given.nodes_to_exclude,
        nodes_to_include=given.nodes_to_include,
        algo_config=_config(given),
    )
    quantizer.process()
    quantizer.model.save_model_to_file(given.output_model, True)
    logger.info("%s is written", given.output_model)


def _config(given: argparse.Namespace) -> WeightOnlyQuantConfig:
    types, method = given.op_types_to_quantize, given.quant_method
    if method == "hqq":
        return HQQWeightOnlyQuantConfig(given.block_size, given.bits, op_types_to_quantize=types)
    if method == "rtn":
        return RTNWeightOnlyQuantConfig(op_types_to_quantize=types)
    if method == "k_quant":
        return KQuantWeightOnlyQuantConfig(op_types_to_quantize=types)
    if method in ("gptq", "awq"):
        samples = _samples(given.samples, method)
        if method == "gptq":
            return GPTQWeightOnlyQuantConfig(samples, op_types_to_quantize=types)
        return AWQWeightOnlyQuantConfig(samples, op_types_to_quantize=types)
    return DefaultWeightOnlyQuantConfig(
        block_size=given.block_size,
        is_symmetric=given.symmetric,
        accuracy_level=given.accuracy_level,
        quant_format=QuantFormat[given.quant_format],
        op_types_to_quantize=types,
        quant_axes=given.quant_axes,
        bits=given.bits,
    )


def _samples(paths: Sequence[str] | None, method: str) -> list[dict[str, Any]]:
    """Return the arrays of .npz files, one sample each."""
    import numpy as np

    if not paths:
        raise SystemExit(f"--quant_method {method} needs --samples, .npz files of the inputs")
    return [dict(np.load(path)) for path in paths]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Quantizes weights of MatMul to 2 to 8 bits.")
    add = parser.add_argument
    add("--input_model", required=True, help="the model to quantize")
    add("--output_model", required=True, help="the file to write, with its weights in .data")
    add("--block_size", default=32, type=int, help="rows of a weight that share a scale")
    add("--quant_method", default="default", choices=_METHODS, help="how weights are rounded")
    add("--bits", default=4, type=int, help="bits of a weight: 2, 3, 4 or 8")
    add(
        "--symmetric", default=True, const=True, nargs="?", type=_boolean,
        help="whether the code of 0 is the middle one",
    )  # fmt: skip
    add("--accuracy_level", type=int, help="4: activations may be rounded to 8 bits")
    add("-v", "--verbose", action="store_true", help="accepted, and ignored")
    add("--nodes_to_exclude", nargs="+", default=[], help="names of nodes that stay as they are")
    add("--nodes_to_include", nargs="+", help="names of nodes to quantize whatever their op")
    add("--quant_format", default="QOperator", choices=[f.name for f in QuantFormat])
    add("--op_types_to_quantize", nargs="+", choices=("MatMul", "Gather"))
    add("--quant_axes", nargs="+", type=_axis, help="axes of blocks, such as Gather:1")
    add("--samples", nargs="+", help=".npz files with the inputs of one sample each")
    return parser


def _boolean(text: str) -> bool:
    return text.lower() in ("true", "1")


def _axis(text: str) -> tuple[str, int]:
    op, _, axis = text.partition(":")
    return op, int(axis)


if __name__ == "__main__":
    main()
