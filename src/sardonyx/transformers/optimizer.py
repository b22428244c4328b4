"""The optimizer of transformers: graph passes, then fusions into ops of com.microsoft.

python -m onnxruntime.transformers.optimizer --input model.onnx --output fused.onnx
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
from collections.abc import Collection, Sequence
from typing import Final

import onnx

from sardonyx.ort.enums import GraphOptimizationLevel
from sardonyx.ort.options import SessionOptions
from sardonyx.session.inference import InferenceSession
from sardonyx.transformers.fusion_options import FusionOptions
from sardonyx.transformers.onnx_model import OnnxModel
from sardonyx.transformers.onnx_model_bert import BertOnnxModel

logger = logging.getLogger(__name__)
_LEVELS: Final = {
    1: GraphOptimizationLevel.ORT_ENABLE_BASIC,
    2: GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    99: GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_DATA_MIN: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
_PROVIDERS: Final = {
    "cuda": "CUDAExecutionProvider",
    "dml": "DmlExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
}
# The default level of each type of model, as onnxruntime has it.
MODEL_TYPES: Final = {
    name: (BertOnnxModel, producer, level)
    for name, producer, level in (
        ("bart", "pytorch", 1), ("bert", "pytorch", 1), ("bert_keras", "keras2onnx", 0),
        ("bert_tf", "tf2onnx", 0), ("clip", "pytorch", 1), ("conformer", "pytorch", 1),
        ("gpt2", "pytorch", 1), ("gpt2_tf", "tf2onnx", 0), ("gpt_neox", "pytorch", 0),
        ("mmdit", "pytorch", 1), ("phi", "pytorch", 0), ("qwen3", "pytorch", 0),
        ("sam2", "pytorch", 1), ("swin", "pytorch", 1), ("t5", "pytorch", 2),
        ("tnlr", "pytorch", 1), ("unet", "pytorch", 1), ("vae", "pytorch", 1),
        ("vit", "pytorch", 1),
    )
}  # fmt: skip


def optimize_by_onnxruntime(  # noqa: PLR0913 - onnxruntime's function
    onnx_model: str | onnx.ModelProto,
    use_gpu: bool = False,
    optimized_model_path: str | None = None,
    opt_level: int = 99,
    disabled_optimizers: Collection[str] = (),
    verbose: bool = False,
    save_as_external_data: bool = False,
    external_data_filename: str = "",
    external_data_file_threshold: int = 1024,
    *,
    provider: str | None = None,
) -> str:
    """Save a model as the graph passes of a level leave it, and return the path."""
    if opt_level not in _LEVELS:
        raise ValueError(f"opt_level must be 1, 2 or 99, got {opt_level}")
    options = SessionOptions()
    options.graph_optimization_level = _LEVELS[opt_level]
    if optimized_model_path is None:
        is_path = not isinstance(onnx_model, onnx.ModelProto)
        prefix = os.path.splitext(onnx_model)[0] if is_path else "optimized_model"
        optimized_model_path = f"{prefix}_o{opt_level}_{'gpu' if use_gpu else 'cpu'}.onnx"
    options.optimized_model_filepath = optimized_model_path
    if save_as_external_data:
        name = external_data_filename or f"{os.path.basename(optimized_model_path)}.data"
        options.add_session_config_entry(_DATA_FILE, name)
        options.add_session_config_entry(_DATA_MIN, str(external_data_file_threshold))
    if verbose:
        options.log_severity_level = 0
    device = [_PROVIDERS.get(provider or "", "CUDAExecutionProvider")] if use_gpu else []
    InferenceSession(
        onnx_model,
        options,
        providers=[*device, "CPUExecutionProvider"],
        disabled_optimizers=list(disabled_optimizers),
    )
    return optimized_model_path


def optimize_by_fusion(
    model: onnx.ModelProto,
    model_type: str = "bert",
    num_heads: int = 0,
    hidden_size: int = 0,
    optimization_options: FusionOptions | None = None,
) -> OnnxModel:
    """Return a model with fused ops; one of an unknown type as it is."""
    if not _is_known(model_type):
        return OnnxModel(model)
    fused = BertOnnxModel(model, num_heads, hidden_size, model_type)
    fused.optimize(optimization_options or FusionOptions(model_type))
    return fused


def _is_known(model_type: str) -> bool:
    if model_type in MODEL_TYPES:
        return True
    known = ", ".join(MODEL_TYPES)
    logger.warning(
        "the model is not fused: model_type must be one of %s, got %r", known, model_type
    )
    return False


def optimize_model(  # noqa: PLR0913 - onnxruntime's function
    input: str | onnx.ModelProto,
    model_type: str = "bert",
    num_heads: int = 0,
    hidden_size: int = 0,
    optimization_options: FusionOptions | None = None,
    opt_level: int | None = None,
    use_gpu: bool = False,
    only_onnxruntime: bool = False,
    verbose: bool = False,
    *,
    provider: str | None = None,
) -> OnnxModel:
    """Return a model with fused ops or, if told so, only after the graph passes of a level.

    Fusions include the basic passes, whatever the level is. The same ones are tried for all types
    of models; the number of heads and the hidden size are found in the graph. A model of an unknown
    type is returned as it is.
    """
    if not _is_known(model_type):
        return OnnxModel(_loaded(input))
    level = MODEL_TYPES[model_type][2] if opt_level is None else opt_level
    if only_onnxruntime and level > 0:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "optimized.onnx")
            has_data = not isinstance(input, onnx.ModelProto)
            optimize_by_onnxruntime(
                input, use_gpu, path, level, (), verbose, has_data, provider=provider
            )
            return BertOnnxModel(onnx.load(path), num_heads, hidden_size)
    model = _loaded(input)
    if only_onnxruntime:
        return BertOnnxModel(model, num_heads, hidden_size)
    return optimize_by_fusion(model, model_type, num_heads, hidden_size, optimization_options)


def _loaded(model: str | onnx.ModelProto) -> onnx.ModelProto:
    return model if isinstance(model, onnx.ModelProto) else onnx.load(os.fspath(model))


def get_fusion_statistics(optimized_model_path: str) -> dict[str, int]:
    """Return the number of nodes of each fused op in a file."""
    return BertOnnxModel(onnx.load(optimized_model_path)).get_fused_operator_statistics()


def main(argv: Sequence[str] | None = None) -> None:
    """Optimize the model of the command line."""
    parser = argparse.ArgumentParser(description="Fuse the ops of a transformer.")
    parser.add_argument("--input", required=True, help="the model to read")
    parser.add_argument("--output", required=True, help="the model to write")
    parser.add_argument("--model_type", default="bert", type=str.lower, choices=MODEL_TYPES)
    parser.add_argument("--num_heads", type=int, default=0, help="for compatibility")
    parser.add_argument("--hidden_size", type=int, default=0, help="for compatibility")
    parser.add_argument("--float16", action="store_true", help="convert to float16 as well")
    parser.add_argument("--input_int32", action="store_true", help="ids are int32 inputs")
    parser.add_argument("--opt_level", type=int, choices=(0, 1, 2, 99), help="level of passes")
    parser.add_argument("--use_gpu", action="store_true", help="optimize for a GPU")
    parser.add_argument("--provider", choices=_PROVIDERS, help="the GPU's provider")
    parser.add_argument("--only_onnxruntime", action="store_true", help="no fusions")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--use_external_data_format", action="store_true")
    FusionOptions.add_arguments(parser)
    given = parser.parse_args(argv)
    model = optimize_model(
        given.input, given.model_type, given.num_heads, given.hidden_size,
        FusionOptions.parse(given), given.opt_level, given.use_gpu, given.only_onnxruntime,
        given.verbose, provider=given.provider,
    )  # fmt: skip
    if given.input_int32 and isinstance(model, BertOnnxModel):
        model.change_graph_inputs_to_int32()
    if given.float16:
        model.convert_float_to_float16(keep_io_types=True)
    model.save_model_to_file(given.output, given.use_external_data_format)
    print(get_fusion_statistics(given.output))


if __name__ == "__main__":
    main()
