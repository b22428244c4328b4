"""Compares a model in QDQ format with its original: weights and activations, tensor by tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.errors import InvalidArgument
from sardonyx.graph.const import ArrayConst
from sardonyx.graph.fact import Fact
from sardonyx.ort.enums import GraphOptimizationLevel
from sardonyx.ort.options import SessionOptions
from sardonyx.quantization.base_quantizer import logger
from sardonyx.quantization.calibrate import CalibraterBase
from sardonyx.quantization.document import NodeDoc, read_document, save_document
from sardonyx.quantization.document.read import value_of
from sardonyx.save.types import value_info
from sardonyx.session import InferenceSession

QUANT_INPUT_SUFFIX: Final = "_QuantizeLinear_Input"
DEQUANT_OUTPUT_SUFFIX: Final = "_DequantizeLinear_Output"
TENSOR_NAME_QUANT_SUFFIX: Final = "_quantized"
_SAVED: Final = "_ReshapedSavedOutput"
# What follows the name of a tensor after it was dequantized.
_AFTER: Final = (DEQUANT_OUTPUT_SUFFIX, DEQUANT_OUTPUT_SUFFIX + "_1")

Tensors = Sequence[Array]
Error = Callable[[Any, Any], float]


def modify_model_output_intermediate_tensors(
    input_model_path: Any,
    output_model_path: str | os.PathLike[str],
    op_types_for_saving: Sequence[str] | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Write a model whose tensors in floats are outputs, flat; by default those of all ops."""
    saver = CalibraterBase(input_model_path, op_types_for_saving)
    graph = saver.document.graph
    shape = "LinearReshape"
    while shape in graph.initializers:
        shape += "_"
    tensors = saver.tensors()
    graph.initializers[shape] = ArrayConst(np.array([-1], np.int64))
    for name, kind in tensors.items():
        output = name + _SAVED
        graph.add(NodeDoc("Reshape", [name, shape], [output], output))
        raw = value_info(output, Fact(kind.dtype, None), [None]).joined()
        graph.outputs.append(value_of(raw))
    save_document(saver.document, output_model_path, external=save_as_external_data)


def collect_activations(
    augmented_model: Any,
    input_reader: Any,
    session_options: SessionOptions | None = None,
    execution_providers: Sequence[Any] | None = None,
) -> dict[str, list[Array]]:
    """Run a model of `modify_model_output_intermediate_tensors`; return its tensors by batch.

    By default the graph is not optimized, and runs on the CPU.
    """
    if session_options is None:
        session_options = SessionOptions()
        session_options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = list(execution_providers or ["CPUExecutionProvider"])
    session = InferenceSession(augmented_model, session_options, providers=providers)
    names = [o.name for o in session.get_outputs() if o.name.endswith(_SAVED)]
    found: dict[str, list[Array]] = {name.removesuffix(_SAVED): [] for name in names}
    is_empty = True
    for feeds in input_reader:
        is_empty = False
        for name, array in zip(found, session.run(names, feeds), strict=True):
            found[name].append(array)
    if is_empty:
        raise RuntimeError("No data is collected while running augmented model!")
    return found


def create_activation_matching(
    qdq_activations: Mapping[str, Tensors],
    float_activations: Mapping[str, Tensors] | None = None,
) -> dict[str, dict[str, Tensors]]:
    """Return each activation before and after its pair ("pre_qdq", "post_qdq"), and the original's.

    The latter is "float", if `float_activations` has it.
    """
    found: dict[str, dict[str, Tensors]] = {}
    for name, tensors in qdq_activations.items():
        if name.endswith(QUANT_INPUT_SUFFIX):  # an output of the model, dequantized to its name
            original = name.removesuffix(QUANT_INPUT_SUFFIX)
            before, after = tensors, qdq_activations.get(original)
        else:
            suffix = next((s for s in _AFTER if name.endswith(s)), None)
            if suffix is None:
                continue
            original = name.removesuffix(suffix)
            before_or_none, after = qdq_activations.get(original), tensors
            if before_or_none is None:
                continue
            before = before_or_none
        if after is not None:
            found[original] = {"pre_qdq": before, "post_qdq": after}
    for name, match in found.items():
        if float_activations and name in float_activations:
            match["float"] = float_activations[name]
    return found


def create_weight_matching(
    float_model_path: Any, qdq_model_path: Any
) -> dict[str, dict[str, Array]]:
    """Return each quantized weight as it was ("float") and as it is used ("dequantized")."""
    originals = read_document(float_model_path).graph.initializers
    graph = read_document(qdq_model_path).graph
    found: dict[str, dict[str, Array]] = {}
    for node in graph.nodes:
        if node.op_type != "DequantizeLinear" or node.inputs[0] not in graph.initializers:
            continue
        name = node.inputs[0].removesuffix(TENSOR_NAME_QUANT_SUFFIX)
        if name not in originals or name == node.inputs[0]:
            logger.error("the dequantized tensor %s is not an original weight", node.inputs[0])
            continue
        arrays = [graph.initializers[n].read() for n in node.inputs]
        if len(arrays) == 2:
            arrays.append(np.zeros(arrays[1].shape, np.int32))
        dequantized = _dequantized(
            arrays, int(node.attr("axis", 1)), int(node.attr("block_size", 0))
        )
        found[name] = {"float": originals[name].read(), "dequantized": dequantized}
    return found


def _dequantized(arrays: Sequence[Array], axis: int, block_size: int) -> Array:
    tensor, scale, zero_point = arrays
    if scale.size != zero_point.size:
        raise InvalidArgument(
            f"scale and zero_point must have the same shape but {scale.shape} != {zero_point.shape}"
        )
    if scale.size == 1:
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    elif block_size:
        kept = tuple(slice(d) for d in tensor.shape)
        scale = np.repeat(scale, block_size, axis)[kept]
        zero_point = np.repeat(zero_point, block_size, axis)[kept]
    else:
        shape = [-1 if i == axis % tensor.ndim else 1 for i in range(tensor.ndim)]
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    real: Array = (tensor.astype(np.float32) - zero_point.astype(np.float32)) * scale
    return real


def compute_signal_to_quantization_noice_ratio(x: Any, y: Any) -> float:
    """Return the ratio of a signal to its difference from another, in dB."""
    left, right = ([v] if isinstance(v, np.ndarray) else list(v) for v in (x, y))
    if len(left) != len(right):
        raise RuntimeError("Unequal number of tensors to compare!")
    signal = np.concatenate([np.asarray(v).reshape(-1) for v in left])
    other = np.concatenate([np.asarray(v).reshape(-1) for v in right])
    smallest = float(np.finfo("float").eps)
    norm = max(float(np.linalg.norm(signal)), smallest)
    noise = max(float(np.linalg.norm(signal - other)), smallest)
    return 20 * math.log10(norm / noise)


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, Array]],
    err_func: Error = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """Return the error of each weight, by default as a ratio in dB."""
    return {n: err_func(m["float"], m["dequantized"]) for n, m in weights_match.items()}


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Tensors]],
    err_func: Error = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """Return the errors of each activation by its pair and, "xmodel_err", from the original."""
    result: dict[str, dict[str, float]] = {}
    for name, match in activations_match.items():
        errors = result[name] = {"qdq_err": err_func(match["pre_qdq"], match["post_qdq"])}
        if match.get("float"):
            errors["xmodel_err"] = err_func(match["float"], match["post_qdq"])
    return result
