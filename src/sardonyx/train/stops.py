"""Where gradients end by definition, and why. All that is not listed has a rule, or is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sardonyx.base.records import frozen
from sardonyx.graph.dtype import BOOL, FLOATS, INTS
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node

Slots = frozenset[int]
SIZES: Final = "its result is made of sizes and counts, not of elements"
STEPS: Final = "it changes in steps: its derivative is 0 wherever it has one"
INDICES: Final = "its result says which elements, not how large they are"
RANDOM: Final = "it draws random numbers, and draws have no derivative"
KIND: Final = "only the element type of this input counts"
SAMPLES: Final = "sampling positions are fixed: by convention they have no gradient"
DRAWN: Final = "the ratio decides which elements are dropped, by random numbers"


@frozen
class Stop:
    """Inputs or outputs of an op that gradients do not pass; None stands for all of them."""

    why: str
    inputs: Slots | None = None
    outputs: Slots | None = None
    applies: Callable[[Node], bool] = lambda _: True

    def at_input(self, node: Node, slot: int) -> bool:
        """Whether no gradient reaches an input of a node, whichever output it comes from."""
        is_here = self.inputs is None or slot in self.inputs
        return is_here and self.outputs is None and self.applies(node)

    def at_output(self, node: Node, index: int) -> bool:
        """Whether no gradient comes from an output of a node, whichever input it is for."""
        is_here = self.outputs is None or index in self.outputs
        return is_here and self.inputs is None and self.applies(node)


def _rounds(node: Node) -> bool:
    """Whether a cast makes integers or truth values of floats."""
    before = node.inputs[0].fact if node.inputs[0] is not None else None
    after = node.outputs[0].fact
    if not isinstance(before, Fact) or not isinstance(after, Fact):
        return False
    return before.dtype in FLOATS and (after.dtype in INTS or after.dtype is BOOL)


def _slots(*numbers: int) -> Slots:
    return frozenset(numbers)


_WHOLE: Final = {
    SIZES: "ConstantOfShape EyeLike OptionalHasElement RandomNormalLike RandomUniformLike "
    "SequenceLength Shape Size",
    STEPS: "And Ceil Equal Floor Greater GreaterOrEqual Hardmax IsInf IsNaN Less LessOrEqual Not "
    "Or Round Sign Xor",
    INDICES: "ArgMax ArgMin NonMaxSuppression NonZero",
    RANDOM: "Bernoulli Multinomial",
}
# Of standard ops, by name. Each op has one entry but those in `_PARTIAL`, which may have several.
STOPS: Final[dict[str, tuple[Stop, ...]]] = {
    **{name: (Stop(why),) for why, names in _WHOLE.items() for name in names.split()},
    "Cast": (Stop(STEPS, applies=_rounds),),
    "CastLike": (Stop(KIND, inputs=_slots(1)), Stop(STEPS, applies=_rounds)),
    "Dropout": (Stop(DRAWN, inputs=_slots(1, 2)), Stop(RANDOM, outputs=_slots(1))),
    "MaxPool": (Stop(INDICES, outputs=_slots(1)),),
    "OneHot": (Stop(INDICES, inputs=_slots(0, 1)),),
    "Range": (Stop(SIZES, inputs=_slots(1)),),
    "Resize": (Stop(SAMPLES, inputs=_slots(1, 2, 3)),),
    "TopK": (Stop(INDICES, outputs=_slots(1)),),
    "Unique": (Stop(INDICES, outputs=_slots(1, 2, 3)),),
}


def _stops(node: Node) -> tuple[Stop, ...]:
    return () if node.op.domain else STOPS.get(node.op.name, ())


def stops_at_input(node: Node, slot: int) -> bool:
    """Whether what a node makes has, by definition, no gradient by one of its inputs."""
    return any(stop.at_input(node, slot) for stop in _stops(node))


def stops_at_output(node: Node, index: int) -> bool:
    """Whether an output of a node has, by definition, no gradient by any of its inputs."""
    return any(stop.at_output(node, index) for stop in _stops(node))
