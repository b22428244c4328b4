"""Prepares models for quantization: newer opset, folded constants, fused ops, inferred types."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Final

from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.ort.enums import GraphOptimizationLevel
from sardonyx.ort.options import SessionOptions
from sardonyx.quantization.base_quantizer import logger
from sardonyx.quantization.document import ModelDoc, read_document, save_document
from sardonyx.quantization.document.session import open_session
from sardonyx.quantization.document.types import with_value_infos
from sardonyx.quantization.opset import converted
from sardonyx.quantization.quantize import PRE_PROCESSED

_OLDEST: Final = 11  # opset that quantization needs
_MIN_EXTERNAL: Final = 1024  # bytes; the data file of an optimized model is temporary
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_DATA_MIN: Final = "session.optimized_model_external_initializers_min_size_in_bytes"


def quant_pre_process(  # noqa: PLR0913 - onnxruntime's arguments
    input_model: Any = None,
    output_model_path: str | os.PathLike[str] | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = 2**31 - 1,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = _MIN_EXTERNAL,
    **deprecated_kwargs: Any,
) -> None:
    """Optimize a model, declare the types of its values, and save it.

    `input_model` is a path, bytes or an onnx.ModelProto. Shapes are inferred unless both
    `skip_onnx_shape` and `skip_symbolic_shape` are set: there is one inference, which is symbolic.
    Its options (`auto_merge`, `int_max`, `guess_output_rank`) have no effect, and external data is
    always one file.
    """
    model = deprecated_kwargs.pop("input_model_path", None) if input_model is None else input_model
    if model is None or output_model_path is None:
        raise InvalidArgument("quant_pre_process needs an input_model and an output_model_path")
    if deprecated_kwargs:
        raise InvalidArgument(f"quant_pre_process has no argument {min(deprecated_kwargs)}")
    document = read_document(model)
    if document.opset < _OLDEST:
        document = converted(document, _OLDEST)
    with tempfile.TemporaryDirectory(prefix="sardonyx.quantization.") as folder:
        if not skip_optimization:
            document = _optimized(document, os.path.join(folder, "optimized.onnx"))
        if not (skip_onnx_shape and skip_symbolic_shape):
            with_value_infos(document)
        document.metadata.setdefault(*PRE_PROCESSED)
        save_document(
            document,
            output_model_path,
            save_as_external_data,
            external_data_location,
            external_data_size_threshold,
        )


def optimize(path: str, optimized_path: str) -> None:
    """Write a model with basic optimizations."""
    with tempfile.TemporaryDirectory(prefix="sardonyx.quantization.") as folder:
        document = _optimized(read_document(path), os.path.join(folder, "optimized.onnx"))
        save_document(document, optimized_path)


def _optimized(document: ModelDoc, path: str) -> ModelDoc:
    """Return the optimized model, whose weights are at a path; the model itself if it fails."""
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = path
    options.add_session_config_entry(_DATA_FILE, os.path.basename(path) + ".data")
    options.add_session_config_entry(_DATA_MIN, str(_MIN_EXTERNAL))
    try:
        open_session(document, options=options)
    except SardonyxError as error:
        logger.error("the model is not optimized before quantization: %s", error)
        return document
    result = read_document(path)
    # What is saved in the lowest opset that has its ops is valid in later ones too.
    result.opsets[""] = max(document.opset, result.opset)
    result.ir_version = max(document.ir_version, result.ir_version)
    result.producer = document.producer
    return result
