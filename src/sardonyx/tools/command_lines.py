"""The command lines of onnxruntime.tools: each is a module there that python -m runs."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

import onnx

from sardonyx.tools.onnx_model_utils import (
    fix_output_shapes,
    get_optimization_level,
    make_dim_param_fixed,
    make_input_shape_fixed,
    optimize_model,
    update_onnx_opset,
)
from sardonyx.tools.proto_files import save_proto

_SEVERITIES = {"debug": 0, "info": 1, "warning": 2, "error": 3}


def _parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the two models, read and written."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("input_model", type=pathlib.Path, help="the model to read")
    parser.add_argument("output_model", type=pathlib.Path, help="the model to write")
    return parser


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def make_dynamic_shape_fixed_helper(argv: Sequence[str] | None = None) -> None:
    """Fix a symbolic dim or the shape of an input."""
    parser = _parser("Fix a symbolic dim of a model, or the shape of one of its inputs.")
    parser.add_argument("--dim_param", help="name of a symbolic dim, with --dim_value")
    parser.add_argument("--dim_value", type=int, help="its size")
    parser.add_argument("--input_name", help="name of an input, with --input_shape")
    parser.add_argument("--input_shape", type=_sizes, help="its shape: 1,3,256,256")
    given = parser.parse_args(argv)
    by_name = given.dim_param is not None
    sizes = [given.dim_value] if by_name else given.input_shape
    if by_name == (given.input_name is not None) or not sizes or min(s or 0 for s in sizes) < 1:
        parser.error("give --dim_param and --dim_value, or --input_name and --input_shape")
    model = onnx.load(given.input_model.resolve(strict=True))
    if by_name:
        make_dim_param_fixed(model.graph, given.dim_param, given.dim_value)
    else:
        make_input_shape_fixed(model.graph, given.input_name, given.input_shape)
    fix_output_shapes(model)
    save_proto(model, given.output_model.resolve())


def optimize_model_helper(argv: Sequence[str] | None = None) -> None:
    """Save a model as the graph passes of a level leave it."""
    parser = _parser("Optimize a model to a level, and save it.")
    levels = ("disable", "basic", "extended", "layout", "all")
    parser.add_argument("--opt_level", default="basic", choices=levels, help="default: basic")
    parser.add_argument("--log_level", default="error", choices=_SEVERITIES, help="default: error")
    given = parser.parse_args(argv)
    level, severity = get_optimization_level(given.opt_level), _SEVERITIES[given.log_level]
    optimize_model(given.input_model, given.output_model, level, severity)


def update_onnx_opset_helper(argv: Sequence[str] | None = None) -> None:
    """Save a model in another opset."""
    parser = _parser("Save a model in another opset.")
    parser.add_argument("--opset", type=int, default=15, help="default: 15")
    given = parser.parse_args(argv)
    update_onnx_opset(given.input_model, given.opset, given.output_model)


def remove_initializer_from_input(model: onnx.ModelProto) -> bool:
    """Make initializers that are inputs as well constants; return whether there were any."""
    if model.ir_version < 4:
        print("Model with ir_version below 4 requires to include initializer in graph input")
        return False
    names = {tensor.name for tensor in model.graph.initializer}
    kept = [value for value in model.graph.input if value.name not in names]
    is_changed = len(kept) < len(model.graph.input)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return is_changed


def remove_initializer_helper(argv: Sequence[str] | None = None) -> None:
    """Save a model without inputs that have default values."""
    parser = argparse.ArgumentParser(description="Make inputs with default values constants.")
    parser.add_argument("--input", required=True, help="the model to read")
    parser.add_argument("--output", required=True, help="the model to write")
    given = parser.parse_args(argv)
    model = onnx.load(given.input)
    remove_initializer_from_input(model)
    save_proto(model, given.output)
