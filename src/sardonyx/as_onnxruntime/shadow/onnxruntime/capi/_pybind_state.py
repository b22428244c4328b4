"""`onnxruntime.capi._pybind_state` is the module of that name in Sardonyx."""

import sys

from sardonyx.capi import _pybind_state

sys.modules[__name__] = _pybind_state
