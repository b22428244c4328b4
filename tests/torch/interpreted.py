"""Triton's interpreter, which runs kernels on the CPU. To be imported before any kernel is."""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter

_patch_tensor = interpreter._patch_lang_tensor


def _patch(tensor: Any, scope: Any) -> None:
    """As it is, but for bounds of loops: numpy 2.4 makes no number of an array of one."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


interpreter._patch_lang_tensor = _patch
