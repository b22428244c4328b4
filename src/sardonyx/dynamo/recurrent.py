"""nn.LSTM, nn.GRU and nn.RNN as custom torch ops, one per layer and direction.

TorchDynamo has no support for these modules by default, and AOTAutograd would unroll their time
steps into the graph. Here the calls `torch.lstm`, `torch.gru` and `torch.rnn_*` of a captured graph
are replaced by `sardonyx::recurrent`, a torch op with a gradient, before AOTAutograd traces it.
`dynamo.aten.recurrent` lowers it; where it is not lowered, torch's own kernels run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
import torch._dynamo
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._dynamo.exc import Unsupported as GraphBreak
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.utils.flop_counter import register_flop_formula

# Without this TorchDynamo breaks the graph at every recurrent module. It is a setting of the
# process: `_inferred` breaks the graph for other backends, as they did before.
_OTHERS_ALLOW_RNN: Final = torch._dynamo.config.allow_rnn
torch._dynamo.config.allow_rnn = True
# torch 2.11 traces LSTMs with projections to states of a wrong shape ([1, 1, 3, 3] for [1, 3, 3],
# also with the backend aot_eager), and cannot trace packed sequences: eager torch runs them there.
_TRACES_ALL_LAYERS: Final = torch.__version__ >= "2.13"

_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}
_OPS: Final[dict[str, Any]] = {
    "LSTM": torch.ops.aten.lstm.input,
    "GRU": torch.ops.aten.gru.input,
    "RNN_TANH": torch.ops.aten.rnn_tanh.input,
    "RNN_RELU": torch.ops.aten.rnn_relu.input,
}
SAVED: Final = 3  # the result that only the backward op reads
N_SAVED: Final = 5  # values per hidden unit in it
N_GRADS: Final = 7  # x, h, c, w, r, b, rb
_SIGNATURE: Final = (
    "Tensor x, Tensor h, Tensor? c, Tensor w, Tensor r, Tensor? b, Tensor? rb, bool reverse"
)


@torch.library.custom_op(
    "sardonyx::recurrent",
    mutates_args=(),
    schema=f"(str kind, {_SIGNATURE}) -> (Tensor, Tensor, Tensor, Tensor)",
)
def recurrent(kind: str, *operands: Any) -> tuple[Tensor, ...]:
    """Run one direction of one layer: all outputs, the final state and cell, and what is saved.

    x is [length, batch, inputs], h and c are [batch, hidden]; w, r, b and rb are torch's weights.
    """
    return recurrent_by_torch(kind, *operands)


def recurrent_by_torch(kind: str, *operands: Any) -> tuple[Tensor, ...]:
    """Compute the op by torch's own layer."""
    x, h, c, w, r, b, rb, reverse = operands
    x = x.flip(0) if reverse else x
    weights = [w, r] if b is None or rb is None else [w, r, b, rb]
    state = h[None] if c is None else (h[None], c[None])
    train = torch.is_grad_enabled()
    options = (b is not None, 1, 0.0, train, False, False)
    y, last, *cells = _FUNCTIONS[kind](x, state, weights, *options)
    # The results of an op must not share memory.
    cell = cells[0][0].clone() if cells else x.new_empty(0)
    saved = x.new_empty(0)
    if c is not None:
        saved = _lstm_saved(x, torch.cat((h[None], y[:-1])), c, weights)
        saved = saved.flip(0) if reverse else saved
    return (y.flip(0) if reverse else y), last[0].clone(), cell, saved


def _lstm_saved(x: Tensor, states: Tensor, c: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return the gates i, o, f, g after activations, and the cell, of every step."""
    gates = torch.nn.functional.linear(x, weights[0], *weights[2:3])
    gates = gates + torch.nn.functional.linear(states, weights[1], *weights[3:4])
    i, f, g, o = gates.chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cells = []
    for step in range(len(x)):
        c = f[step] * c + i[step] * g[step]
        cells.append(c)
    return torch.cat((i, o, f, g, torch.stack(cells)), -1)


@recurrent.register_fake
def _(kind: str, x: Tensor, h: Tensor, c: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    rows = x.shape[:2]
    y, last = x.new_empty((*rows, h.shape[-1])), x.new_empty(h.shape)
    if c is None:
        return y, last, x.new_empty(0), x.new_empty(0)
    return y, last, x.new_empty(c.shape), x.new_empty((*rows, N_SAVED * h.shape[-1]))


@register_flop_formula(torch.ops.sardonyx.recurrent)
def _(kind: str, x: Any, h: Any, c: Any, w: Any, r: Any, *_: Any, **__: Any) -> Any:
    """Return the cost by which a memory budget decides what is recomputed."""
    return 2 * math.prod(x[:2]) * (math.prod(w) + math.prod(r))


@torch.library.custom_op(
    "sardonyx::recurrent_backward",
    mutates_args=(),
    schema=f"(str kind, Tensor? dy, Tensor? dh, Tensor? dc, Tensor y, Tensor? saved, "
    f"{_SIGNATURE})"
    f" -> ({', '.join(['Tensor'] * N_GRADS)})",
)
def recurrent_backward(
    kind: str, dy: Any, dh: Any, dc: Any, y: Tensor, saved: Any, *operands: Any
) -> tuple[Tensor, ...]:
    """Return the gradients of x, h, c, w, r, b and rb; empty for those that are absent."""
    tensors, reverse = operands[:-1], operands[-1]
    leaves: list[Any] = [None if t is None else t.detach().requires_grad_() for t in tensors]
    with torch.enable_grad():
        outputs = recurrent_by_torch(kind, *leaves, reverse)
    pairs = [(o, g) for o, g in zip(outputs, (dy, dh, dc), strict=False) if g is not None]
    given = [t for t in leaves if t is not None]
    found = iter(torch.autograd.grad([o for o, _ in pairs], given, [g for _, g in pairs]))
    return tuple(y.new_empty(0) if t is None else next(found).contiguous() for t in leaves)


@recurrent_backward.register_fake
def _(
    kind: str, dy: Any, dh: Any, dc: Any, y: Tensor, saved: Any, *operands: Any
) -> tuple[Tensor, ...]:
    # The order of the operands is that of the results; the last is `reverse`.
    return tuple(y.new_empty(0 if t is None else t.shape) for t in operands[:-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    kind, *tensors, reverse = inputs
    saved = output[SAVED] if kind == "LSTM" else None
    ctx.save_for_backward(output[0], saved, *tensors)
    ctx.mark_non_differentiable(output[SAVED])
    ctx.kind, ctx.reverse = kind, reverse
    ctx.set_materialize_grads(False)  # results that nobody reads have no gradient


def _differentiate(ctx: Any, *output_grads: Tensor | None) -> tuple[Any, ...]:
    y, saved, *tensors = ctx.saved_tensors
    dy, dh, dc, _ = output_grads
    dc = dc if ctx.kind == "LSTM" else None
    grads = torch.ops.sardonyx.recurrent_backward(
        ctx.kind, dy, dh, dc, y, saved, *tensors, ctx.reverse
    )
    present = (None if t is None else g for t, g in zip(tensors, grads, strict=True))
    return None, *present, None


recurrent.register_autograd(_differentiate, setup_context=_save)


def replace_recurrent_calls(module: fx.GraphModule) -> None:
    """Replace the calls of torch's recurrent functions in a graph of TorchDynamo."""
    for node in module.graph.nodes:
        if node.op != "call_function":
            continue
        kind = next((k for k, f in _FUNCTIONS.items() if node.target is f), None)
        if kind is not None and _is_dense(kind, node.args):
            node.target, node.args = run_layers, (kind, *node.args)
    module.recompile()


def _is_dense(kind: str, args: Sequence[Any]) -> bool:
    """Whether a call has padded sequences and no projections; torch runs the others."""
    if len(args) != 9 or not isinstance(args[2], (list, tuple)):
        return False  # a PackedSequence, whose third argument is the state
    _, _, params, has_biases, num_layers, _, _, bidirectional, _ = args
    n_params = num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    return len(params) == int(n_params)


def run_layers(
    kind: str,
    x: Tensor,
    state: Any,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Compute `torch.lstm`, `torch.gru` or `torch.rnn_*` layer by layer."""
    first_h, first_c = state if kind == "LSTM" else (state, None)
    if kind != "GRU" or x.device.type != "cpu":  # torch's autocast has no rule for it there
        x, first_h, first_c, *params = in_autocast_type(x, first_h, first_c, *params)
    x = x.transpose(0, 1) if batch_first else x
    n_directions, n_params = 2 if bidirectional else 1, 4 if has_biases else 2
    last_h, last_c = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(n_directions):
            i = layer * n_directions + direction
            weights = (*params[i * n_params : (i + 1) * n_params], None, None)[:4]
            cell = None if first_c is None else first_c[i]
            y, h, c, _ = torch.ops.sardonyx.recurrent(
                kind, x, first_h[i], cell, *weights, direction == 1
            )
            outputs.append(y)
            last_h.append(h)
            last_c.append(c)
        x = outputs[0] if n_directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, True)
    x = x.transpose(0, 1) if batch_first else x
    states = (torch.stack(last_h), torch.stack(last_c))
    return x, *states[: 2 if kind == "LSTM" else 1]


def keep_lengths_dynamic(backend: Callable[..., Any]) -> None:
    """Have TorchDynamo infer shapes of recurrent calls from `run_layers`, for this backend only.

    torch's own rule unrolls the time steps, which fixes the length and takes seconds.
    """
    for kind, op in _OPS.items():
        kernel = partial(_inferred, backend, kind, op.py_kernels[DispatchKey.Autograd])
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            op.py_kernels[key] = kernel
        op._dispatch_cache.clear()


def _inferred(backend: Any, kind: str, original: Callable[..., Any], *args: Any) -> Any:
    try:
        compiler: Any = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:  # TorchDynamo is not capturing a graph
        return original(*args)
    is_ours = _wraps(compiler, backend)
    if is_ours and _is_dense(kind, args):
        return run_layers(kind, *args)
    if not (_TRACES_ALL_LAYERS if is_ours else _OTHERS_ALLOW_RNN):
        raise GraphBreak(f"{kind} modules run in eager torch")
    return original(*args)


def _wraps(compiler: Any, backend: Any) -> bool:
    """Whether a compiler of TorchDynamo is a backend, wrapped by torch.compile or `partial`."""
    while compiler is not None and compiler is not backend:
        compiler = getattr(compiler, "compiler_fn", None) or getattr(compiler, "func", None)
    return compiler is not None


def in_autocast_type(*tensors: Any) -> list[Any]:
    """Return the operands in autocast's type, as torch's own layers take them; float64 stays."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    cast = (torch.float32, torch.float16, torch.bfloat16)
    return [t.to(dtype) if t is not None and t.dtype in cast else t for t in tensors]
