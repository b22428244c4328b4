"""`onnxruntime.capi.onnxruntime_pybind11_state` is the module of that name in Sardonyx."""

import sys

from sardonyx.capi import onnxruntime_pybind11_state

sys.modules[__name__] = onnxruntime_pybind11_state
