"""LSTM, GRU and RNN: the ops of `dynamo.recurrent`, one direction of one layer each."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.dynamo.recurrent import SAVED
from sardonyx.dynamo.table import lowers
from sardonyx.graph.graph import Value
from sardonyx.graph.op import GRADIENT
from sardonyx.ops.recurrent.gradient import TrainedLayer, layer_gradients

# torch's gate at each of ONNX's positions, and the reverse.
_GATES: Final = {
    "LSTM": (0, 3, 1, 2),
    "GRU": (1, 0, 2),
}  # torch: i f g o, r z n; ONNX: i o f c, z r h
_BACK: Final = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
_ATTRS: Final[dict[str, dict[str, Any]]] = {
    "LSTM": {},
    "GRU": {"linear_before_reset": 1},
    "RNN_TANH": {"activations": (b"Tanh",)},
    "RNN_RELU": {"activations": (b"Relu",)},
}


def _reordered(b: AtenBuilder, x: Value, order: tuple[int, ...] | None) -> Value:
    """Return weights or biases with the gates in another order."""
    if order is None:
        return x
    rest = x.tensor.static[1:] if x.tensor.static else ()  # weights have fixed sizes
    gates = b.Reshape(x, b.ints(len(order), -1, *rest))
    return b.Reshape(b.Gather(gates, b.ints(*order), axis=0), b.ints(-1, *rest))


def _onnx_weights(b: AtenBuilder, kind: str, *weights: Value | None) -> list[Value | None]:
    order = _GATES.get(kind)
    return [None if w is None else _reordered(b, b.wide(w), order) for w in weights]


@lowers("recurrent.default", namespace="sardonyx")
def _(
    b: AtenBuilder,
    kind: str,
    x: Value,
    h: Value,
    c: Value | None,
    w: Value,
    r: Value,
    bias: Value | None,
    state_bias: Value | None,
    reverse: bool,
) -> tuple[Value | None, ...]:
    weights = _onnx_weights(b, kind, w, r, bias, state_bias)
    w, r = (b.Unsqueeze(v, b.ints(0)) for v in weights[:2])
    both = None
    if bias is not None:
        both = b.Unsqueeze(b.Concat(*weights[2:], axis=0), b.ints(0))
    states = [b.Unsqueeze(b.wide(s), b.ints(0)) for s in (h, c) if s is not None]
    # The backward pass of LSTM reads the gates; inference does not compute them.
    is_training = kind == "LSTM" and any(u.args[1] == SAVED for u in b.call_node.users)
    op = "LSTMTraining" if is_training else kind.partition("_")[0]
    options: dict[str, Any] = {"domain": GRADIENT} if is_training else {}
    node = b.node(
        op, b.wide(x), w, r, both, None, *states, direction=b"reverse" if reverse else b"forward",
        outputs=2 + (c is not None) + is_training, **_ATTRS[kind], **options,
    )  # fmt: skip
    y, *last = node.outputs
    saved = last.pop() if is_training else None
    final = [b.Squeeze(s, b.ints(0)) for s in last]
    return b.typed_as_out(b.Squeeze(y, b.ints(1)), *(*final, None)[:2], saved)


@lowers("recurrent_backward.default", namespace="sardonyx")
def _(
    b: AtenBuilder,
    kind: str,
    dy: Value | None,
    dh: Value | None,
    dc: Value | None,
    y: Value,
    saved: Value | None,
    x: Value,
    h: Value,
    c: Value | None,
    w: Value,
    r: Value,
    bias: Value | None,
    state_bias: Value | None,
    reverse: bool,
) -> tuple[Value | None, ...]:
    w, r = (_reordered(b, b.wide(v), _GATES.get(kind)) for v in (w, r))
    biases = _onnx_weights(b, kind, bias, state_bias)
    layer = TrainedLayer(
        kind.partition("_")[0],
        b.wide(x),
        b.wide(y),
        None if saved is None else b.wide(saved),
        w,
        r,
        biases[0],
        biases[1],
        b.wide(h),
        None if c is None else b.wide(c),
        reverse,
        kind.endswith("RELU"),
    )
    grads = layer_gradients(b, layer, *(None if d is None else b.wide(d) for d in (dy, dh, dc)))
    order = _BACK.get(kind)
    found = [
        None if g is None else _reordered(b, g, order)
        for g in (grads.w, grads.r, grads.bias, grads.state_bias)
    ]
    return b.typed_as_out(grads.x, grads.initial_h, grads.initial_c, *found)
