"""Attention ops of com.microsoft, each with the same function in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

torch = pytest.importorskip("torch")

F = torch.nn.functional


Array = np.ndarray[Any, np.dtype[Any]]


MS = "com.microsoft"


def f32(*shape: int, scale: float = 1.0) -> Array:
    numbers = np.random.default_rng(sum(shape) * 7 + len(shape)).standard_normal(shape)
    return (scale * numbers).astype(np.float32)


def i32(*numbers: Any) -> Array:
    return np.array(numbers, np.int32)


@dataclass(frozen=True)
class Contrib:
    """A node: its inputs by name ('' where absent), and torch's function of them in float64."""

    op: str
    inputs: dict[str, Array | None]
    function: Callable[..., Any]  # of the inputs that are floats and present, in order
    attrs: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()  # constants, without gradients
    domain: str = MS
    outputs: tuple[str, ...] = ("y",)
    of: tuple[str, ...] = ("y",)

    def model(self) -> Any:
        """The model; fixed inputs and integers are initializers."""
        given = {n: x for n, x in self.inputs.items() if x is not None}
        constants = {n for n, x in given.items() if n in self.fixed or x.dtype.kind != "f"}
        names = [n if x is not None else "" for n, x in self.inputs.items()]
        node = helper.make_node(self.op, names, self.outputs, domain=self.domain, **self.attrs)
        graph = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(n, 1, x.shape)
                for n, x in given.items()
                if n not in constants
            ],
            [onnx.ValueInfoProto(name=n) for n in self.outputs if n],
            [numpy_helper.from_array(given[n], n) for n in sorted(constants)],
        )
        opsets = [helper.make_opsetid("", 28), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=13)

    def names(self) -> list[str]:
        floats = (n for n, x in self.inputs.items() if x is not None and x.dtype.kind == "f")
        return [n for n in floats if n not in self.fixed]


def heads(x: Any, count: int) -> Any:
    return x.reshape(*x.shape[:2], count, -1).transpose(1, 2)


def merged(x: Any) -> Any:
    return x.transpose(1, 2).flatten(2)


def rotated(x: Any, cos: Any, sin: Any, interleaved: bool = False) -> Any:
    """RoPE of [batch, heads, rows, width], by tables [rows, pairs]; the rest stays."""
    width = 2 * cos.shape[-1]
    part, rest = x[..., :width], x[..., width:]
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else part.chunk(2, -1)
    rotated = (a * cos - b * sin, b * cos + a * sin)
    out = torch.stack(rotated, -1).flatten(-2) if interleaved else torch.cat(rotated, -1)
    return torch.cat((out, rest), -1)


def tables(rows: int, pairs: int) -> tuple[Array, Array]:
    angles = np.arange(rows)[:, None] * 0.3 ** np.arange(pairs)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


COS, SIN = tables(9, 4)


TCOS, TSIN = torch.tensor(COS).double(), torch.tensor(SIN).double()


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


def attended(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """softmax(q k^T) v over the visible keys, with a softcap, a bias and a sink."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * options.get("scale", q.shape[-1] ** -0.5)
    if (cap := options.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    scores = scores + options.get("bias", 0)
    if (visible := options.get("visible")) is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if (sink := options.get("sink")) is not None:
        column = sink.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ v
    return scores.softmax(-1) @ v


PLACES = np.array([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])


ROTARY = [
    Contrib(
        "RotaryEmbedding",
        {"x": f32(2, 3, 5, 8), "ids": np.array([0]), "cos": COS, "sin": SIN},
        lambda x: rotated(x, TCOS[:5], TSIN[:5]),
        fixed=("cos", "sin"),
    ),
    Contrib(
        "RotaryEmbedding",
        {"x": f32(2, 5, 24), "ids": PLACES, "cos": COS, "sin": SIN},
        lambda x: merged(
            rotated(heads(x, 3), TCOS[PLACES][:, None], TSIN[PLACES][:, None], interleaved=True)
        ),
        {"interleaved": 1},
        fixed=("cos", "sin"),
    ),
    Contrib(
        "MRotaryEmbedding",
        {"x": f32(2, 3, 5, 8), "ids": np.stack([PLACES] * 3), "cos": COS, "sin": SIN},
        lambda x: rotated(x, TCOS[PLACES][:, None], TSIN[PLACES][:, None]),
        {"mrope_section": [2, 1, 1]},
        fixed=("cos", "sin"),
    ),
    Contrib(
        "RotaryEmbedding",
        {"x": f32(2, 3, 5, 12), "cos": COS, "sin": SIN, "ids": np.array([[0, 1, 2, 3, 4]] * 2)},
        lambda x: rotated(x, TCOS[:5], TSIN[:5]),
        {"rotary_embedding_dim": 8},
        fixed=("cos", "sin"),
        domain="",
    ),
]


def gqa_inputs(query: Array, key: bool = True, **more: Any) -> dict[str, Array | None]:
    inputs: dict[str, Array | None] = {"query": query}
    inputs |= (
        {"key": f32(2, 5, 16), "value": f32(2, 5, 16, scale=0.5)} if key else {"k": None, "v": None}
    )
    inputs |= {"past_key": None, "past_value": None}
    inputs |= {"seqlens": i32(4, 2), "total": np.array(5, np.int32)}
    names = ["cos", "sin", "ids", "bias", "sink", "k_scale", "v_scale", "q_norm", "k_norm"]
    return inputs | {n: more.get(n) for n in names}


# The second prompt has 3 tokens of 5; its last queries are padding, which sees these 3 keys.
LENGTHS = CAUSAL & (torch.arange(5) < torch.tensor([5, 3]).reshape(2, 1, 1, 1))


WINDOW = LENGTHS & ~torch.ones(5, 5, dtype=torch.bool).tril(-2)


GQA = {"num_heads": 4, "kv_num_heads": 2}


ROTATES = {"cos": COS, "sin": SIN}


GROUPED = [
    Contrib(
        "GroupQueryAttention",
        gqa_inputs(f32(2, 5, 32)),
        lambda q, k, v: merged(attended(heads(q, 4), heads(k, 2), heads(v, 2), visible=LENGTHS)),
        GQA,
    ),
    Contrib(
        "GroupQueryAttention",
        gqa_inputs(f32(2, 5, 64), key=False, **ROTATES),
        lambda qkv: merged(
            attended(
                *(
                    rotated(heads(qkv, 8)[:, s], TCOS[:5], TSIN[:5])
                    for s in (slice(4), slice(4, 6))
                ),
                heads(qkv, 8)[:, 6:],
                visible=LENGTHS,
                softcap=1.5,
            )
        ),
        {**GQA, "do_rotary": 1, "softcap": 1.5},
        fixed=("cos", "sin"),
    ),
    Contrib(
        "GroupQueryAttention",
        gqa_inputs(f32(2, 5, 32), sink=f32(4), bias=f32(1, 4, 5, 5)),
        lambda q, k, v, bias, sink: merged(
            attended(
                heads(q, 4),
                heads(k, 2),
                heads(v, 2),
                visible=LENGTHS,
                bias=bias,
                sink=sink,
                scale=0.3,
            )
        ),
        {**GQA, "scale": 0.3},
    ),
    Contrib(
        "GroupQueryAttention",
        gqa_inputs(f32(2, 5, 32), q_norm=f32(8), k_norm=f32(8, scale=0.5), **ROTATES),
        lambda q, k, v, a, b: merged(
            attended(
                rotated(F.rms_norm(heads(q, 4), (8,), a, 1e-6), TCOS[:5], TSIN[:5], True),
                rotated(F.rms_norm(heads(k, 2), (8,), b, 1e-6), TCOS[:5], TSIN[:5], True),
                heads(v, 2),
                visible=LENGTHS,
            )
        ),
        {**GQA, "do_rotary": 1, "rotary_interleaved": 1},
        fixed=("cos", "sin"),
    ),
    Contrib(
        "GroupQueryAttention",
        gqa_inputs(f32(2, 5, 32)),
        lambda q, k, v: torch.nan_to_num(
            merged(
                attended(heads(q, 4), heads(k, 2), heads(v, 2), visible=WINDOW, sink=torch.zeros(4))
            )
        ),
        {**GQA, "local_window_size": 2, "smooth_softmax": 1},
    ),
    Contrib(
        "GroupQueryAttention",
        gqa_inputs(f32(2, 5, 32)),
        lambda k: heads(k, 2) * 1,
        GQA,
        fixed=("query", "value"),
        outputs=("y", "present_key", "present_value"),
        of=("present_key",),
    ),
]


def _masked(mask: Any, low: float = -10000.0) -> Any:
    return torch.where(torch.as_tensor(mask) > 0, 0.0, low).double()


MULTI = [
    Contrib(
        "MultiHeadAttention",
        {"q": f32(2, 5, 12), "k": f32(2, 7, 12), "v": f32(2, 7, 18)},
        lambda q, k, v: merged(attended(heads(q, 3), heads(k, 3), heads(v, 3))),
        {"num_heads": 3},
    ),
    Contrib(
        "MultiHeadAttention",
        {"q": f32(2, 5, 12), "k": f32(2, 5, 3, 2, 4), "v": None, "bias": f32(36)},
        lambda q, k, b: merged(
            attended(
                heads(q + b[:12], 3),
                heads(k[:, :, :, 0].flatten(2) + b[12:24], 3),
                heads(k[:, :, :, 1].flatten(2) + b[24:], 3),
                visible=CAUSAL,
            )
        ),
        {"num_heads": 3, "unidirectional": 1},
    ),
    Contrib(
        "MultiHeadAttention",
        {
            "q": f32(2, 5, 3, 3, 4), "k": None, "v": None, "b": None,
            "mask": i32([1, 1, 0, 1, 1], [1, 1, 1, 0, 0]),
        },
        lambda q: merged(
            attended(
                *(q[:, :, :, i].transpose(1, 2) for i in range(3)),
                bias=_masked([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]])[:, None, None],
            )
        ),
        {"num_heads": 3},
    ),
    Contrib(
        "MultiHeadAttention",
        {
            "q": f32(2, 5, 12), "k": f32(2, 3, 5, 4), "v": f32(2, 3, 5, 6), "b": None,
            "mask": i32(5, 2), "bias": f32(1, 3, 5, 5),
        },
        lambda q, k, v, bias: merged(
            attended(
                heads(q, 3), k, v,
                bias=bias + _masked([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])[:, None, None], scale=0.7,
            )
        ),
        {"num_heads": 3, "scale": 0.7},
    ),
]  # fmt: skip


def _projected(x: Any, w: Any, b: Any, count: int, **options: Any) -> Any:
    q, k, v = (heads(part, count) for part in (x @ w + b).chunk(3, -1))
    if "angles" in options:
        cos, sin = options.pop("angles")
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    return merged(attended(q, k, v, **options))


_ANGLES = torch.arange(5)[:, None] * 10000.0 ** (-torch.arange(4) / 4)


PROJECTED = [
    Contrib(
        "Attention",
        {"x": f32(2, 5, 6), "w": f32(6, 24), "b": f32(24)},
        lambda x, w, b: _projected(x, w, b, 2, visible=CAUSAL),
        {"num_heads": 2, "unidirectional": 1},
    ),
    Contrib(
        "Attention",
        {"x": f32(2, 5, 6), "w": f32(6, 48), "b": f32(48), "mask": i32(5, 3)},
        lambda x, w, b: _projected(
            x, w, b, 2, angles=(_ANGLES.double().cos(), _ANGLES.double().sin()),
            bias=_masked([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])[:, None, None],
        ),
        {"num_heads": 2, "do_rotary": 1},
    ),
    Contrib(
        "Attention",
        {
            "x": f32(2, 5, 6), "w": f32(6, 24), "b": f32(24), "mask": i32(5, 4, 0, 2), "past": None,
            "bias": f32(2, 1, 5, 5),
        },
        lambda x, w, b, bias: _projected(
            x, w, b, 2, bias=bias + _masked([[1, 1, 1, 1, 1], [0, 0, 1, 1, 0]])[:, None, None]
        ),
        {"num_heads": 2},
    ),
]  # fmt: skip


def linear_attention(q: Any, k: Any, v: Any, past: Any, decay: Any, beta: Any) -> Any:
    """The recurrence of LinearAttention with 4 query and 2 key heads; decay is per feature."""
    q, k, v = heads(q, 4), heads(k, 2), heads(v, 2)
    state = torch.zeros(2, 2, 3, 5, dtype=torch.double) if past is None else past
    outs = []
    for t in range(q.shape[2]):
        if decay is not None:
            state = state * decay[:, t].reshape(2, 2, -1, 1).exp()
        write = v[:, :, t]
        if beta is not None:
            write = beta[:, t].reshape(2, -1, 1) * (write - (k[:, :, t, None] @ state)[:, :, 0])
        state = state + k[:, :, t, :, None] * write[:, :, None]
        wide = state.repeat_interleave(2, 1)
        outs.append((q[:, :, t, None] @ wide)[:, :, 0] * 3**-0.5)
    return torch.stack(outs, 2).transpose(1, 2).flatten(2)


_QKV = {"q": f32(2, 6, 12), "k": f32(2, 6, 6, scale=0.5), "v": f32(2, 6, 10)}


_HEADS = {"q_num_heads": 4, "kv_num_heads": 2}


LINEAR = [
    Contrib(
        "LinearAttention",
        {**_QKV, "past": None, "decay": -np.abs(f32(2, 6, 2)), "beta": f32(2, 6, 2, scale=0.3)},
        lambda q, k, v, d, b: linear_attention(q, k, v, None, d, b),
        _HEADS,
        domain=domain,
        outputs=("y", "state"),
    )
    for domain in ("", MS)
] + [
    Contrib(
        "LinearAttention",
        {**_QKV, "past": f32(2, 2, 3, 5), "decay": -np.abs(f32(2, 6, 6))},
        lambda q, k, v, p, d: linear_attention(q, k, v, p, d, None),
        {**_HEADS, "update_rule": "gated"},
        outputs=("y", "state"),
    ),
    Contrib(
        "LinearAttention",
        _QKV,
        lambda q, k, v: linear_attention(q, k, v, None, None, None),
        {**_HEADS, "update_rule": "linear"},
        outputs=("y", "state"),
    ),
]
