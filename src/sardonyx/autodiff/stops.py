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
from sardonyx.graph.op import GRADIENT, ONNX

Slots = frozenset[int]
SIZES: Final = "the result depends on sizes and counts, not on elements"
PIECEWISE: Final = "piecewise constant: the derivative is 0 wherever it exists"
INDICES: Final = "the result is the indices of elements, not their values"
RANDOM: Final = "random numbers have no derivative"
TYPE_ONLY: Final = "only the element type of this input is read"
SAMPLES: Final = "sampling positions have no gradient by convention"
OBSERVED: Final = "scale and zero point of a range that is observed are constants, by convention"
DROP_RATIO: Final = "the ratio only decides which elements are dropped at random"


@frozen
class Stop:
    """Inputs or outputs of an op that gradients do not pass; None means all of them."""

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


def _slots(*numbers: int) -> Slots:
    return frozenset(numbers)


# Ops through which no gradient passes at all.
_WHOLE: Final = {
    SIZES: "ConstantOfShape EyeLike OptionalHasElement RandomNormalLike RandomUniformLike "
    "SequenceLength Shape Size",
    PIECEWISE: "And Ceil Equal Floor Greater GreaterOrEqual Hardmax IsInf IsNaN Less LessOrEqual "
    "Not Or Round Sign Xor",
    INDICES: "ArgMax ArgMin NonMaxSuppression NonZero",
    RANDOM: "Bernoulli DropoutMask Multinomial",
}
# Ops of the standard and of training steps, by name; an op may have several entries for different
# inputs and outputs.
STOPS: Final[dict[str, tuple[Stop, ...]]] = {
    **{name: (Stop(why),) for why, names in _WHOLE.items() for name in names.split()},
    "Cast": (Stop(PIECEWISE, applies=_rounds),),
    "CastLike": (Stop(TYPE_ONLY, inputs=_slots(1)), Stop(PIECEWISE, applies=_rounds)),
    "Dropout": (Stop(DROP_RATIO, inputs=_slots(1, 2)), Stop(RANDOM, outputs=_slots(1))),
    "DynamicQuantizeLinear": (Stop(OBSERVED, outputs=_slots(1, 2)),),
    "MaxPool": (Stop(INDICES, outputs=_slots(1)),),
    "OneHot": (Stop(INDICES, inputs=_slots(0, 1)),),
    "Range": (Stop(SIZES, inputs=_slots(1)),),
    "Resize": (Stop(SAMPLES, inputs=_slots(1, 2, 3)),),
    "TopK": (Stop(INDICES, outputs=_slots(1)),),
    "Unique": (Stop(INDICES, outputs=_slots(1, 2, 3)),),
}


def _stops(node: Node) -> list[Stop]:
    """The stops of a node's op that apply to this node."""
    stops = STOPS.get(node.op.name, ()) if node.op.domain in (ONNX, GRADIENT) else ()
    return [stop for stop in stops if stop.applies(node)]


def stops_at_input(node: Node, slot: int) -> bool:
    """Whether the outputs of a node have, by definition, no gradient by one of its inputs."""
    whole = (s for s in _stops(node) if s.outputs is None)
    return any(s.inputs is None or slot in s.inputs for s in whole)


def stops_at_output(node: Node, index: int) -> bool:
    """Whether an output of a node has, by definition, no gradient by any of its inputs."""
    whole = (s for s in _stops(node) if s.inputs is None)
    return any(s.outputs is None or index in s.outputs for s in whole)
