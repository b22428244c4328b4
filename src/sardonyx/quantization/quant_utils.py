"""Functions and constants of onnxruntime.quantization.quant_utils, on numpy arrays and ONNX protos.

The package onnx is imported by the functions that make or read protos.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.base.shared_store import Array
from sardonyx.graph.const import Const, SourceConst, pack
from sardonyx.graph.dtype import by_name, by_onnx
from sardonyx.quantization.arithmetic import (
    float8_scale,
    quantized,
    scale_and_zero_point,
)
from sardonyx.quantization.arithmetic import snapped_zero_point as snap_zero_point_to_uint8
from sardonyx.quantization.base_quantizer import PRODUCER
from sardonyx.quantization.calibration_table import write_calibration_table
from sardonyx.quantization.document import document_bytes, read_document
from sardonyx.quantization.document.types import with_value_infos
from sardonyx.quantization.histogram import smooth_distribution
from sardonyx.quantization.opset import converted, needed_opset
from sardonyx.quantization.quant_types import FLOAT8 as FLOAT8_TYPES
from sardonyx.quantization.quant_types import (
    FLOAT8E4M3FN,
    FLOATS,
    QuantFormat,
    QuantizationMode,
    QuantizedValueType,
    QuantType,
    dtype_of,
    float_name,
    typed_limits,
    typed_table,
)
from sardonyx.quantization.quantize import PRE_PROCESSED
from sardonyx.quantization.quantized_value import QuantizedValue
from sardonyx.quantization.quantized_weight import QuantizedWeight, WeightScheme, weight_params

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__producer__, __version__ = PRODUCER
onnx_domain: Final = "ai.onnx"
ms_domain: Final = "com.microsoft"
QUANT_OP_NAME: Final = "QuantizeLinear"
QUANT_INPUT_SUFFIX: Final = "_QuantizeLinear_Input"
DEQUANT_OP_NAME: Final = "DequantizeLinear"
DEQUANT_OUTPUT_SUFFIX: Final = "_DequantizeLinear_Output"
TENSOR_NAME_QUANT_SUFFIX: Final = "_quantized"
MODEL_SIZE_THRESHOLD: Final = 2**31  # bytes; larger models need external data
_INFERRED: Final = ("onnx.infer", "onnxruntime.quant")  # metadata of models
_QUANTIZED: Final = (3, 2, 5, 4, 17, 22, 21)

ONNX_TYPE_TO_NP_TYPE: Final = {n: dtype_of(n).np for n in _QUANTIZED}
ONNX_INT_TYPE_RANGE: Final = typed_table("whole")
ONNX_INT_TYPE_SYMMETRIC_RANGE: Final = typed_table("symmetric")
ONNX_INT_TYPE_REDUCED_RANGE: Final = typed_table("reduced")

__all__ = [
    "FLOAT8_TYPES",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "QuantizedValue",
    "QuantizedValueType",
    "smooth_distribution",
    "snap_zero_point_to_uint8",
    "write_calibration_table",
]


def quantize_nparray(
    qType: int,
    arr: Array,
    scale: Any,
    zero_point: Any,
    low: float | None = None,
    high: float | None = None,
) -> Array:
    """Return an array quantized by one scale and zero point."""
    if qType not in ONNX_TYPE_TO_NP_TYPE:
        raise ValueError(f"arrays are not quantized to {float_name(qType)}")
    return quantized(qType, np.asarray(arr), scale, zero_point, low, high)


def compute_scale_zp(
    rmin: Any,
    rmax: Any,
    qmin: Any,
    qmax: Any,
    symmetric: bool = False,
    min_real_range: float | None = None,
) -> list[Array]:
    """Return zero point and scale of a range."""
    return list(scale_and_zero_point(rmin, rmax, qmin, qmax, symmetric, min_real_range))


def compute_scale_zp_float8(element_type: int, std: Any) -> list[Array]:
    """Return zero point and scale for values of a standard deviation in float8."""
    return list(float8_scale(element_type, std))


def compute_scale_zp_blocked(
    weight: Array, quant_type: int, axis: int, block_size: int, symmetric: bool
) -> tuple[Array, Array]:
    """Return zero points and scales of blocks along an axis of a matrix."""
    scheme = WeightScheme(quant_type, symmetric, axis % weight.ndim, block_size)
    return weight_params(weight, scheme)


def compute_data_quant_params(  # noqa: PLR0913 - onnxruntime's arguments
    data: Array,
    quant_type: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array]:
    """Return zero point and scale of an array."""
    if not isinstance(data, np.ndarray):
        raise TypeError(f"Weight must be given as an array not {type(data)}.")
    if quant_type not in ONNX_TYPE_TO_NP_TYPE:
        raise ValueError(f"Unexpected value for quant_type={quant_type}.")
    override = {"rmin": rmin_override, "rmax": rmax_override}
    scheme = WeightScheme(
        quant_type,
        symmetric,
        reduce_range=reduce_range,
        min_real_range=min_real_range,
        channels=(override,),
    )
    return weight_params(data, scheme)


def quantize_data(  # noqa: PLR0913 - onnxruntime's arguments
    data: Array,
    qType: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: float | None = None,
    rmax_override: float | None = None,
) -> tuple[Array, Array, Array]:
    """Return zero point, scale and the quantized array."""
    data = np.asarray(data)
    zero_point, scale = compute_data_quant_params(
        data, qType, symmetric, reduce_range, min_real_range, rmin_override, rmax_override
    )
    result = quantize_nparray(qType, data, scale, zero_point)
    if qType == FLOAT8E4M3FN and np.isnan(result.astype(np.float32)).any():
        raise RuntimeError("One of the quantized values is NaN: the data has NaN")
    return zero_point, scale, result


def quantize_onnx_initializer(  # noqa: PLR0913 - onnxruntime's arguments
    weight: TensorProto,
    quant_type: int,
    zero_point: Array,
    scale: Array,
    axis: int | None = None,
    quant_weight_name: str | None = None,
    block_size: int = 0,
) -> TensorProto:
    """Return an initializer quantized by given scales and zero points."""
    from onnx import helper

    from sardonyx.graph.const import ArrayConst

    values = tensor_proto_to_array(weight)
    if axis is not None:
        axis %= values.ndim
    scheme = WeightScheme(quant_type, False, axis, block_size)
    params = np.asarray(zero_point), np.asarray(scale)
    result = QuantizedWeight(ArrayConst(values), scheme, [], params).quantize()
    name = quant_weight_name or f"{weight.name}{TENSOR_NAME_QUANT_SUFFIX}"
    data = pack(result, dtype_of(quant_type))
    return helper.make_tensor(name, quant_type, list(weight.dims), data, raw=True)


def get_qmin_qmax_for_qType(
    qType: int, reduce_range: bool = False, symmetric: bool = False
) -> tuple[Array, Array]:
    """Return the smallest and largest number of a type, as arrays of the type."""
    return typed_limits(qType, reduce_range, symmetric)


def get_qrange_for_qType(qType: int, reduce_range: bool = False, symmetric: bool = False) -> int:
    """Return the number of quantization steps of a type."""
    low, high = typed_limits(qType, reduce_range, symmetric)
    return int(high) - int(low)


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Return whether an axis is one of a tensor of a rank, and its number from the front."""
    found = axis + rank if axis < 0 else axis
    return 0 <= found < rank, found


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """Return elements of a byte each as 4 bits each, the first in the low bits."""
    codes = np.frombuffer(bytes(src_8bit), np.int8)
    return bytearray(pack(codes, by_name("i4")))


def attribute_to_kwarg(attribute: Any) -> dict[str, Any]:
    """Return name and value of an AttributeProto."""
    from onnx import helper

    if attribute.type == 0:
        raise ValueError(f"attribute {attribute.name} does not have type specified.")
    return {attribute.name: helper.get_attribute_value(attribute)}


def find_by_name(item_name: str, item_list: Iterable[Any]) -> Any:
    """Return the first item with a name, or None."""
    return next((item for item in item_list if item.name == item_name), None)


def get_elem_index(elem_name: str, elem_list: Sequence[str]) -> int:
    """Return the last position of a name in a list; -1 if it is not there."""
    found = [i for i, name in enumerate(elem_list) if name == elem_name]
    return found[-1] if found else -1


def get_mul_node(inputs: Sequence[str], output: str, name: str) -> NodeProto:
    """Return a Mul node."""
    from onnx import helper

    return helper.make_node("Mul", inputs, [output], name)


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """Return a path with text added to the name before its suffix."""
    return filename.parent / f"{filename.stem}{identifier}{filename.suffix}"


def model_has_external_data(model_path: str | os.PathLike[str]) -> bool:
    """Return whether an initializer of a model file is in another file."""
    document = read_document(model_path)
    here = os.path.realpath(os.fspath(model_path))
    return any(_is_elsewhere(c, here) for c in document.graph.initializers.values())


def _is_elsewhere(const: Const, path: str) -> bool:
    if not isinstance(const, SourceConst) or const.source.file is None:
        return False
    return os.path.realpath(const.source.file.path) != path


def optimize_model(
    model_path: str | os.PathLike[str], opt_model_path: str | os.PathLike[str]
) -> None:
    """Write a model with constants folded and other basic optimizations."""
    from sardonyx.quantization.shape_inference import optimize

    optimize(os.fspath(model_path), os.fspath(opt_model_path))


def add_pre_process_metadata(model: ModelProto) -> None:
    """Mark a model as one that quant_pre_process has made."""
    _add_metadata(model, PRE_PROCESSED)


def model_has_pre_process_metadata(model: ModelProto) -> bool:
    """Return whether a model is one that quant_pre_process has made."""
    return _has_metadata(model, PRE_PROCESSED)


def add_infer_metadata(model: ModelProto) -> None:
    """Mark a model as one whose types are inferred."""
    _add_metadata(model, _INFERRED)


def model_has_infer_metadata(model: ModelProto) -> bool:
    """Return whether a model is marked as one whose types are inferred."""
    return _has_metadata(model, _INFERRED)


def _add_metadata(model: ModelProto, entry: tuple[str, str]) -> None:
    if not any(prop.key == entry[0] for prop in model.metadata_props):
        model.metadata_props.add(key=entry[0], value=entry[1])


def _has_metadata(model: ModelProto, entry: tuple[str, str]) -> bool:
    return any((prop.key, prop.value) == entry for prop in model.metadata_props)


def get_opset_version(model: ModelProto) -> int:
    """Return the opset of ONNX that a model imports."""
    found = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if len(found) != 1:
        raise ValueError("Failed to find proper ai.onnx domain")
    return int(found[0])


def update_opset_version(
    model: ModelProto,
    weight_type: QuantType | int,
    activation_type: QuantType | int | None = None,
    tensor_quant_overrides: Mapping[str, Any] | None = None,
    block_size: int = 0,
) -> ModelProto:
    """Return a model in the opset that quantization to these types needs."""
    opset = get_opset_version(model)
    needed = needed_opset(opset, weight_type, activation_type, tensor_quant_overrides, block_size)
    if needed == opset:
        return model
    document = converted(read_document(model), needed)
    with_value_infos(document)
    return _proto(document, _INFERRED)


def load_model_with_shape_infer(model_path: str | os.PathLike[str]) -> ModelProto:
    """Return a model with the inferred types of its values, and its external data in it."""
    document = read_document(model_path)
    with_value_infos(document)
    return _proto(document, _INFERRED)


def save_and_reload_model_with_shape_infer(model: ModelProto) -> ModelProto:
    """Return a model with the inferred types of its values."""
    document = read_document(model)
    with_value_infos(document)
    return _proto(document, _INFERRED)


def _proto(document: Any, entry: tuple[str, str]) -> ModelProto:
    from onnx import ModelProto

    document.metadata.setdefault(*entry)
    model: ModelProto = ModelProto.FromString(document_bytes(document))
    return model


def tensor_proto_to_array(initializer: TensorProto) -> Array:
    """Return the values of an initializer in float32 or float16."""
    from onnx import numpy_helper

    if initializer.data_type not in FLOATS:
        found = by_onnx(initializer.data_type)
        raise ValueError(
            f"Only float type is supported. Weights {initializer.name} is {found or 'undefined'}"
        )
    return numpy_helper.to_array(initializer)


def add_quant_suffix(tensor_name: str) -> str:
    """Return the name of the QuantizeLinear of a tensor."""
    return tensor_name + "_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    """Return the name of a tensor before it is quantized, where it is an output of the model."""
    return tensor_name + QUANT_INPUT_SUFFIX


def add_quant_output_suffix(tensor_name: str) -> str:
    """Return the name of a tensor after its QuantizeLinear."""
    return tensor_name + "_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    """Return the name of the DequantizeLinear of a tensor."""
    return tensor_name + "_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    """Return the name of a tensor before its DequantizeLinear."""
    return tensor_name + "_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    """Return the name of a tensor after its DequantizeLinear."""
    return tensor_name + DEQUANT_OUTPUT_SUFFIX
