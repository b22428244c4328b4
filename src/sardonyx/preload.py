"""What most models use, imported with the package: their sessions start without importing it.

All else comes with the first model that has an op of its family.
"""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = (
    "ops.activation", "ops.cast", "ops.channels", "ops.conv", "ops.elementwise", "ops.estimators",
    "ops.features", "ops.gather", "ops.internal", "ops.linear", "ops.microsoft.fused", "ops.move",
    "ops.pool", "ops.product", "ops.reduce", "ops.scores", "ops.shape", "ops.sizes", "ops.trees",
    "load.upgrade.elementwise", "load.upgrade.move", "load.upgrade.reduce", "load.upgrade.shape",
    "passes.algebra", "passes.chains", "passes.channels", "passes.driver", "passes.halves",
    "passes.labels", "passes.linear", "passes.lowering", "passes.parts", "passes.products",
    "passes.transpose",
    "providers.cpu.categories", "providers.cpu.chain", "providers.cpu.conv", "providers.cpu.gather",
    "providers.cpu.gemm", "providers.cpu.linear_ml", "providers.cpu.move", "providers.cpu.reduce",
    "providers.cpu.scores", "providers.cpu.shape", "providers.cpu.trees", "providers.cpu.window",
)  # fmt: skip

for _name in _MODULES:
    importlib.import_module(f"sardonyx.{_name}")
