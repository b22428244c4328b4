"""The public names of onnxruntime.capi.onnxruntime_inference_collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.ort.adapters import AdapterFormat as AdapterFormat
from sardonyx.ort.device import OrtDevice as OrtDevice
from sardonyx.ort.device import get_ort_device_type as get_ort_device_type
from sardonyx.ort.device import get_vendor_id_for_device_type as get_vendor_id_for_device_type
from sardonyx.ort.enums import OrtDeviceVendorId as OrtDeviceVendorId
from sardonyx.ort.ort_value import OrtValue as OrtValue
from sardonyx.ort.ort_value_vector import copy_tensors as copy_tensors
from sardonyx.ort.sparse_tensor import SparseTensor as SparseTensor
from sardonyx.providers import normalized
from sardonyx.session.inference import InferenceSession as InferenceSession
from sardonyx.session.io_binding import IOBinding as IOBinding
from sardonyx.session.model_compiler import LocationFunc
from sardonyx.session.model_compiler import ModelCompiler as ModelCompiler

GetInitializerLocationFunc = LocationFunc
GetInitializerLocationWrapperFunc = LocationFunc
Session = InferenceSession


def make_get_initializer_location_func_wrapper(
    get_initializer_location_func: LocationFunc,
) -> LocationFunc:
    """Return the function unchanged: it is called with OrtValues already."""
    return get_initializer_location_func


def check_and_normalize_provider_args(
    providers: Sequence[str | tuple[str, dict[Any, Any]]] | None,
    provider_options: Sequence[dict[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the available providers among these, and the options of each."""
    if not providers:
        return [], []
    options_by_name = normalized(providers, provider_options, available_provider_names)
    return list(options_by_name), list(options_by_name.values())
