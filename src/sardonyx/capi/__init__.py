"""The module layout of onnxruntime.capi, for programs that import from there."""

from sardonyx.capi import onnxruntime_pybind11_state

__all__ = ["onnxruntime_pybind11_state"]
