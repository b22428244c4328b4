"""RNN, GRU and LSTM on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sardonyx.graph.dtype import F32, U8
from sardonyx.graph.graph import Node, Value, optional_input
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.recurrent.standard import DIRECTIONS, activation_specs
from sardonyx.place.lowered import Call, Packed
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering

PANEL: Final = 32  # columns of a packed panel

# As kernels/recurrent/layer.h numbers them.
ACTIVATIONS: Final = (
    "relu",
    "tanh",
    "sigmoid",
    "affine",
    "leakyrelu",
    "thresholdedrelu",
    "scaledtanh",
    "hardsigmoid",
    "elu",
    "softsign",
    "softplus",
)
STANDARD: Final = ("sigmoid", "tanh", "tanh")
KINDS: Final = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}  # gates, functions
LINKS: Final = {"GRU": "linear_before_reset", "LSTM": "input_forget"}


def _packed(weights: Value, gates: int) -> Value | Packed:
    """Constant weights with each gate in panels of its own; others are packed in every run."""
    shape = weights.tensor.static
    if not weights.is_const or shape is None:
        return weights
    directions, rows, k = shape
    panels = -(-(rows // gates) // PANEL)
    size_bytes = directions * gates * panels * PANEL * k * 4
    return Packed(weights, "recurrent_pack", size_bytes, (gates,))


def _functions(
    attrs: Mapping[str, Any], count: int, directions: int
) -> tuple[bool, tuple[int, ...], tuple[float, ...]]:
    """Whether they are the usual ones, their numbers, and alpha, beta and clip of each."""
    found = activation_specs(attrs, count, directions)
    usual = STANDARD[:count] if count > 1 else ("tanh",)
    is_standard = all(name == usual[i % count] and not f[2] for i, (name, *f) in enumerate(found))
    numbers = tuple(ACTIVATIONS.index(name) for name, *_ in found)
    return is_standard, numbers, tuple(x for _, *f in found for x in f)


def recurrent(node: Node) -> Call | No:
    """W and R are packed when the session starts, if they are constants."""
    x, w, r, *more = node.inputs
    assert x is not None
    assert w is not None
    assert r is not None
    if x.tensor.dtype is not F32:
        return No(f"no kernel for {x.tensor.dtype}")
    gates, count = KINDS[node.op.name]
    attrs = node.attrs
    directions = len(DIRECTIONS[attrs["direction"]])
    is_standard, numbers, floats = _functions(attrs, count, directions)
    packed = _packed(w, gates), _packed(r, gates)
    link = LINKS.get(node.op.name)
    return Call(
        node.op.name.lower(),
        (x, *packed, *more),
        (
            tuple(DIRECTIONS).index(attrs["direction"]),
            attrs["layout"],
            r.tensor.dims[2],
            attrs[link] if link else 0,
            *(isinstance(p, Packed) for p in packed),
            is_standard,
            *numbers,
        ),
        floats,
        shares=((0, 0),),  # all of x is multiplied before the first step gives anything
    )


def quantized(node: Node) -> Call | No:
    """QLSTM."""
    from sardonyx.providers.cpu.quantize import packed_bytes  # most layers are of floats

    gates, r, *more = (optional_input(node, i) for i in range(8))
    assert r is not None
    shape, attrs = r.tensor.static, node.attrs
    if not r.is_const or shape is None:
        return No("the recurrent weights are not constant")
    directions, hidden, columns = shape
    is_standard, numbers, floats = _functions(attrs, KINDS["LSTM"][1], directions)
    strides = (hidden * columns, 0, 0, columns, 1)
    size = directions * packed_bytes(hidden, columns)
    packed = Packed(r, "qgemm_pack", size, (directions, 1, 1, hidden, columns, *strides))
    direction = tuple(DIRECTIONS).index(attrs["direction"])
    ints = (direction, hidden, attrs["input_forget"], is_standard, int(r.tensor.dtype is U8))
    return Call("quantized_lstm", (gates, packed, *more), (*ints, *numbers), floats)


LOWERINGS: Final[dict[tuple[str, str], Lowering]] = {
    **{("", name): recurrent for name in KINDS},
    (INTERNAL, "QLSTM"): quantized,
}
