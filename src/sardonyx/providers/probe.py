"""Probes for torch and CUDA by files, since importing torch takes a second."""

from __future__ import annotations

import os
from functools import cache
from importlib.machinery import ModuleSpec


def has_torch() -> bool:
    """Whether torch is installed."""
    return _torch() is not None


def cuda_may_work() -> bool:
    """Whether torch is a CUDA build and the machine has an NVIDIA driver."""
    return not why_no_cuda()


@cache
def why_no_cuda() -> str:
    """Return what CUDA lacks here; empty if nothing is known to be missing."""
    spec = _torch()
    if spec is None or spec.origin is None:
        return "torch is not installed"
    if not _is_cuda_build(spec.origin):
        return "the installed torch is a build without CUDA"
    if not os.path.exists("/proc/driver/nvidia/version") and not os.path.exists("/dev/nvidia0"):
        return "there is no NVIDIA GPU, or no driver for it"
    return ""


def _torch() -> ModuleSpec | None:
    import importlib.util  # slow to import itself

    return importlib.util.find_spec("torch")


def _is_cuda_build(origin: str) -> bool:
    try:
        with open(os.path.join(os.path.dirname(origin), "version.py"), encoding="utf-8") as f:
            lines = f.read().splitlines()
    except OSError:
        return False
    return any(line.startswith("cuda") and "None" not in line.partition("=")[2] for line in lines)
