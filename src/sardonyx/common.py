"""What most models use, imported with the package: their sessions start without importing it.

All else comes with the first model that has an op of its family.
"""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = (
    "ops.activation", "ops.cast", "ops.channels", "ops.conv", "ops.elementwise", "ops.gather",
    "ops.internal", "ops.linear", "ops.move", "ops.pool", "ops.product", "ops.reduce", "ops.shape",
    "ops.sizes",
    "load.upgrade.elementwise", "load.upgrade.move", "load.upgrade.reduce", "load.upgrade.shape",
    "passes.algebra", "passes.channels", "passes.halves", "passes.linear", "passes.products",
    "passes.transpose",
    "providers.cpu.chain", "providers.cpu.conv", "providers.cpu.gemm", "providers.cpu.move",
    "providers.cpu.reduce", "providers.cpu.shape", "providers.cpu.window",
)  # fmt: skip

for _name in _MODULES:
    importlib.import_module(f"sardonyx.{_name}")
