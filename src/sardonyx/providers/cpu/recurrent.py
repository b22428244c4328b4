"""RNN, GRU and LSTM on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.graph.dtype import F32, U8
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import GRADIENT, INTERNAL
from sardonyx.ops.recurrent.standard import DIRECTIONS, activation_specs
from sardonyx.place.lowered import Call, Packed
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import IN_PLACE, Lowerings, direct, for_types, padded_inputs

PANEL: Final = 32  # columns of a packed panel

# As kernels/recurrent/layer.h numbers them.
ACTIVATIONS: Final = (
    "relu", "tanh", "sigmoid", "affine", "leakyrelu", "thresholdedrelu", "scaledtanh",
    "hardsigmoid", "elu", "softsign", "softplus",
)  # fmt: skip
STANDARD: Final = ("sigmoid", "tanh", "tanh")
KINDS: Final = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}  # gates, activations
VARIANTS: Final = {"GRU": "linear_before_reset", "LSTM": "input_forget"}  # attributes


def _packed(weights: Value, gates: int) -> Value | Packed:
    """Return constant weights packed, each gate in its own panels; runs pack others."""
    shape = weights.tensor.static
    if not weights.is_const or shape is None:
        return weights
    directions, rows, k = shape
    panels = -(-(rows // gates) // PANEL)
    size_bytes = directions * gates * panels * PANEL * k * 4
    return Packed(weights, "recurrent_pack", size_bytes, (gates,))


def _activations(
    attrs: Mapping[str, Any], count: int, directions: int
) -> tuple[bool, tuple[int, ...], tuple[float, ...]]:
    """Return whether all are the defaults, their numbers, and alpha, beta and clip of each."""
    specs = activation_specs(attrs, count, directions)
    defaults = STANDARD[:count] if count > 1 else ("tanh",)
    is_standard = all(
        name == defaults[i % count] and not f[2] for i, (name, *f) in enumerate(specs)
    )
    numbers = tuple(ACTIVATIONS.index(name) for name, *_ in specs)
    return is_standard, numbers, tuple(x for _, *f in specs for x in f)


def recurrent(node: Node) -> Call:
    """Lower a layer of floats; constant W and R are packed once, when the session starts."""
    x, w, r = (input_of(node, i) for i in range(3))
    name = node.op.name.removesuffix("Training")
    gates, count = KINDS[name]
    attrs = node.attrs
    directions = len(DIRECTIONS[attrs["direction"]])
    is_standard, numbers, floats = _activations(attrs, count, directions)
    packed = _packed(w, gates), _packed(r, gates)
    variant = VARIANTS.get(name)
    return Call(
        name.lower(),
        (x, *packed, *node.inputs[3:]),
        (
            tuple(DIRECTIONS).index(attrs["direction"]),
            attrs["layout"],
            r.tensor.dims[2],
            attrs[variant] if variant else 0,
            *(isinstance(p, Packed) for p in packed),
            is_standard,
            *numbers,
        ),
        floats,
        shares=IN_PLACE,  # x is multiplied by W for all steps before the first step
    )


def quantized(node: Node) -> Call | No:
    """Lower QLSTM."""
    from sardonyx.providers.cpu.quantize import packed_bytes  # rare

    (gates, _, *more), r = padded_inputs(node, 8), input_of(node, 1)
    shape, attrs = r.tensor.static, node.attrs
    if not r.is_const or shape is None:
        return No("the recurrent weights are not constant")
    directions, hidden, columns = shape
    is_standard, numbers, floats = _activations(attrs, KINDS["LSTM"][1], directions)
    strides = (hidden * columns, 0, 0, columns, 1)
    size = directions * packed_bytes(hidden, columns)
    packed = Packed(r, "qgemm_pack", size, (directions, 1, 1, hidden, columns, *strides))
    direction = tuple(DIRECTIONS).index(attrs["direction"])
    ints = (direction, hidden, attrs["input_forget"], is_standard, int(r.tensor.dtype is U8))
    return Call("quantized_lstm", (gates, packed, *more), (*ints, *numbers), floats)


_REVERSE: Final = ("reverse",)
LOWERINGS: Final[Lowerings] = {
    **{("", name): for_types((F32,), recurrent) for name in KINDS},
    (INTERNAL, "QLSTM"): quantized,
    (GRADIENT, "LSTMTraining"): for_types((F32,), recurrent),
    # Gradients may overwrite the gates: each row is read before it is written.
    **{
        (GRADIENT, f"{name}RecurrenceGradient"): for_types(
            (F32,), direct(f"{name.lower()}_backward", ints, shares=shares)
        )
        for name, ints, shares in (
            ("RNN", ("reverse", "is_relu"), IN_PLACE),
            ("GRU", _REVERSE, IN_PLACE),
            ("LSTM", _REVERSE, ()),
        )
    },
}
