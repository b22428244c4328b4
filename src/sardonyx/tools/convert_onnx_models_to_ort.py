"""Converts models in a folder to the .ort format, with a file of the ops that they need."""

from __future__ import annotations

import argparse
import enum
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Final

from sardonyx.base.atomic_file import writing
from sardonyx.graph.graph import Node
from sardonyx.load import LoadOptions, load
from sardonyx.ort.options import SessionOptions
from sardonyx.save.ort_schemas import schema_of
from sardonyx.session.inference import InferenceSession
from sardonyx.tools.onnx_model_utils import get_optimization_level

_LEVEL_VARIABLE: Final = "ORT_CONVERT_ONNX_MODELS_TO_ORT_OPTIMIZATION_LEVEL"


class OptimizationStyle(enum.Enum):
    """When a model is optimized.

    Runtime would save optimizations for onnxruntime to apply when it loads the model; here only
    the basic ones are applied, before the model is saved.
    """

    Fixed = 0
    Runtime = 1


def convert_onnx_models_to_ort(  # noqa: PLR0913 - onnxruntime's function
    model_path_or_dir: pathlib.Path,
    output_dir: pathlib.Path | None = None,
    optimization_styles: list[OptimizationStyle] | None = None,
    custom_op_library_path: pathlib.Path | None = None,
    target_platform: str | None = None,
    save_optimized_onnx_model: bool = False,
    allow_conversion_failures: bool = False,
    enable_type_reduction: bool = False,
) -> None:
    """Write an .ort file for each .onnx file, and a config file of the ops that they use.

    `target_platform` and `enable_type_reduction` are accepted: files are the same for all
    platforms, and the config file always lists ops without types.
    """
    source = pathlib.Path(model_path_or_dir).resolve()
    if not source.exists():
        raise FileNotFoundError(f"Model path '{source}' is not a file or directory.")
    if custom_op_library_path is not None:
        raise NotImplementedError(
            "libraries of custom ops for onnxruntime are not supported: declare the ops with "
            "sardonyx.custom_op, and save the model with optimized_model_filepath"
        )
    folder = source if source.is_dir() else source.parent
    target = folder if output_dir is None else pathlib.Path(output_dir).resolve()
    level = os.environ.get(_LEVEL_VARIABLE, "all")
    for style in optimization_styles or []:
        suffix = _suffix(level, style)
        done = []
        for model in _models(source):
            out = (target / model.relative_to(folder)).with_suffix(f"{suffix}.ort")
            outputs = [out.with_suffix(".optimized.onnx")] if save_optimized_onnx_model else []
            try:
                _save(model, [*outputs, out], level, style)
                done.append(out)
            except Exception as error:
                print(f"Error converting {model}: {error}")
                if not allow_conversion_failures:
                    raise
        print(f"Converted {len(done)} models with optimization style '{style.name}'")
        _write_config(done, _config_path(source, target, suffix))


def _suffix(level: str, style: OptimizationStyle) -> str:
    level_part = "" if level == "all" else f".{level}"
    return level_part + (".with_runtime_opt" if style is OptimizationStyle.Runtime else "")


def _models(source: pathlib.Path) -> list[pathlib.Path]:
    """Return the models of a file or folder, but those that an earlier conversion saved."""
    files = [source] if source.is_file() else sorted(source.rglob("*"))
    names = ((f, f.name.lower()) for f in files if f.is_file())
    found = [f for f, n in names if n.endswith(".onnx") and not n.endswith(".optimized.onnx")]
    if not found:
        raise ValueError(f"No model files were found in '{source}'")
    return found


def _save(
    model: pathlib.Path, outputs: Iterable[pathlib.Path], level: str, style: OptimizationStyle
) -> None:
    wanted, basic = map(get_optimization_level, (level, "basic"))
    for out in outputs:
        out.parent.mkdir(parents=True, exist_ok=True)
        options = SessionOptions()
        is_runtime = style is OptimizationStyle.Runtime
        options.graph_optimization_level = min(wanted, basic) if is_runtime else wanted
        options.optimized_model_filepath = os.fspath(out)
        InferenceSession(os.fspath(model), options, providers=["CPUExecutionProvider"])


def _config_path(source: pathlib.Path, target: pathlib.Path, suffix: str) -> pathlib.Path:
    name = f"required_operators{suffix}.config"
    if source.is_dir():
        return target / name
    return target / source.with_suffix(f".{name}").name


def _write_config(models: Iterable[pathlib.Path], path: pathlib.Path) -> None:
    """Write the ops of models by domain and version: domain;version;op,op,..."""
    found: dict[tuple[str, int], set[str]] = {}
    for model in models:
        loaded = load(model, LoadOptions())
        for node in loaded.graph.all_nodes():
            key = node.op.domain or "ai.onnx", _since(node, loaded.opsets)
            found.setdefault(key, set()).add(node.op.name)
    lines = [f"{d};{v};{','.join(sorted(ops))}" for (d, v), ops in sorted(found.items())]
    with writing(os.fspath(path)) as file:
        file.write("\n".join(["# the ops that the models need", *lines, ""]).encode())


def _since(node: Node, opsets: dict[str, int]) -> int:
    return schema_of(node.op.domain, node.op.name, opsets.get(node.op.domain, 1)).since


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    styles = [style.name for style in OptimizationStyle]
    parser.add_argument("model_path_or_dir", type=pathlib.Path, help="a model, or a folder of them")
    parser.add_argument("--output_dir", type=pathlib.Path, help="default: beside the models")
    parser.add_argument("--optimization_style", nargs="+", default=styles, choices=styles)
    parser.add_argument("--custom_op_library", type=pathlib.Path, help="not supported")
    parser.add_argument("--target_platform", choices=("arm", "amd64"), help="for compatibility")
    parser.add_argument("--enable_type_reduction", action="store_true", help="for compatibility")
    parser.add_argument("--save_optimized_onnx_model", action="store_true")
    parser.add_argument("--allow_conversion_failures", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Convert the models of the command line."""
    given = parse_args(argv)
    convert_onnx_models_to_ort(
        given.model_path_or_dir,
        given.output_dir,
        [OptimizationStyle[name] for name in given.optimization_style],
        given.custom_op_library,
        given.target_platform,
        given.save_optimized_onnx_model,
        given.allow_conversion_failures,
        given.enable_type_reduction,
    )
