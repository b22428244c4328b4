"""Import the op families, passes and kernels that most models use together with the package.

Every other family is imported by the first model that has an op of it (`ops.lookup`). The modules
here are read from the import cache, later ones are not; so the first session of most models starts
sooner, by about as much as the import takes longer.
"""

from __future__ import annotations

import importlib
from typing import Final

MODULES: Final = (
    "ops.conv.channels_last", "ops.conv.contrib", "ops.conv.standard", "ops.elementwise.activation",
    "ops.elementwise.arithmetic", "ops.elementwise.cast", "ops.estimators.linear_svm",
    "ops.estimators.scores", "ops.features.categories", "ops.features.maps", "ops.features.scale",
    "ops.gather.standard", "ops.matmul.contrib", "ops.matmul.internal", "ops.matmul.standard",
    "ops.move.standard", "ops.pooling.channels_last", "ops.pooling.standard",
    "ops.reduce.standard", "ops.shape.standard", "ops.sizes", "ops.trees.ensemble",
    "load.upgrade.elementwise", "load.upgrade.move", "load.upgrade.pooling", "load.upgrade.reduce",
    "load.upgrade.shape",
    "passes.algebra", "passes.class_labels", "passes.conv_gemm", "passes.decompose",
    "passes.driver", "passes.elementwise_fusion", "passes.float16", "passes.layout.propagate",
    "passes.matmul", "passes.shape_arithmetic",
    "providers.cpu.conv", "providers.cpu.elementwise", "providers.cpu.estimators",
    "providers.cpu.features", "providers.cpu.gather", "providers.cpu.matmul", "providers.cpu.move",
    "providers.cpu.pooling", "providers.cpu.reduce", "providers.cpu.scores", "providers.cpu.shape",
    "providers.cpu.sliding_window", "providers.cpu.softmax", "providers.cpu.trees",
)  # fmt: skip

for _name in MODULES:
    importlib.import_module(f"sardonyx.{_name}")
