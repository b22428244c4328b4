"""Conversion of a ModelProto, or of its tensors, from float32 to float16."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from sardonyx.convert import KEPT, ConvertOptions, converted, limits, names_in, to_bytes
from sardonyx.convert.half_plan import HalfOptions
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.load.source import read_model

DEFAULT_OP_BLOCK_LIST: Final = sorted(KEPT)
ALWAYS_FLOAT_INPUTS: Final = {"Resize": [2], "GroupNorm": [1, 2], "SkipGroupNorm": [1, 2]}
_MIN: Final = 5.96e-08
_MAX: Final = 65504.0


class InitializerTracker:
    """An initializer, and the nodes that read it in either type."""

    def __init__(self, initializer: TensorProto) -> None:
        self.initializer = initializer
        self.fp32_nodes: list[NodeProto] = []
        self.fp16_nodes: list[NodeProto] = []

    def add_node(self, node: NodeProto, is_node_blocked: bool) -> None:
        """Add a reader."""
        (self.fp32_nodes if is_node_blocked else self.fp16_nodes).append(node)


def convert_np_to_float16(
    np_array: Any, min_positive_val: float = _MIN, max_finite_val: float = _MAX
) -> Any:
    """Return an array in float16; finite numbers stay finite, and no number becomes 0."""
    array = np.asarray(np_array)
    size = np.abs(array)
    array = np.where((size > 0) & (size < min_positive_val),
                     np.copysign(min_positive_val, array), array)  # fmt: skip
    array = np.where((size > max_finite_val) & np.isfinite(size),
                     np.copysign(max_finite_val, array), array)  # fmt: skip
    return array.astype(np.float16)


def convert_tensor_float_to_float16(
    tensor: TensorProto, min_positive_val: float = _MIN, max_finite_val: float = _MAX
) -> TensorProto:
    """Convert a float32 tensor in place, and return it; other types stay."""
    if not isinstance(tensor, TensorProto):
        raise ValueError(  # noqa: TRY004 - onnxruntime's
            f"Expected input type is an ONNX TensorProto but got {type(tensor)}"
        )
    if tensor.data_type != TensorProto.FLOAT:
        return tensor
    array = np.asarray(numpy_helper.to_array(tensor))
    half = convert_np_to_float16(array, min_positive_val, max_finite_val)
    if tensor.float_data:
        tensor.int32_data[:] = half.reshape(-1).view(np.uint16).tolist()
        del tensor.float_data[:]
    else:
        tensor.raw_data = half.astype("<f2").tobytes()
    tensor.data_type = TensorProto.FLOAT16
    return tensor


def make_value_info_from_tensor(tensor: TensorProto) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor."""
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def convert_float_to_float16(  # noqa: PLR0913 - onnxruntime's function
    model: onnx.ModelProto | str | os.PathLike[str],
    min_positive_val: float = _MIN,
    max_finite_val: float = _MAX,
    keep_io_types: bool | Collection[str] = False,
    disable_shape_infer: bool = False,
    op_block_list: Collection[str] | None = None,
    node_block_list: Collection[str] | None = None,
    force_fp16_initializers: bool = False,
    force_fp16_inputs: Mapping[str, Collection[int]] | None = None,
    use_bfloat16_as_blocked_nodes_dtype: bool = False,
) -> onnx.ModelProto:
    """Return a model, given as a ModelProto or a path, in float16.

    Nodes in the block lists stay float32, or bfloat16 if asked for. `force_fp16_initializers`
    rounds weights that only these nodes read as well; `force_fp16_inputs` has positions of inputs
    that are float16 in any case, by op. Types are always inferred: `disable_shape_infer` is
    accepted for compatibility.
    """
    assert min_positive_val >= _MIN, f"min_positive_val is below {_MIN}, float16's smallest"
    assert max_finite_val <= _MAX, f"max_finite_val is above {_MAX}, float16's largest"
    is_path = isinstance(model, (str, os.PathLike))
    if not is_path and not isinstance(model, onnx.ModelProto):
        raise ValueError(f"Expected an ONNX ModelProto but got {type(model)}")
    half = HalfOptions(
        F16,
        keep_io_types
        if isinstance(keep_io_types, bool)
        else names_in(keep_io_types, "keep_io_types"),
        KEPT if op_block_list is None else names_in(op_block_list, "op_block_list"),
        names_in(node_block_list or (), "node_block_list"),
        limits(F16, min_positive_val, max_finite_val),
        forces_weights=force_fp16_initializers,
        forced_slots={op: tuple(slots) for op, slots in (force_fp16_inputs or {}).items()},
        kept_dtype=BF16 if use_bfloat16_as_blocked_nodes_dtype else F32,
    )
    changed, _ = converted(read_model(model), ConvertOptions(), half)
    result = onnx.ModelProto()
    result.ParseFromString(to_bytes(changed))
    return result


def float_to_float16_max_diff(
    tensor: TensorProto, min_positive_val: float = _MIN, max_finite_val: float = _MAX
) -> float:
    """Return the largest absolute difference that the conversion of a float32 tensor makes."""
    if not isinstance(tensor, TensorProto):
        raise ValueError(  # noqa: TRY004 - onnxruntime's
            f"Expected input type is an ONNX TensorProto but got {type(tensor)}"
        )
    if tensor.data_type != TensorProto.FLOAT:
        raise ValueError("Expected tensor data type is float.")
    if tensor.data_location == TensorProto.EXTERNAL and not tensor.raw_data:
        raise RuntimeError("external data not loaded!")
    array = np.asarray(numpy_helper.to_array(tensor))
    half = convert_np_to_float16(array, min_positive_val, max_finite_val)
    return float(np.max(np.abs(array - half.astype(np.float32)), initial=0.0))
