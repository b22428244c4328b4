"""ONNX's backend interface: `prepare`, `run_model` and others as functions."""

from .backend import is_compatible, prepare, run, supports_device

__all__ = ["is_compatible", "prepare", "run", "supports_device"]
