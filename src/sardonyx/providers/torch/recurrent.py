"""Recurrent layers RNN, GRU, LSTM and DynamicQuantizeLSTM: forward, reverse and bidirectional.

Layers with default activations are one torch call (cuDNN on GPUs); others run step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import _VF, Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from sardonyx.graph.dtype import F32, I8, I32, U8
from sardonyx.graph.op import MICROSOFT, ONNX
from sardonyx.ops.arrays import filled
from sardonyx.ops.recurrent.standard import DIRECTIONS, activation_specs
from sardonyx.providers.torch.dtypes import wide
from sardonyx.providers.torch.kernel import REALS, TorchKernel, TorchKernels
from sardonyx.providers.torch.quantize import dynamic_integer_matmul

Activation = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]
Cell = Callable[[Tensor, State], State]  # gates of the input, state -> new state
MakeCell = Callable[[int, Tensor], tuple[Tensor, Cell]]  # direction, input -> input gates, step

_ACTIVATIONS: Final[dict[str, Callable[[Tensor, float, float], Tensor]]] = {
    "relu": lambda x, a, b: torch.relu(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "affine": lambda x, a, b: x * a + b,
    "leakyrelu": lambda x, a, b: F.leaky_relu(x, a),
    "thresholdedrelu": lambda x, a, b: torch.where(x >= a, x, 0),
    "scaledtanh": lambda x, a, b: torch.tanh(x * b) * a,
    "hardsigmoid": lambda x, a, b: (x * a + b).clamp(0, 1),
    "elu": lambda x, a, b: F.elu(x, a),
    "softsign": lambda x, a, b: F.softsign(x),
    "softplus": lambda x, a, b: torch.logaddexp(x, x.new_zeros(())),
}


def _activations(attrs: Mapping[str, Any], count: int, directions: int) -> list[list[Activation]]:
    """Return the activations of each direction."""
    functions = [_activation(*f) for f in activation_specs(attrs, count, directions)]
    return [functions[i * count : (i + 1) * count] for i in range(directions)]


def _activation(name: str, alpha: float, beta: float, clip: float) -> Activation:
    function = _ACTIVATIONS[name]
    if clip > 0:
        return lambda x: function(x.clamp(-clip, clip), alpha, beta)
    return lambda x: function(x, alpha, beta)


def _run_layer(
    x: Tensor, lens: Tensor | None, initial: Sequence[Tensor | None], hidden: int,
    make_step: MakeCell, attrs: Mapping[str, Any],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run every direction step by step; states are [directions, batch, hidden] or None."""
    is_batch_first = attrs.get("layout", 0)
    if is_batch_first:
        x = x.transpose(0, 1)
        initial = [None if s is None else s.transpose(0, 1) for s in initial]
    if lens is not None:
        lens = lens.long().clamp(0, x.shape[0])
    outs, ends = [], []
    for i, is_reverse in enumerate(DIRECTIONS[attrs["direction"]]):
        # The matmul with the inputs of all time steps is one call.
        gates, step = make_step(i, x)
        zero = gates.new_zeros((x.shape[1], hidden))
        state = tuple(zero if s is None else s[i] for s in initial)
        out, end = _sweep(gates, state, step, lens, is_reverse=is_reverse)
        outs.append(out)
        ends.append(end)
    last = tuple(torch.stack(s, 1 if is_batch_first else 0) for s in zip(*ends, strict=True))
    y = torch.stack(outs, 1)
    return y.permute(2, 0, 1, 3) if is_batch_first else y, *last


def _sweep(
    gates: Tensor, state: State, step: Cell, lens: Tensor | None, *, is_reverse: bool
) -> tuple[Tensor, State]:
    """Return the outputs [length, batch, hidden] and the final states of one direction."""
    length, batch = gates.shape[:2]
    if not length:
        return gates.new_zeros((0, *state[0].shape)), tuple(torch.zeros_like(s) for s in state)
    # Sequences of one length need no masks.
    if lens is None:
        outputs = []
        for t in reversed(range(length)) if is_reverse else range(length):
            state = step(gates[t], state)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if is_reverse else outputs), state
    time = torch.arange(length, device=gates.device)[:, None].expand(length, batch)
    if is_reverse:  # each sequence is reversed within its own length
        time = torch.where(time < lens, lens - 1 - time, time)
        gates = gates.gather(0, time[..., None].expand(gates.shape))
    # States of ended sequences stay as they are, and their outputs are 0.
    outputs = []
    for t in range(length):
        is_live = (lens > t)[:, None]
        new = step(gates[t], state)
        state = tuple(torch.where(is_live, a, b) for a, b in zip(new, state, strict=True))
        outputs.append(torch.where(is_live, state[0], 0))
    out = torch.stack(outputs)
    if is_reverse:
        out = out.gather(0, time[..., None].expand(out.shape))
    # The final state of an empty sequence is zero, not its initial state.
    has_steps = (lens > 0)[:, None]
    return out, tuple(torch.where(has_steps, s, 0) for s in state)


def _lstm_step(
    project: Activation, peepholes: Tensor | None, functions: Sequence[Activation], is_coupled: int
) -> Cell:
    """LSTM step with gates in the order i, o, f, c; `is_coupled`: f = 1 - i.

    `project` multiplies the hidden state by the recurrent weights.
    """
    f, g, h = functions
    pi, po, pf = (None, None, None) if peepholes is None else peepholes.chunk(3)

    def step(gates: Tensor, state: State) -> State:
        hidden, cell = state
        i, o, forget, c = (gates + project(hidden)).chunk(4, -1)
        if pi is not None and pf is not None:
            i, forget = i + pi * cell, forget + pf * cell
        i = f(i)
        forget = 1 - i if is_coupled else f(forget)
        cell = forget * cell + i * g(c)
        if po is not None:
            o = o + po * cell
        return f(o) * h(cell), cell

    return step


def _gru_step(r: Tensor, bias: Tensor | None, functions: Sequence[Activation], linear: int) -> Cell:
    """GRU step with gates z, r, h; `linear`: the reset gate applies after the recurrent matmul."""
    n = r.shape[1]
    f, g = functions

    def step(gates: Tensor, state: State) -> State:
        (h,) = state
        recurrent = F.linear(h, r if linear else r[: 2 * n])
        update, reset = f(gates[..., : 2 * n] + recurrent[..., : 2 * n]).chunk(2, -1)
        if linear:
            own = recurrent[..., 2 * n :]
            new = reset * (own if bias is None else own + bias)
        else:
            new = F.linear(reset * h, r[2 * n :], bias)
        new = g(gates[..., 2 * n :] + new)
        return ((1 - update) * new + update * h,)

    return step


def _bias_sum(b: Tensor | None, i: int) -> Tensor | None:
    """Return the sum of input bias and recurrent bias."""
    return None if b is None else b[i].view(2, -1).sum(0)


def _narrow(outputs: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(y.to(dtype) for y in outputs)


def _widened(inputs: Sequence[Tensor | None]) -> list[Any]:
    """Return 16-bit floats as float32, in which states stay between steps."""
    return [None if x is None else wide(x) for x in inputs]


def rnn(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """Ht = f(Xt W^T + Ht-1 R^T + b)."""
    x, w, r, b, lens, initial = _widened(filled(inputs, 6))
    dtype = inputs[0].dtype
    names = {name for name, *_ in activation_specs(attrs, 1, w.shape[0])}
    if len(names) == 1 and names <= {"tanh", "relu"} and _has_one_length(x, lens, attrs):
        cell = _VF.rnn_tanh if "tanh" in names else _VF.rnn_relu
        return _narrow(_torch_layer(cell, x, (w, r, b), (initial,), attrs, (0,)), dtype)
    functions = _activations(attrs, 1, w.shape[0])

    def make_step(i: int, x: Tensor) -> tuple[Tensor, Cell]:
        f = functions[i][0]
        gates = F.linear(x, w[i], _bias_sum(b, i))
        return gates, lambda input_gates, state: (f(input_gates + F.linear(state[0], r[i])),)

    return _narrow(_run_layer(x, lens, (initial,), r.shape[2], make_step, attrs), dtype)


def gru(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """GRU layer, with update, reset and hidden gates."""
    x, w, r, b, lens, initial = _widened(filled(inputs, 6))
    dtype, linear = inputs[0].dtype, attrs["linear_before_reset"]
    names = [name for name, *_ in activation_specs(attrs, 2, w.shape[0])]
    is_usual = linear and names == ["sigmoid", "tanh"] * w.shape[0]
    if is_usual and _has_one_length(x, lens, attrs):
        outputs = _torch_layer(_VF.gru, x, (w, r, b), (initial,), attrs, (1, 0, 2))
        return _narrow(outputs, dtype)
    functions, n = _activations(attrs, 2, w.shape[0]), r.shape[2]

    def make_step(i: int, x: Tensor) -> tuple[Tensor, Cell]:
        # The recurrent bias of the hidden gate is inside of the reset, so it is not summed.
        bias = None
        if b is not None:
            bias = b[i, : 3 * n] + F.pad(b[i, 3 * n : 5 * n], (0, n))
        own = None if b is None else b[i, 5 * n :]
        return F.linear(x, w[i], bias), _gru_step(r[i], own, functions[i], linear)

    return _narrow(_run_layer(x, lens, (initial,), n, make_step, attrs), dtype)


def lstm(*inputs: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """LSTM layer, with input, output, forget and cell gates."""
    x, w, r, b, lens, initial_h, initial_c, p = _widened(filled(inputs, 8))
    dtype, initial = inputs[0].dtype, (initial_h, initial_c)
    names = [name for name, *_ in activation_specs(attrs, 3, w.shape[0])]
    is_usual = names == ["sigmoid", "tanh", "tanh"] * w.shape[0] and p is None
    if is_usual and not attrs["input_forget"] and _has_one_length(x, lens, attrs):
        outputs = _torch_layer(_VF.lstm, x, (w, r, b), initial, attrs, (0, 2, 3, 1))
        return _narrow(outputs, dtype)
    functions = _activations(attrs, 3, w.shape[0])

    def make_step(i: int, x: Tensor) -> tuple[Tensor, Cell]:
        own, peepholes = r[i], None if p is None else p[i]
        step = _lstm_step(
            lambda h: F.linear(h, own), peepholes, functions[i], attrs["input_forget"]
        )
        return F.linear(x, w[i], _bias_sum(b, i)), step

    return _narrow(_run_layer(x, lens, initial, r.shape[2], make_step, attrs), dtype)


def _has_one_length(x: Tensor, lens: Tensor | None, attrs: Mapping[str, Any]) -> bool:
    """Return whether all sequences have one length and gates are not clipped, as torch requires."""
    return lens is None and x.numel() > 0 and not attrs["clip"]


def _torch_layer(
    cell: Callable[..., Any],
    x: Tensor,
    parameters: tuple[Tensor, Tensor, Tensor | None],
    initial: Sequence[Tensor | None],
    attrs: Mapping[str, Any],
    gate_order: tuple[int, ...],
) -> tuple[Tensor, ...]:
    """Run a layer by torch's function, which has its gates in another order."""
    is_batch_first, direction = attrs["layout"], attrs["direction"]
    if is_batch_first:
        x = x.transpose(0, 1)
        initial = [None if s is None else s.transpose(0, 1) for s in initial]
    # torch has no reverse direction alone: the sequence is flipped.
    if direction == b"reverse":
        x = x.flip(0)
    count, hidden = parameters[0].shape[0], parameters[1].shape[2]
    zero = x.new_zeros((count, x.shape[1], hidden))
    states = [zero if s is None else s.contiguous() for s in initial]
    weights = _flat_weights(parameters, count, gate_order)
    has_bias = parameters[2] is not None
    state = states if len(states) > 1 else states[0]
    y, *last = cell(x.contiguous(), state, weights, has_bias, 1, 0.0, False, count > 1, False)
    if direction == b"reverse":
        y = y.flip(0)
    y = y.unflatten(2, (count, hidden))  # [length, batch, directions, hidden]
    if is_batch_first:
        return y.transpose(0, 1), *(s.transpose(0, 1) for s in last)
    return y.transpose(1, 2), *last


def _flat_weights(
    parameters: tuple[Tensor, Tensor, Tensor | None], count: int, gate_order: tuple[int, ...]
) -> list[Tensor]:
    """Return the weights and biases of all directions, with gates in torch's order."""
    w, r, b = parameters
    gates = len(gate_order)

    def reordered(tensor: Tensor) -> Tensor:
        by_gate = tensor.chunk(gates)
        return tensor if gates == 1 else torch.cat([by_gate[k] for k in gate_order])

    flat = []
    for i in range(count):
        flat += [reordered(w[i]), reordered(r[i])]
        if b is not None:
            flat += [reordered(bias) for bias in b[i].chunk(2)]
    return flat


def dynamic_lstm(*tensors: Any, **attrs: Any) -> tuple[Tensor, ...]:
    """LSTM whose inputs and states are dynamically quantized before each matmul."""
    x, w, r, b, lens, initial_h, initial_c, p, *quantization = filled(tensors, 12)
    w_scale, w_zero, r_scale, r_zero = quantization
    functions = _activations(attrs, 3, w.shape[0])

    def quantized_matmul(x: Tensor, q: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
        total, x_scale = dynamic_integer_matmul(x, q, zero)
        return total * (x_scale * scale)

    def make_step(i: int, x: Tensor) -> tuple[Tensor, Any]:
        gates = quantized_matmul(x, w[i], w_scale[i], w_zero[i])
        if (bias := _bias_sum(b, i)) is not None:
            gates = gates + bias
        peepholes = None if p is None else p[i]
        step = _lstm_step(
            lambda h: quantized_matmul(h, r[i], r_scale[i], r_zero[i]), peepholes,
            functions[i], attrs["input_forget"],
        )  # fmt: skip
        return gates, step

    return _run_layer(x, lens, (initial_h, initial_c), r.shape[1], make_step, attrs)


_TYPES: Final = REALS | {I32}
_QUANTIZED: Final = frozenset((F32, I8, U8, I32))
KERNELS: Final[TorchKernels] = {
    (ONNX, "RNN"): TorchKernel(rnn, _TYPES),
    (ONNX, "GRU"): TorchKernel(gru, _TYPES),
    (ONNX, "LSTM"): TorchKernel(lstm, _TYPES),
    (MICROSOFT, "DynamicQuantizeLSTM"): TorchKernel(dynamic_lstm, _QUANTIZED),
}
