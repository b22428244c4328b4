"""Weights of a ModelProto, taken out as OrtValues."""

from __future__ import annotations

from onnx import ModelProto, TensorProto
from onnx.external_data_helper import set_external_data

from sardonyx.ort.ort_value import OrtValue
from sardonyx.transformers.fusion_utils import NumpyHelper
from sardonyx.transformers.onnx_model import OnnxModel

_PLACEHOLDER = "foo.bin"  # the location of weights that sessions get as OrtValues


def extract_raw_data_from_model(model: ModelProto) -> tuple[tuple[str, ...], tuple[OrtValue, ...]]:
    """Take the raw data of initializers out of a model; return their names and OrtValues.

    They become external data of a file that does not exist: a session gets them by
    `SessionOptions.add_external_initializers`.
    """
    taken: dict[str, OrtValue] = {}
    for graph in OnnxModel(model).graphs():
        for tensor in graph.initializer:
            if tensor.HasField("raw_data"):
                taken[tensor.name] = OrtValue.ortvalue_from_numpy(NumpyHelper.to_array(tensor))
                set_external_data(tensor, location=_PLACEHOLDER)
                tensor.ClearField("raw_data")
    return tuple(taken), tuple(taken.values())


def has_external_data(model: ModelProto) -> bool:
    """Return whether an initializer is external data that is not loaded."""
    return any(
        tensor.data_location == TensorProto.EXTERNAL
        for graph in OnnxModel(model).graphs()
        for tensor in graph.initializer
    )
