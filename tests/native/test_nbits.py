"""Matmuls with n-bit weights by their kernels: every way they are stored, on every ISA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx._native as native
from sardonyx.graph.const import pack
from sardonyx.graph.dtype import F32, by_name, by_numpy
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.ops.elementwise.chain import Instruction
from sardonyx.ops.nbits.internal import dequantized_weights
from sardonyx.place.lowered import Call
from sardonyx.providers.cpu import lowered
from tests.kernels import run_splits

Array = np.ndarray[Any, np.dtype[Any]]
BF16 = ml_dtypes.bfloat16
REALS = {"f32": np.float32, "f16": np.float16, "bf16": BF16}


@dataclass(frozen=True)
class Form:
    """Weights [k, n] and how they are stored."""

    k: int
    n: int
    bits: int = 4
    block: int = 32
    layout: str = "ms"  # com.microsoft, "kn" or "nk"
    signed: bool = False
    zero: str = "packed"  # "none", or the name of a float type
    scale: str = "f32"
    grid: str = "block"  # "column", "one"
    level: int = 0

    @property
    def blocks(self) -> int:
        return -(-self.k // self.block)

    def made(self, seed: int = 0) -> tuple[list[Array | None], dict[str, Any]]:
        """q, scale and zero, and the attributes of the node."""
        rng = np.random.default_rng([seed, self.k, self.n, self.bits, self.block])
        half = 1 << (self.bits - 1)
        low, high = (-half, half) if self.signed else (0, 2 * half)
        width = self.blocks * self.block if self.layout == "ms" else self.k
        q = rng.integers(low, high, (self.n, width))
        shape = {"block": (self.n, self.blocks), "column": (self.n, 1), "one": (1, 1)}[self.grid]
        zeros: Array = rng.integers(low, high, shape)
        scale = rng.uniform(-0.1, 0.2, shape).astype(REALS[self.scale])
        attrs = {
            "K": self.k, "N": self.n, "bits": self.bits, "block_size": self.block,
            "k_major": int(self.layout == "kn"), "signed": int(self.signed), "level": self.level,
            "zero_default": 0 if self.signed else half,
        }  # fmt: skip
        return [self._steps(q), self._laid(scale), self._zeros(zeros)], attrs

    @property
    def _type(self) -> Any:
        return by_name(f"{'i' if self.signed else 'u'}{self.bits}")

    def _laid(self, array: Array) -> Array:
        return np.ascontiguousarray(array.T) if self.layout == "kn" else array

    def _steps(self, q: Array) -> Array:
        if self.layout != "ms":
            return self._laid(q.astype(self._type.np))
        raw = np.frombuffer(pack(q.astype(self._type.np), self._type), np.uint8)
        return raw.reshape(self.n, self.blocks, self.block * self.bits // 8)

    def _zeros(self, zeros: Array) -> Array | None:
        if self.zero == "none":
            return None
        if self.zero != "packed":
            return self._laid((zeros + 0.25).astype(REALS[self.zero]))
        if self.layout != "ms":
            return self._laid(zeros.astype(self._type.np))
        rows = [pack(row.astype(self._type.np), self._type) for row in zeros]
        return np.frombuffer(b"".join(rows), np.uint8).reshape(
            self.n, -(-self.blocks * self.bits // 8)
        )


def node_of(x: Array, form: Form, *operands: Array, **attrs: Any) -> tuple[Node, list[Any]]:
    stored, made = form.made()
    graph = Graph()
    build = Builder(graph, graph.scope)
    values: list[Value | None] = [_value("x", x)]
    values += [None if a is None else build.const(a) for a in stored]
    values += [_value(f"o{i}", a) for i, a in enumerate(operands)]
    node = build.node("MatMulNBits", *values, domain=INTERNAL, **made, **attrs)
    return node, [x, *stored, *operands]


def _value(name: str, array: Array) -> Value:
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    return Value(name, Fact(dtype, array.shape))


def results(node: Node, arrays: list[Any]) -> dict[str, Array]:
    """Run the kernel on every ISA."""
    call = lowered(node)
    assert isinstance(call, Call), call
    values = {v: a for v, a in zip(node.inputs, arrays, strict=True) if v is not None}
    return {isa: run_splits(call, node, values, isa)[0] for isa in native.isas}


def rounded(x: Array, form: Form) -> Array:
    """x as level 4 may see it: each block in 127 steps either way."""
    block = min(form.block, 256) if form.grid == "block" else 64
    n_blocks = -(-form.k // block)
    width = n_blocks * block
    blocks = np.zeros((*x.shape[:-1], width), np.float64)
    blocks[..., : form.k] = x.astype(np.float64)
    blocks = blocks.reshape(*x.shape[:-1], n_blocks, block)
    step = np.abs(blocks).max(-1, keepdims=True) / 127
    return np.asarray(step).repeat(block, -1).reshape(*x.shape[:-1], width)[..., : form.k]


def check(x: Array, form: Form) -> None:
    """Against float64, with the error that the type of x and the level allow."""
    node, arrays = node_of(x, form)
    _, q, scale, zero = arrays
    w = dequantized_weights(q, scale, zero, node.attrs).astype(np.float64)
    wide = x.astype(np.float64)
    expected = wide @ w
    tolerance = np.abs(wide) @ np.abs(w) * 2e-6 + 1e-30
    if form.level == 4:  # half a step of x, of which errors add up as random ones do
        tolerance += 5 * np.sqrt((rounded(x, form) * 0.5) ** 2 @ w**2)
    if x.dtype != np.float32:
        tolerance += np.abs(expected) * (2**-7 if x.dtype == BF16 else 2**-10)
    for isa, y in results(node, arrays).items():
        assert y.dtype == x.dtype
        assert y.shape == expected.shape
        worst = (np.abs(y.astype(np.float64) - expected) / tolerance).max(initial=0)
        assert worst <= 1, (isa, worst)


def rows(*shape: int, dtype: Any = np.float32) -> Array:
    """Numbers of which some blocks are much larger than others."""
    rng = np.random.default_rng(sum(shape))
    size = np.exp(rng.normal(size=(*shape[:-1], 1)) + rng.normal(size=shape) * 0.3)
    return (rng.normal(size=shape) * size).astype(dtype)


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (4, 256), (8, 32), (8, 128)])
@pytest.mark.parametrize("zero", ["packed", "none"])
def test_onnxruntime_agrees(bits: int, block: int, zero: str) -> None:
    form, x = Form(512, 40, bits=bits, block=block, zero=zero), rows(3, 512)
    node, arrays = node_of(x, form)
    names = ["x", "q", "s", "z"][: 3 if zero == "none" else 4]
    made = helper.make_node(
        "MatMulNBits", names, ["y"], domain="com.microsoft", K=form.k, N=form.n, bits=bits,
        block_size=block,
    )  # fmt: skip
    graph = helper.make_graph(
        [made],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, n) for a, n in zip(arrays[1:], names[1:], strict=False)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x})
    for isa, y in results(node, arrays).items():
        assert np.allclose(y, expected, rtol=1e-4, atol=1e-4), isa


LEVELS = [0, 4]
COUNTS = [1, 2, 3, 5, 17, 64, 200]
FORMS = {
    "4 bits": Form(160, 70),
    "4 bits, long": Form(1056, 40),
    "4 bits, one block": Form(32, 3),
    "4 bits, blocks of 16": Form(176, 37, block=16),
    "4 bits, blocks of 64": Form(320, 33, block=64),
    "4 bits, blocks of 128": Form(640, 33, block=128),
    "4 bits, blocks of 256": Form(512, 17, block=256),
    "4 bits, a part of a block": Form(77, 9),
    "4 bits, a part of a large block": Form(300, 9, block=128),
    "4 bits, default zero": Form(96, 20, zero="none"),
    "4 bits, real zeros": Form(96, 20, zero="f32"),
    "4 bits, half zeros": Form(96, 20, zero="f16"),
    "4 bits, half scales": Form(160, 20, scale="f16"),
    "4 bits, brain scales": Form(160, 20, scale="bf16"),
    "8 bits": Form(160, 21, bits=8),
    "8 bits, blocks of 16": Form(48, 21, bits=8, block=16),
    "8 bits, blocks of 128": Form(256, 21, bits=8, block=128),
    "8 bits, default zero": Form(96, 21, bits=8, zero="none"),
    "2 bits": Form(288, 21, bits=2),
    "2 bits, blocks of 16": Form(176, 21, bits=2, block=16),
    "2 bits, blocks of 256": Form(512, 21, bits=2, block=256),
    "k first": Form(160, 140, layout="kn"),
    "k first, long": Form(1088, 40, layout="kn"),
    "k first, wide": Form(64, 4200, layout="kn"),
    "k first, 8 bits, very wide": Form(32, 8300, bits=8, layout="kn"),
    "k first, blocks of 16": Form(80, 130, block=16, layout="kn"),
    "k first, blocks of 128": Form(384, 66, block=128, layout="kn"),
    "k first, signed": Form(96, 200, layout="kn", signed=True),
    "k first, signed, no zero": Form(96, 64, layout="kn", signed=True, zero="none"),
    "k first, odd": Form(96, 131, layout="kn"),
    "k first, real zeros": Form(96, 40, layout="kn", zero="f32"),
    "k first, half scales": Form(96, 40, layout="kn", scale="f16"),
    "k first, columns": Form(100, 40, block=100, layout="kn", grid="column"),
    "k first, one scale": Form(100, 40, block=100, layout="kn", grid="one"),
    "k first, 8 bits": Form(160, 150, bits=8, layout="kn", signed=True),
    "k first, 8 bits, columns": Form(77, 150, bits=8, block=77, layout="kn", grid="column"),
    "k first, 8 bits, odd": Form(64, 131, bits=8, layout="kn"),
    "k first, 2 bits": Form(96, 264, bits=2, layout="kn", signed=True),
    "k first, 2 bits, odd": Form(64, 131, bits=2, layout="kn"),
    "k first, a part of a block": Form(50, 66, layout="kn"),
    "k first, odd blocks": Form(60, 66, block=20, layout="kn"),
    "k last": Form(160, 37, layout="nk"),
    "k last, odd": Form(131, 37, block=131, layout="nk", grid="column"),
    "k last, signed": Form(128, 21, layout="nk", signed=True),
    "k last, 8 bits, columns": Form(200, 37, bits=8, block=200, layout="nk", grid="column"),
    "k last, 8 bits, signed, one scale": Form(
        72, 37, bits=8, block=72, layout="nk", grid="one", signed=True
    ),
    "k last, 2 bits": Form(128, 37, bits=2, layout="nk"),
    "k last, a part of a block": Form(50, 37, layout="nk"),
    "k last, odd blocks": Form(60, 37, block=12, layout="nk"),
    "nothing": Form(0, 9, layout="kn", block=1, grid="column"),
    "no columns": Form(32, 0),
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("m", [1, 2, 19])
@pytest.mark.parametrize("name", FORMS)
def test_forms(name: str, m: int, level: int) -> None:
    form = Form(**{**FORMS[name].__dict__, "level": level})
    check(rows(m, form.k), form)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("m", [0, *COUNTS])
@pytest.mark.parametrize("layout", ["ms", "kn"])
def test_any_number_of_rows(layout: str, m: int, level: int) -> None:
    check(rows(m, 288), Form(288, 150, layout=layout, level=level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("m", [1, 3, 9])
@pytest.mark.parametrize("layout", ["ms", "kn"])
def test_halves(layout: str, m: int, dtype: str, level: int) -> None:
    form = Form(160, 70, layout=layout, scale=dtype, level=level)
    check(rows(m, 160, dtype=REALS[dtype]), form)


@pytest.mark.parametrize("shape", [(160,), (2, 3, 160), (2, 0, 160), (1, 1, 1, 160)])
@pytest.mark.parametrize("layout", ["ms", "kn", "nk"])
def test_stacks(layout: str, shape: tuple[int, ...]) -> None:
    check(rows(*shape), Form(160, 40, layout=layout))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("m", [1, 4, 30])
@pytest.mark.parametrize("layout", ["ms", "kn"])
def test_bias(layout: str, m: int, level: int) -> None:
    form, bias = Form(96, 70, layout=layout, level=level), rows(70)
    add = Instruction(("", "Add"), (0, 1), F32)
    plain = results(*node_of(rows(m, 96), form))
    found = results(*node_of(rows(m, 96), form, bias, code=(add,)))
    for isa, y in found.items():
        assert np.array_equal(y, plain[isa] + bias), isa


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("m", [1, 3, 20])
@pytest.mark.parametrize("layout", ["ms", "kn", "nk"])
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity(odd: float, layout: str, m: int, level: int) -> None:
    """Rows that hold none are as defined, all others as they were."""
    form, x = Form(160, 40, layout=layout, level=level), rows(m, 160)
    before = results(*node_of(x, form))
    x[m // 2, 35] = odd
    node, arrays = node_of(x, form)
    with np.errstate(all="ignore"):
        (expected,) = node.op.run(arrays, node.attrs)
    for isa, y in results(node, arrays).items():
        assert np.array_equal(y[m // 2], expected[m // 2], equal_nan=True), isa
        rest = np.arange(m) != m // 2
        assert np.array_equal(y[rest], before[isa][rest]), isa


@pytest.mark.parametrize("form", [
    Form(96, 20), Form(96, 20, zero="none"), Form(256, 20, block=128), Form(256, 20, bits=2),
    Form(96, 20, bits=8), Form(96, 20, layout="kn"), Form(256, 20, block=128, layout="kn"),
    Form(96, 20, bits=2, layout="kn", signed=True),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("small", [1e-9, 1e-3, 0.4])
def test_one_large_number_in_a_block(small: float, m: int, form: Form) -> None:
    """The others keep what is more than 2^-23 of it."""
    rng = np.random.default_rng(m)
    x = (rng.normal(size=(m, form.k)) * small).astype(np.float32)
    x[:, 5 :: form.block] = 1000 * rng.uniform(-1, 1, x[:, 5 :: form.block].shape)
    node, arrays = node_of(x, form)
    w = dequantized_weights(arrays[1], arrays[2], arrays[3], node.attrs).astype(np.float64)
    largest = np.abs(x).astype(np.float64).reshape(m, -1, form.block).max(-1)
    steps = largest @ np.abs(w).reshape(-1, form.block, form.n).sum(1) * 2**-23
    tolerance = steps + np.abs(x).astype(np.float64) @ np.abs(w) * 2e-6
    for isa, y in results(node, arrays).items():
        assert (np.abs(y - x.astype(np.float64) @ w) <= tolerance).all(), isa


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("layout", ["ms", "kn"])
@pytest.mark.parametrize("x", [0.0, 1e-42, 1e-33, 1e-25, 1e30, -1e35])
def test_extreme_numbers(x: float, layout: str, level: int) -> None:
    form = Form(64, 20, layout=layout, level=level)
    node, arrays = node_of(np.full((1, 64), x, np.float32), form)
    with np.errstate(all="ignore"):
        (expected,) = node.op.run(arrays, node.attrs)
    for isa, y in results(node, arrays).items():
        assert np.allclose(y, expected, rtol=1e-2, atol=1e-36), isa


def test_weights_that_are_not_constant_have_no_kernel() -> None:
    stored, made = Form(64, 8).made()
    graph = Graph()
    build = Builder(graph, graph.scope)
    values = [
        _value("x", rows(2, 64)),
        *(_value(f"w{i}", a) for i, a in enumerate(stored) if a is not None),
    ]
    node = build.node("MatMulNBits", *values, domain=INTERNAL, **made)
    assert "not constant" in str(lowered(node))
