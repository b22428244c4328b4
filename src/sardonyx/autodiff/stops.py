"""Inputs and outputs of ops whose derivative is zero or undefined by definition.

Gradients end there silently. Any other op without a gradient rule is an error (`backward.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BOOL, FLOATS, INTS
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.op import Decomposition, Gradient, Op
from sardonyx.ops.gradient_rules import rule_of

Slots = frozenset[int]
SIZES: Final = "the result depends on sizes and counts, not on elements"
PIECEWISE: Final = "piecewise constant: the derivative is 0 wherever it exists"
INDICES: Final = "the result is the indices of elements, not their values"
RANDOM: Final = "random numbers have no derivative"
TYPE_ONLY: Final = "only the element type of this input is read"
SAMPLES: Final = "sampling positions have no gradient by convention"
OBSERVED: Final = "scale and zero point of an observed range are constants by convention"
DROP_RATIO: Final = "the ratio only decides which elements are dropped at random"


@frozen
class Stop:
    """Inputs or outputs of an op through which no gradient flows; None means all of them."""

    why: str
    inputs: Slots | None = None
    outputs: Slots | None = None
    applies: Callable[[Node], bool] = lambda _: True


def _rounds(node: Node) -> bool:
    """Whether a cast converts floats to integers or booleans."""
    before = node.inputs[0].fact if node.inputs[0] is not None else None
    after = node.outputs[0].fact
    if not isinstance(before, Fact) or not isinstance(after, Fact):
        return False
    return before.dtype in FLOATS and (after.dtype in INTS or after.dtype is BOOL)


def _samples_nearest(node: Node) -> bool:
    """Whether an op samples the nearest element, so that its positions are rounded."""
    return bool(node.attrs["mode"] == b"nearest")


def _is_one_class(node: Node) -> bool:
    """Whether this is a one-class SVM, which returns the sign of the decision function."""
    return bool(node.attrs["one_class"])


def _slots(*numbers: int) -> Slots:
    return frozenset(numbers)


# Ops through which no gradient flows.
_WHOLE: Final = {
    SIZES: "BlackmanWindow ConstantOfShape EyeLike HammingWindow HannWindow OptionalHasElement "
    "RandomNormalLike RandomUniformLike SequenceLength Shape Size",
    PIECEWISE: "And Ceil Equal Floor Greater GreaterOrEqual Hardmax IsInf IsNaN Less LessOrEqual "
    "MelWeightMatrix Not Or Round Sign Xor ai.onnx.ml.Binarizer ai.onnx.ml.OneHotEncoder",
    INDICES: "ArgMax ArgMin NonMaxSuppression NonZero",
    RANDOM: "Bernoulli Multinomial sardonyx.train.Bernoulli sardonyx.train.DropoutMask "
    "sardonyx.train.Multinomial sardonyx.train.RandomNormalLike sardonyx.train.RandomUniformLike",
}
_LABELS: Final = Stop(INDICES, outputs=_slots(0))
# Ops by name, with a domain if it is not that of ONNX; an op may have several entries for different
# inputs and outputs.
STOPS: Final[dict[str, tuple[Stop, ...]]] = {
    **{name: (Stop(why),) for why, names in _WHOLE.items() for name in names.split()},
    "Cast": (Stop(PIECEWISE, applies=_rounds),),
    "CastLike": (Stop(TYPE_ONLY, inputs=_slots(1)), Stop(PIECEWISE, applies=_rounds)),
    "Dropout": (Stop(DROP_RATIO, inputs=_slots(1, 2)), Stop(RANDOM, outputs=_slots(1))),
    "DynamicQuantizeLinear": (Stop(OBSERVED, outputs=_slots(1, 2)),),
    # Positions are rounded to the nearest element.
    "GridSample": (Stop(PIECEWISE, inputs=_slots(1), applies=_samples_nearest),),
    "MaxPool": (Stop(INDICES, outputs=_slots(1)),),
    "MaxRoiPool": (Stop(PIECEWISE, inputs=_slots(1)),),  # corners are rounded
    "OneHot": (Stop(INDICES, inputs=_slots(0, 1)),),
    "Range": (Stop(SIZES, inputs=_slots(1)),),
    "Resize": (Stop(SAMPLES, inputs=_slots(1, 2, 3)),),
    "TopK": (Stop(INDICES, outputs=_slots(1)),),
    "Unique": (Stop(INDICES, outputs=_slots(1, 2, 3)),),
    "ai.onnx.ml.LinearClassifier": (_LABELS,),
    "ai.onnx.ml.SVMRegressor": (Stop(PIECEWISE, applies=_is_one_class),),
}

_SILENT: Final = "a derivative of 0 would silently stop training"
_TREES: Final = f"trees compare features with thresholds; {_SILENT}"
_QUANTIZED: Final = f"quantization rounds; {_SILENT}"
_NAMES: Final = "strings, maps and categories have no derivative"
_UPDATES: Final = "an optimizer's step is not part of a loss"
# Ops of floats without a gradient, by name as above, and why: a gradient through them is an error.
NO_GRADIENT: Final = {
    "BitCast": "reinterpreting bits is not differentiable",
    "QLinearConv": _QUANTIZED,
    "QLinearMatMul": _QUANTIZED,
    "ai.onnx.ml.CastMap": _NAMES,
    "ai.onnx.ml.DictVectorizer": _NAMES,
    "ai.onnx.ml.LabelEncoder": _NAMES,
    "ai.onnx.ml.SVMClassifier": "its scores are votes and iteratively coupled probabilities",
    "ai.onnx.ml.TreeEnsemble": _TREES,
    "ai.onnx.ml.TreeEnsembleClassifier": _TREES,
    "ai.onnx.ml.TreeEnsembleRegressor": _TREES,
    "ai.onnx.ml.ZipMap": _NAMES,
    "ai.onnx.preview.training.Adagrad": _UPDATES,
    "ai.onnx.preview.training.Adam": _UPDATES,
    "ai.onnx.preview.training.Momentum": _UPDATES,
}


def rule_for(op: Op) -> Gradient | Decomposition | None:
    """Return what differentiates an op; None where a gradient through it is an error."""
    return None if str(op) in NO_GRADIENT else rule_of(op)


def _stops(node: Node) -> list[Stop]:
    """Return the stops of a node's op that apply to this node."""
    return [stop for stop in STOPS.get(str(node.op), ()) if stop.applies(node)]


def stops_at_input(node: Node, slot: int) -> bool:
    """Whether a node's outputs, by definition, have no gradient with respect to an input."""
    whole = (s for s in _stops(node) if s.outputs is None)
    return any(s.inputs is None or slot in s.inputs for s in whole)


def stops_at_output(node: Node, index: int) -> bool:
    """Whether an output, by definition, has no gradient with respect to any input."""
    whole = (s for s in _stops(node) if s.inputs is None)
    return any(s.outputs is None or index in s.outputs for s in whole)
