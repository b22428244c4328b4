"""Ops of float32 that models of com.microsoft have: their gradients against torch's autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument, NotImplemented
from sardonyx.ops.nbits.bnb4 import NF4 as CODES
from sardonyx.train import gradient

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
    turned = (a * cos - b * sin, b * cos + a * sin)
    out = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
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


def _gqa(query: Array, key: bool = True, **more: Any) -> dict[str, Array | None]:
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
        _gqa(f32(2, 5, 32)),
        lambda q, k, v: merged(attended(heads(q, 4), heads(k, 2), heads(v, 2), visible=LENGTHS)),
        GQA,
    ),
    Contrib(
        "GroupQueryAttention",
        _gqa(f32(2, 5, 64), key=False, **ROTATES),
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
        _gqa(f32(2, 5, 32), sink=f32(4), bias=f32(1, 4, 5, 5)),
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
        _gqa(f32(2, 5, 32), q_norm=f32(8), k_norm=f32(8, scale=0.5), **ROTATES),
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
        _gqa(f32(2, 5, 32)),
        lambda q, k, v: torch.nan_to_num(
            merged(
                attended(heads(q, 4), heads(k, 2), heads(v, 2), visible=WINDOW, sink=torch.zeros(4))
            )
        ),
        {**GQA, "local_window_size": 2, "smooth_softmax": 1},
    ),
    Contrib(
        "GroupQueryAttention",
        _gqa(f32(2, 5, 32)),
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

BITS = np.random.default_rng(0).integers(0, 256, (20, 3, 16)).astype(np.uint8)
STEPS = np.abs(f32(20, 3)) / 8


def dequantized(rows: Any = slice(None), zero: int = 8) -> Any:
    """The weights [20, 96] of blocks of 32 codes in 4 bits."""
    codes = np.stack((BITS & 15, BITS >> 4), -1).reshape(20, 96).astype(np.float64)
    return torch.tensor((codes - zero) * np.repeat(STEPS, 32, 1).astype(np.float64))[rows]


_INDEX = np.array([[3, 0, 3], [19, 7, 3]])
_TABLE = {"data": BITS.reshape(20, 48), "i": _INDEX, "scales": STEPS}


def rescaled(scales: Any) -> Any:
    """Rows of the weights with other scales."""
    unit = dequantized() / torch.tensor(np.repeat(STEPS, 32, 1)).double()
    return (unit * scales.repeat_interleave(32, 1))[_INDEX]


QUANTIZED = [
    Contrib(
        "MatMulNBits",
        {"x": f32(2, 5, 96), "w": BITS, "scales": STEPS},
        lambda x: x @ dequantized().T,
        {"K": 96, "N": 20, "block_size": 32},
        fixed=("scales",),
    ),
    Contrib(
        "MatMulNBits",
        {
            "x": f32(7, 90), "w": BITS, "scales": STEPS, "zero": np.full((20, 2), 0x33, np.uint8),
            "g": None, "bias": f32(20),
        },
        lambda x, bias: x @ dequantized(zero=3).T[:90] + bias,
        {"K": 90, "N": 20, "block_size": 32},
        fixed=("scales",),
    ),
    Contrib("GatherBlockQuantized", _TABLE, rescaled, {"block_size": 32}),
]  # fmt: skip

BYTES = np.random.default_rng(1).integers(0, 256, (6, 4)).astype(np.uint8)
NF4 = np.random.default_rng(2).integers(0, 256, 32 * 20 // 2).astype(np.uint8)


def observed(x: Any, scale: Any, bias: Any) -> Any:
    """The product of x, quantized over its own range, and of weights with a zero point of 120."""
    low, high = x.detach().min().clamp(max=0), x.detach().max().clamp(min=0)
    step = (high - low) / 255
    zero = (-low / step).round()
    rounded = ((x.detach() / step).round() + zero).clamp(0, 255) - zero
    straight = x + (rounded * step - x).detach()
    return straight @ ((torch.tensor(BYTES).double() - 120) * scale) + bias


def from_code_book(x: Any) -> Any:
    codes = np.stack((NF4 >> 4, NF4 & 15), 1).reshape(-1)
    steps = np.repeat(np.abs(f32(20)), 32)
    return x @ torch.tensor(np.array(CODES)[codes] * steps).double().reshape(20, 32).T


QUANTIZED += [
    Contrib(
        "DynamicQuantizeMatMul",
        {
            "x": f32(5, 6),
            "w": BYTES,
            "s": np.abs(f32(4)),
            "z": np.array(120, np.uint8),
            "b": f32(4),
        },
        observed,
    ),
    Contrib(
        "MatMulBnb4",
        {"x": f32(2, 5, 32), "w": NF4, "absmax": np.abs(f32(20))},
        from_code_book,
        {"K": 32, "N": 20, "block_size": 32, "quant_type": 1},
        fixed=("absmax",),
    ),
]

WORDS = i32([3, 1, 4], [1, 5, 2])
NORMS = [
    Contrib(
        "SkipSimplifiedLayerNormalization",
        {"x": f32(2, 5, 8), "skip": f32(2, 5, 8, scale=0.5), "w": f32(8)},
        lambda x, s, w: F.rms_norm(x + s, (8,), w, 1e-5) + 2 * (x + s),
        {"epsilon": 1e-5},
        outputs=("y", "", "", "sum"),
        of=("y", "sum"),
    ),
    Contrib(
        "SkipLayerNormalization",
        {"x": f32(2, 5, 8), "skip": f32(5, 8), "w": f32(8), "b": f32(8), "bias": f32(8, scale=2)},
        lambda x, s, w, b, bias: F.layer_norm(x + s + bias, (8,), w, b, 1e-5),
        {"epsilon": 1e-5},
    ),
    Contrib(
        "EmbedLayerNormalization",
        {
            "ids": WORDS, "segments": None, "words": f32(6, 8),
            "positions": f32(4, 8), "types": None, "w": f32(8), "b": f32(8, scale=0.5),
        },
        lambda t, p, w, b: F.layer_norm(
            t[WORDS.astype(int)] + p[:3], (8,), w, b, 1e-5
        ),
        {"epsilon": 1e-5},
        outputs=("y", "mask"),
    ),
    Contrib(
        "GroupNorm",
        {"x": f32(2, 3, 4, 8), "w": f32(8), "b": f32(8, scale=0.5)},
        lambda x, w, b: F.silu(
            F.group_norm(x.permute(0, 3, 1, 2), 2, w, b, 1e-5)
        ).permute(0, 2, 3, 1),
        {"groups": 2, "activation": 1, "channels_last": 1},
    ),
]  # fmt: skip

OTHERS = [
    Contrib(
        "RelativePositionBias",
        {"table": f32(4, 2), "rows": np.array([3]), "keys": np.array([3])},
        # A key that is d before the query is in bucket d; later ones are in bucket 0.
        lambda t: t.reshape(2, 4)[:, [[0, 0, 0], [1, 0, 0], [2, 1, 0]]][None],
        {"max_distance": 8},
    ),
    Contrib(
        "FusedGemm",
        {"a": f32(5, 6), "b": f32(4, 6), "c": f32(4)},
        lambda a, b, c: F.elu(0.5 * a @ b.T + c, 0.7),
        {"transB": 1, "alpha": 0.5, "activation": "Elu", "activation_alpha": 0.7},
    ),
    Contrib(
        "CausalConvWithState",
        {"x": f32(2, 4, 7), "w": f32(4, 1, 3), "b": f32(4)},
        lambda x, w, b: F.conv1d(F.pad(x, (2, 0)), w, b, groups=4),
        {"activation": "none"},
        outputs=("y", "state"),
    ),
]
ALL = [*ROTARY, *GROUPED, *MULTI, *PROJECTED, *LINEAR, *QUANTIZED, *NORMS, *OTHERS]
IDS = [f"{c.op}{i}" for i, c in enumerate(ALL)]


@pytest.mark.parametrize("case", ALL, ids=IDS)
def test_as_torch(case: Contrib) -> None:
    names = case.names()
    made = gradient(case.model(), case.of, names, seeds=True)
    session = sardonyx.InferenceSession(made)
    feeds = {n: case.inputs[n] for n in names}
    tensors = [
        torch.tensor(x).double().requires_grad_()
        for n, x in case.inputs.items()
        if x is not None and x.dtype.kind == "f" and n not in case.fixed
    ]
    wanted = case.function(*tensors)
    rng = np.random.default_rng(4)
    seed = rng.standard_normal(wanted.shape).astype(np.float32)
    wanted.backward(torch.tensor(seed).double())
    # A sum of outputs has the seed of each; the second one counts twice.
    seeds = {f"{n}_grad": (i + 1) * seed for i, n in enumerate(case.of)}
    results = session.run([f"{n}_grad" for n in names], feeds | seeds)
    for name, found, tensor in zip(names, results, tensors, strict=True):
        size = float(tensor.grad.abs().max())
        np.testing.assert_allclose(
            found, tensor.grad.numpy(), 1e-4, 2e-5 * max(size, 1), err_msg=name
        )


def test_a_cache_that_is_not_empty_has_no_gradient() -> None:
    inputs = _gqa(f32(2, 5, 32)) | {"past_key": f32(2, 2, 3, 8), "past_value": f32(2, 2, 3, 8)}
    case = Contrib("GroupQueryAttention", inputs, lambda q: q, GQA)
    with pytest.raises(NotImplemented, match=r"(?s)cache past_key.*node.*hint.*`dims`"):
        gradient(case.model(), "y", ["query"], seeds=True)


def test_weights_of_many_rows_are_read_by_blocks() -> None:
    """More rows than are dequantized at a time, and rows that are left over."""
    n, k = 1100, 2048
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (n, k // 32, 16)).astype(np.uint8)
    steps = np.abs(f32(n, k // 32))
    sizes = {"K": k, "N": n, "block_size": 32}
    inputs: dict[str, Array | None] = {"x": f32(3, k), "w": codes, "scales": steps}
    model = Contrib("MatMulNBits", inputs, lambda x: x, sizes, fixed=("scales",)).model()
    session = sardonyx.InferenceSession(gradient(model, "y", ["x"], seeds=True))
    assert any(
        node.op.name == "Loop" for node in gradient(model, "y", ["x"], seeds=True).graph.nodes
    )
    seed = f32(3, n)
    (found,) = session.run(["x_grad"], {"x": inputs["x"], "y_grad": seed})
    unpacked = np.stack((codes & 15, codes >> 4), -1).reshape(n, k).astype(np.float64) - 8
    wanted = seed.astype(np.float64) @ (unpacked * np.repeat(steps, 32, 1))
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-3)


@pytest.mark.parametrize("case", [QUANTIZED[0], GROUPED[1], ROTARY[0]], ids=lambda c: c.op)
def test_scales_and_tables_are_not_trained_by_default(case: Contrib) -> None:
    """No initializer of these models is a weight."""
    with pytest.raises(InvalidArgument, match="depends on no initializer"):
        gradient(case.model(), "y", seeds=True)
