"""Every public name of onnxruntime exists, with its arguments and members."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import onnxruntime
import pytest

import sardonyx

MODULES = (
    ("onnxruntime", "sardonyx"),
    ("onnxruntime.capi._pybind_state", "sardonyx.capi._pybind_state"),
    (
        "onnxruntime.capi.onnxruntime_pybind11_state",
        "sardonyx.capi.onnxruntime_pybind11_state",
    ),
    (
        "onnxruntime.capi.onnxruntime_inference_collection",
        "sardonyx.capi.onnxruntime_inference_collection",
    ),
)

# Names that are not here, and why.
LEFT_OUT = {
    "pack_fp4_weights_for_cuda_moe_gemm": "lays weights out for a CUDA kernel",
    "import_capi_exception": "a variable of the module's own start-up",
    "onnxruntime_validation": "belongs to as_onnxruntime",
    "package_name": "belongs to as_onnxruntime",
    "version": "belongs to as_onnxruntime",
    "cuda_version": "belongs to as_onnxruntime",
    "C": "the native module under a short name",
    # Methods of the native classes that only onnxruntime's own Python calls:
    "InferenceSession.initialize_session": "a session is ready once it is made",
    "InferenceSession.is_webgpu_graph_capture_enabled": "WebGPU",
    "InferenceSession.webgpu_context_id": "WebGPU",
    "InferenceSession.create_ortvalue_from_shape_and_onnx_type": "takes numbers as types already",
    "InferenceSession.input_epdevices": "get_input_epdevices",
    "InferenceSession.input_meminfos": "get_input_memory_infos",
    "InferenceSession.inputs_meta": "get_inputs",
    "InferenceSession.model_meta": "get_modelmeta",
    "InferenceSession.output_meminfos": "get_output_memory_infos",
    "InferenceSession.outputs_meta": "get_outputs",
    "InferenceSession.overridable_initializers": "get_overridable_initializers",
    "InferenceSession.session_options": "get_session_options",
}


def public(module: ModuleType) -> dict[str, Any]:
    """Return the public names of a module, without imported ones and modules."""
    found = {}
    for name in dir(module):
        value = getattr(module, name)
        home = getattr(value, "__module__", "") or ""
        if name.startswith("_") or inspect.ismodule(value) or name == "annotations":
            continue
        if (inspect.isclass(value) or callable(value)) and not home.startswith("onnxruntime"):
            continue
        found[name] = value
    return found


PAIRS = [
    pytest.param(theirs, ours, name, id=f"{theirs.rpartition('.')[2]}.{name}")
    for theirs, ours in MODULES
    for name in public(importlib.import_module(theirs))
    if name not in LEFT_OUT
]


@pytest.mark.parametrize(("theirs", "ours", "name"), PAIRS)
def test_every_public_name_exists(theirs: str, ours: str, name: str) -> None:
    wanted = getattr(importlib.import_module(theirs), name)
    found = getattr(importlib.import_module(ours), name)
    if inspect.isclass(wanted) and hasattr(wanted, "__members__"):
        assert {k: int(v) for k, v in wanted.__members__.items()} == {
            k: int(v) for k, v in found.__members__.items()
        }
    elif inspect.isclass(wanted):
        compare_classes(wanted, found)
    elif inspect.isfunction(wanted):
        compare_arguments(name, wanted, found)


def compare_classes(wanted: type, found: type) -> None:
    if issubclass(wanted, Exception):
        assert issubclass(found, Exception)
        return
    missing = []
    for name in dir(wanted):
        if name.startswith("_") or hasattr(object, name):
            continue
        full = f"{wanted.__name__}.{name}"
        if full in LEFT_OUT:
            continue
        if not hasattr(found, name) and name not in getattr(found, "__annotations__", {}):
            made = found() if wanted.__name__ in ("SessionOptions", "RunOptions") else None
            if not hasattr(made, name):
                missing.append(name)
        elif inspect.isfunction(inspect.unwrap(getattr(wanted, name))):
            compare_arguments(full, getattr(wanted, name), getattr(found, name))
    assert not missing
    init = wanted.__init__  # type: ignore[misc]  # of a class in hand
    if inspect.isfunction(init) and wanted.__name__ not in ("Session", "SparseTensor", "OrtDevice"):
        compare_arguments(wanted.__name__, init, found.__init__)  # type: ignore[misc]


def compare_arguments(name: str, wanted: Any, found: Any) -> None:
    """Whoever calls with the arguments of the one may call the other."""
    theirs = [
        p for p in inspect.signature(wanted).parameters.values() if p.kind is not p.VAR_KEYWORD
    ]
    ours = inspect.signature(found).parameters
    for position, parameter in enumerate(theirs):
        twin = ours.get(parameter.name)
        assert twin is not None, f"{name} has no argument {parameter.name}"
        assert list(ours).index(parameter.name) == position or twin.kind is twin.KEYWORD_ONLY, name
        if parameter.default is not parameter.empty:
            assert twin.default is not twin.empty, f"{name}: {parameter.name} has no default"
            if isinstance(parameter.default, (int, str, bool)):
                assert twin.default == parameter.default, f"{name}: {parameter.name}"


def test_names_listed_as_left_out_do_not_exist() -> None:
    for name in LEFT_OUT:
        owner, _, member = name.rpartition(".")
        where = getattr(sardonyx, owner) if owner else sardonyx
        found = getattr(where, member, None)
        assert found is None or inspect.ismodule(found), name  # sardonyx.version is a module


def test_all_names_can_be_imported() -> None:
    for name in sardonyx.__all__:
        assert getattr(sardonyx, name) is not None
    assert onnxruntime.__version__ == sardonyx.ORT_VERSION
