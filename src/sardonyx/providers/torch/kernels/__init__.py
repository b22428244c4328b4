"""Triton kernels where torch has no fast function. Importing this does not import Triton."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch


@functools.cache
def is_interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@functools.cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable(device: torch.device) -> bool:
    """Return whether the kernels run on a device: NVIDIA, compute capability 8.0 or later."""
    if not _has_triton():
        return False
    if is_interpreted():
        return True
    # ROCm has no inline PTX, and no dependent launch.
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return _capability(device.index or 0) >= (8, 0)


def has_dependent_launch(device: torch.device) -> bool:
    """Return whether a device has programmatic dependent launch (compute capability 9.0)."""
    return device.type == "cuda" and _capability(device.index or 0) >= (9, 0)


@functools.cache
def n_processors(device: torch.device) -> int:
    """Return the number of streaming multiprocessors; 2 for the interpreter."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count
