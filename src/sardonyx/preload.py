"""What most models use, imported with the package: their sessions start without importing it.

All else comes with the first model that has an op of its family.
"""

from __future__ import annotations

import importlib
from typing import Final

_MODULES: Final = (
    "ops.conv.channels_last", "ops.conv.fused", "ops.conv.standard", "ops.elementwise.activation",
    "ops.elementwise.arithmetic", "ops.elementwise.cast", "ops.estimators.linear_svm",
    "ops.estimators.scores", "ops.features.categories", "ops.features.maps", "ops.features.scale",
    "ops.gather.standard", "ops.matmul.fused", "ops.matmul.internal", "ops.matmul.standard",
    "ops.move.copy", "ops.move.standard", "ops.pooling.channels_last", "ops.pooling.standard",
    "ops.reduce.standard", "ops.shape.sizes", "ops.shape.standard", "ops.sizes",
    "ops.trees.ensemble",
    "load.upgrade.elementwise", "load.upgrade.move", "load.upgrade.reduce", "load.upgrade.shape",
    "passes.algebra", "passes.class_labels", "passes.conv_gemm", "passes.decompose",
    "passes.driver", "passes.elementwise_fusion", "passes.float16", "passes.layout.propagate",
    "passes.matmul", "passes.shape_arithmetic", "passes.transpose",
    "providers.cpu.conv", "providers.cpu.elementwise", "providers.cpu.estimators",
    "providers.cpu.features", "providers.cpu.gather", "providers.cpu.matmul", "providers.cpu.move",
    "providers.cpu.reduce", "providers.cpu.scores", "providers.cpu.shape",
    "providers.cpu.sliding_window", "providers.cpu.trees",
)  # fmt: skip

for _name in _MODULES:
    importlib.import_module(f"sardonyx.{_name}")
