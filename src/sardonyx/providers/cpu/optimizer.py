"""Training steps on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.base.records import replace
from sardonyx.graph.dtype import BF16, F16, F32
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.op import GRADIENT
from sardonyx.place.lowered import Call, Lowered
from sardonyx.place.provider import No
from sardonyx.providers.cpu.index import Lowering, Lowerings, padded_inputs

_TYPES: Final = (F32, F16, BF16)
_MINIMIZES: Final = 1.0  # the sign of the objective
_N_OPERANDS: Final = 6  # of an update: control, parameter, gradient and three states
_N_VECTOR_OPERANDS: Final = 4  # of Adafactor, for a vector
# Hyperparameters after the learning rate, as the kernels order them; numbers where there is none.
_HYPERPARAMETERS: Final[dict[str, tuple[str | float, ...]]] = {
    "adam_update": ("beta1", "beta2", "eps", "weight_decay", 0.0, "decoupled"),
    "sgd_update": ("momentum", 0.0, "weight_decay", "nesterov", 0.0, 0.0),
    "adafactor_update": ("beta2_decay", "eps1", "eps2", "weight_decay", "d", 0.0),
}


def _unsupported(node: Node, first: int) -> No | None:
    """Return why the kernels do not support the tensors from an input on; None if they do."""
    for value in node.inputs[first:]:
        if value is not None and value.tensor.dtype not in _TYPES:
            return No(f"no kernel for gradients of {value.tensor.dtype}")
    return None


def _updates(node: Node) -> tuple[tuple[int, int], ...]:
    """Return the inputs that are updated, with the outputs that they become."""
    inputs, n_outputs = node.inputs, len(node.outputs)
    return tuple(
        (source, output)
        for output, source in node.op.updates.items()
        if output < n_outputs and source < len(inputs) and inputs[source] is not None
    )


def _in_place(kernel: str, n_inputs: int) -> Lowering:
    """Lower a node to a kernel that writes outputs over the inputs that its op updates."""

    def call(node: Node) -> Call | No:
        refusal = _unsupported(node, 1)
        if refusal is not None:
            return refusal
        names = _HYPERPARAMETERS.get(kernel, ())
        floats = tuple(float(node.attrs[n]) if isinstance(n, str) else n for n in names)
        if floats:
            floats = (0.0, *floats, _MINIMIZES)
        inputs, updates = padded_inputs(node, n_inputs), _updates(node)
        return Call(kernel, inputs, (), floats, updates=updates)

    return call


def adafactor(node: Node) -> Lowered | No:
    """Lower an update of a matrix, whose moments come first, or of a vector, whose one is last."""
    call = _in_place("adafactor_update", _N_OPERANDS)(node)
    if not isinstance(call, Call) or len(node.inputs) != _N_VECTOR_OPERANDS:
        return call
    inputs = (*call.inputs[:3], None, None, call.inputs[3])
    return replace(call, inputs=inputs, updates=((1, 1), (5, 2)))


def accumulate(node: Node) -> Call | No:
    """Lower a sum with a buffer; both have one type."""
    dtype = input_of(node, 0).tensor.dtype
    if dtype not in _TYPES:
        return No(f"no kernel for gradients of {dtype}")
    return Call("accumulate_in_place", padded_inputs(node, 3), updates=((0, 1),))


def control(node: Node) -> Call:
    attrs = node.attrs
    return Call("step_control", padded_inputs(node, 3), (attrs["skips"],), (attrs["max_norm"],))


def norm(node: Node) -> Call | No:
    return _unsupported(node, 0) or Call("gradient_norm", node.inputs)


LOWERINGS: Final[Lowerings] = {
    (GRADIENT, "StepControl"): control,
    (GRADIENT, "GradientNorm"): norm,
    (GRADIENT, "AccumulateInPlace"): accumulate,
    (GRADIENT, "AccumulateGradient"): _in_place("accumulate_gradient", 3),
    (GRADIENT, "StoreState"): _in_place("store_state", 3),
    (GRADIENT, "AdamUpdate"): _in_place("adam_update", _N_OPERANDS),
    (GRADIENT, "SGDUpdate"): _in_place("sgd_update", _N_OPERANDS),
    (GRADIENT, "AdafactorUpdate"): adafactor,
}
