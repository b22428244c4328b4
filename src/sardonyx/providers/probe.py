"""What hardware there may be, without the import of torch, which takes a second."""

from __future__ import annotations

import importlib.util
import os
from functools import cache


@cache
def cuda_may_work() -> bool:
    """Whether torch is a CUDA build and the machine has an NVIDIA driver."""
    if not os.path.exists("/proc/driver/nvidia/version") and not os.path.exists("/dev/nvidia0"):
        return False
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    try:
        with open(os.path.join(os.path.dirname(found.origin), "version.py"), encoding="utf-8") as f:
            lines = f.read().splitlines()
    except OSError:
        return False
    return any(line.startswith("cuda") and "None" not in line.partition("=")[2] for line in lines)
