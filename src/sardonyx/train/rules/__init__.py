"""The gradients of ops, a module per family as in ops/; read when a gradient passes through one."""

from __future__ import annotations

import importlib
from typing import Final

from sardonyx.graph.op import Gradient, Op
from sardonyx.ops import family_of

# Families whose ops have gradients: each is a module here, which hands the rules to the ops.
FAMILIES: Final = frozenset((
    "activation", "attention", "cast", "conv", "elementwise", "gather", "linear", "loss",
    "microsoft", "move", "normalize", "pool", "random", "recurrent", "reduce", "resize", "select",
    "shape", "softmax",
))  # fmt: skip


def rule_of(op: Op) -> Gradient | None:
    """The gradient of an op, or None if it has none."""
    family = (family_of(*op.key) or "").partition(".")[0]
    if op.gradient_rule is None and family in FAMILIES:
        importlib.import_module(f"sardonyx.train.rules.{family}")
    return op.gradient_rule
