"""Upgrades: a node of an older opset becomes nodes of the one form that later stages know.

One entry per change of meaning; a version that only widened types needs none. An entry brings any
version below its bound straight to the newest form, so a node is upgraded at most once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from sardonyx.base.records import frozen
from sardonyx.errors import InvalidGraph
from sardonyx.graph.graph import Value
from sardonyx.graph.op import Op
from sardonyx.ops import family_of
from sardonyx.ops.builder import Builder

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

    def given(self, least: int, most: int | None = None) -> tuple[Value | None, ...]:
        """The inputs, so many of them: exactly the `least`, or up to the `most`."""
        count, most = len(self.inputs), least if most is None else most
        if not least <= count <= most:
            wanted = least if least == most else f"{least} to {most}"
            raise InvalidGraph(
                f"{self.op_type} of opset {self.version} takes {wanted} inputs, not {count}"
            )
        return self.inputs

    def needed(self, position: int) -> Value | None:
        """An input that the node must have."""
        if position >= len(self.inputs):
            raise InvalidGraph(
                f"{self.op_type} of opset {self.version} needs {position + 1} inputs or more"
            )
        return self.inputs[position]

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
# The kinds of attributes that ops have no longer, by name.
_KINDS: Final = {
    name: kind
    for kind, names in {
        "bytes": "activation mode",
        "float": "alpha beta epsilon height_scale max min ratio scale value width_scale",
        "floats": "bias scales",
        "int": "axis broadcast is_test isinf_only isnan_only k keepdims normalized onesided "
        "output_sequence signal_ndim spatial",
        "ints": "axes border consumed_inputs directions ends paddings pads shape split starts",
        "strings": "classes_strings",
    }.items()
    for name in names.split()
}
# Those that are of another kind today, or in this op alone, and the version that changed it.
_CHANGED: Final = {
    ("Cast", "to"): (6, "bytes"),
    ("Crop", "scale"): (ANY, "ints"),
    ("GlobalLpPool", "p"): (2, "float"),
    ("LpPool", "p"): (2, "float"),
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


def kind_before(op: Op | None, op_type: str, version: int, attr: str) -> str | None:
    """The kind of an attribute of a node that is to be upgraded; None if nobody knows it."""
    changed, kind = _CHANGED.get((op_type, attr), (0, None))
    if version < changed:
        return kind
    today = None if op is None else op.attr_kinds.get(attr)
    return today or _KINDS.get(attr)


def _table(family: str) -> dict[tuple[str, str], list[tuple[int, Rule]]]:
    if family not in FAMILIES:
        return {}
    module = importlib.import_module(f"sardonyx.load.upgrade.{family}")
    table: dict[tuple[str, str], list[tuple[int, Rule]]] = {}
    for key, below, rule in sorted(module.UPGRADES, key=lambda e: e[1]):
        table.setdefault(key, []).append((below, rule))
    return table
