"""Finds the lowest opset and IR version that a saved model needs.

onnxruntime 1.31.1 loads models up to opset 26 and IR version 13; models that need newer ones are
saved as well.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.graph.graph import Node
from sardonyx.graph.op import ML, ONNX
from sardonyx.load.upgrade import find

OLDEST: Final = {ONNX: 13, ML: 1}  # opsets of saved models: older opsets have no advantage

# The opsets that introduced element types, if after the oldest one.
_TYPES: Final = {
    "f8e4m3fn": 19, "f8e4m3fnuz": 19, "f8e5m2": 19, "f8e5m2fnuz": 19, "u4": 21, "i4": 21,
    "f4e2m1": 23, "f8e8m0": 24, "u2": 25, "i2": 25, "f6e2m3": 28, "f6e3m2": 28,
}  # fmt: skip
_F8: Final = "f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz"
_LATE: Final = " ".join(_TYPES)

# Version, features of a node that need it ("" for the op itself), ops. A feature is an element type
# of any input or output, a kind of value, an attribute that differs from its default (`mode`) or
# has a value (`mode=wrap`), or an input, counted from 0, that is present (`input3`), has a type
# (`input1=bf16`) or another type than the first (`input1!=input0`). + joins features that are
# needed together.
_NEEDS_BY_OP: Final = (
    (14, "", "HardSwish Trilu"),
    (14, "i8 i16 u8 u16", "Add Sub Mul Div"),
    (14, "i8 i16 i32 i64", "Relu"),
    (14, "f16 bf16", "CumSum"),
    (14, "training_mode bf16", "BatchNormalization"),
    (14, "allowzero", "Reshape"),
    (14, "layout", "RNN GRU LSTM"),
    (14, "sequence", "Identity"),
    (14, "input3!=input0 input4!=input0", "BatchNormalization"),
    (15, "", "Bernoulli CastLike Optional"),
    (15, "input1!=input0 input2!=input0", "BatchNormalization"),
    (15, "input1=bf16", "Pow"),
    (15, "start end", "Shape"),
    (16, "", "RoiAlign"),
    (16, "bf16", "GreaterOrEqual LessOrEqual LeakyRelu PRelu Where If Loop Scan"),
    (16, "optional", "Identity If Loop"),
    (16, "reduction", "ScatterElements ScatterND"),
    (17, "", "BlackmanWindow HammingWindow HannWindow LayerNormalization MelWeightMatrix STFT"),
    (17, "", "SequenceMap"),
    (18, "", "BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad Col2Im Mish ReduceL1"),
    (18, "", "ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd"),
    (18, "", "ReduceSumSquare"),
    (18, "ceil_mode dilations", "LpPool"),
    (18, "input3", "Pad"),
    (18, "antialias axes keep_aspect_ratio_policy", "Resize"),
    (18, "reduction=max reduction=min", "ScatterElements ScatterND"),
    (18, "num_outputs", "Split"),
    # For inputs that are not optionals, which the table does not distinguish.
    (18, "", "OptionalGetElement OptionalHasElement"),
    (19, "", "DeformConv"),
    (19, "dilations", "AveragePool"),
    (19, "saturate", "Cast CastLike QuantizeLinear"),
    (19, "f16 bf16", "DequantizeLinear QuantizeLinear"),
    (19, "input1=i32", "QuantizeLinear"),
    (19, "str", "Equal"),
    (19, "mode=wrap", "Pad"),
    (19, "coordinate_transformation_mode=half_pixel_symmetric", "Resize"),
    (20, "", "AffineGrid DFT Gelu GridSample ImageDecoder RegexFullMatch StringConcat StringSplit"),
    (20, f"bf16 {_F8}", "ConstantOfShape"),
    (20, f"f16 bf16 {_F8}", "IsInf"),
    (20, _F8, "IsNaN"),
    (20, "bool", "ReduceMax ReduceMin"),
    (21, "", "GroupNormalization"),
    (21, _F8, "Flatten Pad Squeeze Transpose Unsqueeze"),
    (21, f"f16 bf16 {_F8}", "QLinearMatMul"),
    (21, "block_size", "DequantizeLinear QuantizeLinear"),
    (21, "i16 u16", "DequantizeLinear QuantizeLinear"),
    (21, "output_dtype", "QuantizeLinear"),
    (22, "bf16", "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan Round Elu HardSigmoid"),
    (22, "bf16", "HardSwish Mish Selu Softplus Softsign ThresholdedRelu AveragePool"),
    (22, "bf16", "GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxRoiPool"),
    (22, "bf16", "MaxUnpool RoiAlign Conv ConvTranspose DeformConv GRU LSTM RNN"),
    (22, "bf16", "InstanceNormalization LpNormalization Multinomial RandomNormal RandomNormalLike"),
    (22, "bf16", "RandomUniform RandomUniformLike Det EyeLike GridSample"),
    (22, "bf16", "NegativeLogLikelihoodLoss"),
    (22, _F8, "Dropout"),
    (22, "input1=bf16", "Dropout"),
    (22, "input0=bf16", "Bernoulli"),
    (23, "", "Attention RMSNormalization RotaryEmbedding"),
    (23, "output_dtype", "DequantizeLinear"),
    (23, "precision input1!=input0", "QuantizeLinear"),
    (24, "", "Swish TensorScatter"),
    (24, "input6", "Attention"),
    (24, "round_mode", "Cast CastLike"),
    (24, "bf16", "SplitToSequence TopK"),
    (25, "left_window_size right_window_size", "Attention"),
    (26, "", "BitCast CumProd"),
    (27, "", "CausalConvWithState LinearAttention"),
    (27, "f16 bf16 stash_type", "Range"),
    (28, "", "SwiGLU"),
    (28, "i8 i16 i32 i64", "BitShift"),
    (28, "f16 f64 bf16", "Celu"),
    (28, "bf16", "Compress Einsum OneHot ReverseSequence Unique"),
    (28, "f16+fmod=0 bf16+fmod=0 f32+fmod=0 f64+fmod=0", "Mod"),
    (28, "mode", "SpaceToDepth"),
    (28, f"bf16 {_LATE}", "Optional OptionalGetElement OptionalHasElement"),
)  # fmt: skip
_TREES: Final = "nodes_values_as_tensor nodes_hitrates_as_tensor base_values_as_tensor"
_ML_NEEDS_BY_OP: Final = (
    (2, "", "LabelEncoder"),
    (3, f"{_TREES} class_weights_as_tensor", "TreeEnsembleClassifier"),
    (3, f"{_TREES} target_weights_as_tensor", "TreeEnsembleRegressor"),
    (4, "keys_tensor values_tensor default_tensor f64 i16 i32", "LabelEncoder"),
    (5, "", "TreeEnsemble"),
)  # fmt: skip

Table = dict[tuple[str, str], dict[str, int]]


def _table() -> Table:
    table: Table = {}
    for domain, rows in ((ONNX, _NEEDS_BY_OP), (ML, _ML_NEEDS_BY_OP)):
        for version, features, ops in rows:
            for op in ops.split():
                needs = table.setdefault((domain, op), {})
                needs.update(dict.fromkeys(features.split() or [""], version))
    return table


_NEEDS: Final = _table()
# Ops whose upgrade rules change nothing beyond the features in the table.
_LISTED: Final = {(ONNX, "BatchNormalization"), (ONNX, "Split")}

# Pairs of opset and the IR version that came with it, newest first.
_IR: Final = {
    ONNX: ((28, 14), (25, 13), (24, 12), (23, 11), (21, 10), (19, 9), (15, 8)),
    ML: ((5, 10), (4, 9), (3, 8)),
}
_OLDEST_IR: Final = 7
_METADATA_IR: Final = 10  # introduced metadata of nodes


class Versions:
    """Collects the versions that the nodes and values of a model need."""

    def __init__(self, imported: Mapping[str, int], opset: int = 0) -> None:
        """`opset` of ai.onnx is imported even if an older one suffices."""
        self._imported = imported
        self.asked: Final = opset
        self.opsets: dict[str, int] = {ONNX: max(OLDEST[ONNX], opset)}
        self._types: set[str] = set()
        self._has_annotations = False

    def node(self, node: Node, written: Mapping[str, Any], is_older: bool = False) -> None:
        """Raise the opset to what a node needs with the attributes that are written.

        A node in its older form needs none: `older_forms.older_form`.
        """
        op = node.op
        self._has_annotations |= node.annotations != (0, False)
        if op.domain not in OLDEST:
            self.opsets.setdefault(op.domain, self._imported.get(op.domain, 1))
            self.facts(v.fact for v in (*node.inputs, *node.outputs) if v is not None)
            return
        if not is_older:
            self._raise(op.domain, opset_of(node, written))

    def op(self, name: str, fact: AnyFact | None) -> None:
        """Raise the opset to what a standard op over one value needs."""
        self._raise(ONNX, lowest((ONNX, name), set(_kinds(fact))))

    def facts(self, facts: Iterable[AnyFact | None]) -> None:
        """Raise the opset to what the types of declared values need."""
        for fact in facts:
            self._types.update(_kinds(fact))

    @property
    def ir(self) -> int:
        """The lowest IR version with these opsets and types, and metadata if nodes have any."""
        standard = max([self.opsets[ONNX], *(_TYPES.get(t, 0) for t in self._types)])
        if "optional" in self._types:
            standard = max(standard, 15)
        versions = ((ONNX, standard), (ML, self.opsets.get(ML, 0)))
        found = [ir for domain, v in versions for opset, ir in _IR[domain] if v >= opset]
        return max([_OLDEST_IR, *found, *([_METADATA_IR] if self._has_annotations else [])])

    def _raise(self, domain: str, version: int) -> None:
        self.opsets[domain] = max(version, self.opsets.get(domain, 0))


def opset_of(node: Node, written: Mapping[str, Any]) -> int:
    """Return the lowest opset of its domain that expresses a standard node."""
    op = node.op
    return max(lowest(op.key, _features(node, written)), _unchanged_since(*op.key, op.since))


def is_recent(key: tuple[str, str], attribute: str) -> bool:
    """Whether an attribute is newer than its op in the oldest opset of saved models."""
    return attribute in _NEEDS.get(key, {})


def lowest(key: tuple[str, str], features: set[str]) -> int:
    """Return the lowest opset that has an op with these features."""
    found = [OLDEST[key[0]]]
    for needed, version in _NEEDS.get(key, {}).items():
        if not needed or features.issuperset(needed.split("+")):
            found.append(version)
    if key[0] == ONNX:
        found += [_TYPES[f] for f in features if f in _TYPES]
    return max(found)


@functools.cache
def _unchanged_since(domain: str, name: str, newest: int) -> int:
    """Return the lowest version that loading does not upgrade."""
    if (domain, name) in _LISTED:
        return 1
    return next((v for v in range(newest, 1, -1) if find(domain, name, v - 1) is not None), 1)


def _features(node: Node, written: Mapping[str, Any]) -> set[str]:
    """Return the features of a node, as in the table above."""
    features = set(written)
    for key, attr in node.attrs.items():
        if isinstance(attr, (int, bytes)):
            shown = attr.decode(errors="replace") if isinstance(attr, bytes) else attr
            features.add(f"{key}={shown}")
    first = node.inputs[0].fact if node.inputs and node.inputs[0] is not None else None
    for position, value in enumerate(node.inputs):
        if value is not None:
            fact = value.fact
            features.add(f"input{position}")
            features.update(_kinds(fact))
            if isinstance(fact, Fact) and isinstance(first, Fact):
                features.add(f"input{position}={fact.dtype}")
                if fact.dtype is not first.dtype:
                    features.add(f"input{position}!=input0")
    for output in node.outputs:
        features.update(_kinds(output.fact))
    return features


def _kinds(fact: AnyFact | None) -> Iterator[str]:
    """Yield the element types and container kinds of a value."""
    match fact:
        case Fact() | SparseFact():
            yield fact.dtype.name
        case SequenceFact() | OptionalFact():
            yield "sequence" if isinstance(fact, SequenceFact) else "optional"
            yield from _kinds(fact.elem)
        case MapFact():
            yield fact.key.name
            yield from _kinds(fact.value)
