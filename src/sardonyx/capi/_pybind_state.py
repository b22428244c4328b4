"""Names that programs import from onnxruntime.capi._pybind_state: all of the native module's."""

from sardonyx.capi.onnxruntime_pybind11_state import *  # noqa: F403
