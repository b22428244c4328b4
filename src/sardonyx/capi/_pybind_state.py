"""onnxruntime.capi._pybind_state: all names of onnxruntime_pybind11_state."""

from sardonyx.capi.onnxruntime_pybind11_state import *  # noqa: F403
