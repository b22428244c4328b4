"""Upgrades: a node of an older opset becomes nodes of the one form that later stages know.

One entry per change of meaning; a version that only widened types needs none. An entry brings any
version below its bound straight to the newest form, so a node is upgraded at most once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from sardonyx.frozen import frozen
from sardonyx.graph.build import Builder
from sardonyx.graph.graph import Value
from sardonyx.ops import family_of

Rule = Callable[[Builder, "OldNode"], Any]


@frozen
class OldNode:
    """A node as its model wrote it: attributes as they stood there, defaults not filled in."""

    op_type: str
    version: int
    inputs: tuple[Value | None, ...]
    attrs: dict[str, Any]
    n_outputs: int

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default that its version had."""
        return self.attrs.get(name, default)

    def input(self, position: int) -> Value | None:
        """An input, or None if it was left out."""
        return self.inputs[position] if position < len(self.inputs) else None


Entry = tuple[tuple[str, str], int, Rule]
ANY: Final = 1 << 62  # below this is every version

# Families with a file of upgrades here.
FAMILIES: Final = frozenset((
    "activation", "attention", "cast", "control", "elementwise", "experimental", "features",
    "gather", "linear", "microsoft", "microsoft_fused", "move", "normalize", "pool", "random",
    "recurrent", "reduce", "resize", "roi", "select", "shape", "signal", "softmax",
))  # fmt: skip

_EXPERIMENTS: Final = "Affine Crop DynamicSlice ImageScaler ParametricSoftplus Scale ScaledTanh"
_STANDARD: Final = (
    "BiasAdd BiasDropout BiasSoftmax BiasSplitGelu ComplexMul ComplexMulConj ExpandDims GatedAdd "
    "GatedRMSNorm GatherND GemmFastGelu GemmaRotaryEmbedding GridSample IsAllFinite Irfft "
    "LinearAttentionGate Pad Range Rfft SampleOp ScaledSiLU TorchEmbedding TransposeMatMul Trilu "
    "Unique"
)
_FUSED: Final = (
    "BitmaskBiasDropout BitmaskDropout MatMulInteger16 MatMulNBitsMlp MatMulNBitsQkv MulInteger "
    "ReduceSumInteger"
)
# Ops that exist no longer, or elsewhere, and the family that says what they became.
_REMOVED: Final = {
    ("", "Upsample"): "resize",
    ("", "Scatter"): "gather",
    ("com.microsoft", "SimplifiedLayerNormalization"): "normalize",
    **dict.fromkeys((("", name) for name in _EXPERIMENTS.split()), "experimental"),
    **dict.fromkeys((("com.microsoft", name) for name in _STANDARD.split()), "microsoft"),
    **dict.fromkeys((("com.microsoft", name) for name in _FUSED.split()), "microsoft_fused"),
}
_LOADED: Final[dict[str, dict[tuple[str, str], list[tuple[int, Rule]]]]] = {}


def upgrade(names: str, below: int, domain: str = "") -> Callable[[Rule], tuple[Entry, ...]]:
    """Decorator: table entries of the rule for these ops (words) in opsets below a version."""

    def wrap(rule: Rule) -> tuple[Entry, ...]:
        return tuple(((domain, name), below, rule) for name in names.split())

    return wrap


def replaced(domain: str) -> list[str]:
    """The ops of a domain that become others when they are loaded, whatever their version."""
    return sorted(name for d, name in _REMOVED if d == domain)


def find(domain: str, name: str, version: int) -> Rule | None:
    """The rule for a node of this version, or None if its form is today's."""
    family = _REMOVED.get((domain, name)) or family_of(domain, name)
    if family is None:
        return None
    if family not in _LOADED:
        _LOADED[family] = _table(family)
    rules = _LOADED[family].get((domain, name), ())
    return next((rule for below, rule in rules if version < below), None)


def _table(family: str) -> dict[tuple[str, str], list[tuple[int, Rule]]]:
    if family not in FAMILIES:
        return {}
    module = importlib.import_module(f"sardonyx.load.upgrade.{family}")
    table: dict[tuple[str, str], list[tuple[int, Rule]]] = {}
    for key, below, rule in sorted(module.UPGRADES, key=lambda e: e[1]):
        table.setdefault(key, []).append((below, rule))
    return table
