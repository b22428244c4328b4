"""Names that programs import from onnxruntime.capi.onnxruntime_inference_collection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.adapters import AdapterFormat
from sardonyx.compiler import LocationFunc, ModelCompiler
from sardonyx.device import OrtDevice, get_ort_device_type, get_vendor_id_for_device_type
from sardonyx.enums import OrtDeviceVendorId
from sardonyx.ortvalue import OrtValue
from sardonyx.ortvalues import copy_tensors
from sardonyx.providers import normalized
from sardonyx.session.binding import IOBinding
from sardonyx.session.inference import InferenceSession
from sardonyx.sparse import SparseTensor

GetInitializerLocationFunc = LocationFunc
GetInitializerLocationWrapperFunc = LocationFunc
Session = InferenceSession


def make_get_initializer_location_func_wrapper(
    get_initializer_location_func: LocationFunc,
) -> LocationFunc:
    """The function itself: it is called with OrtValues as it is."""
    return get_initializer_location_func


def check_and_normalize_provider_args(
    providers: Sequence[str | tuple[str, dict[Any, Any]]] | None,
    provider_options: Sequence[dict[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Names of providers that are available, and the options of each."""
    if not providers:
        return [], []
    wanted = normalized(providers, provider_options, available_provider_names)
    return list(wanted), list(wanted.values())


__all__ = [
    "AdapterFormat",
    "GetInitializerLocationFunc",
    "GetInitializerLocationWrapperFunc",
    "IOBinding",
    "InferenceSession",
    "ModelCompiler",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "SparseTensor",
    "check_and_normalize_provider_args",
    "copy_tensors",
    "get_ort_device_type",
    "get_vendor_id_for_device_type",
    "make_get_initializer_location_func_wrapper",
]
