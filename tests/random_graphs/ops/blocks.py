"""Patterns as exporters write them: what passes look for, with small changes that they must see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops import images
from tests.random_graphs.ops.draw import image
from tests.random_graphs.ops.linear import WIDTHS, weight
from tests.random_graphs.value import DTYPES, Value

KINDS = ("float", "float", "float", "float16", "double")


def number(b: Builder, x: Value, value: float) -> Value:
    """A constant of x's type: a scalar, or a list of one."""
    shape = b.rng.choice(((), (), (1,)))
    data = np.full(shape, value).astype(x.data.dtype)
    return b.given(data, b.rng.choice(("initializer", "node")))


def do(b: Builder, op: str, *inputs: Value | None, **attrs: Any) -> Value:
    return b.emit(op, inputs, **attrs)[0]


def either(b: Builder, op: str, x: Value, y: Value) -> Value:
    """A commutative op with its operands in any order."""
    return do(b, op, x, y) if b.rng.random() < 0.6 else do(b, op, y, x)


def reduced(b: Builder, op: str, x: Value, axes: list[int], keep: int = 1) -> Value:
    if b.traits.opset < 11:
        axes = [a % x.rank for a in axes]
    return b.emit(op, [x], params={"axes": np.array(axes, np.int64)}, keepdims=keep)[0]


def rows(b: Builder) -> Value:
    return b.pick(
        KINDS[: b.rng.choice((1, 5))],
        lambda v: 1 < v.rank < 5 and v.shape[-1] > 1 and v.data.size > 1,
        lambda: b.new_shape(b.rng.choice((2, 3))),
    )


def layer_norm(b: Builder) -> None:
    x = rows(b)
    axes = [-1] if b.rng.random() < 0.8 else [x.rank - 1]
    mean = reduced(b, "ReduceMean", x, axes)
    off = do(b, "Sub", x, mean)
    if b.rng.random() < 0.5:
        square = do(b, "Pow", off, number(b, x, 2.0))
    else:
        square = do(b, "Mul", off, off)
    variance = reduced(b, "ReduceMean", square, axes)
    shifted = either(b, "Add", variance, number(b, x, b.rng.choice((1e-5, 1e-3))))
    normal = do(b, "Div", off, do(b, "Sqrt", shifted))
    if b.rng.random() < 0.8:
        normal = either(b, "Mul", normal, b.like(x, (x.shape[-1],), low=0.5, high=1.5))
    if b.rng.random() < 0.7:
        either(b, "Add", normal, b.like(x, (x.shape[-1],)))


def rms_norm(b: Builder) -> None:
    x = rows(b)
    square = do(b, "Pow", x, number(b, x, 2.0)) if b.rng.random() < 0.5 else do(b, "Mul", x, x)
    mean = reduced(b, "ReduceMean", square, [-1])
    root = do(b, "Sqrt", either(b, "Add", mean, number(b, x, b.rng.choice((1e-6, 1e-3)))))
    if b.rng.random() < 0.5:
        normal = do(b, "Div", x, root)
    else:
        normal = either(b, "Mul", x, do(b, "Reciprocal", root))
    either(b, "Mul", normal, b.like(x, (x.shape[-1],), low=0.5, high=1.5))


def gelu(b: Builder) -> None:
    x = rows(b)
    if b.rng.random() < 0.6:
        scaled = do(b, "Div", x, number(b, x, 2**0.5))
        inner = either(b, "Add", do(b, "Erf", scaled), number(b, x, 1.0))
    else:
        cube = do(b, "Pow", x, number(b, x, 3.0))
        inside = either(b, "Add", x, either(b, "Mul", cube, number(b, x, 0.044715)))
        bent = do(b, "Tanh", either(b, "Mul", inside, number(b, x, (2 / np.pi) ** 0.5)))
        inner = either(b, "Add", bent, number(b, x, 1.0))
    if b.rng.random() < 0.5:
        either(b, "Mul", either(b, "Mul", x, inner), number(b, x, 0.5))
    else:
        either(b, "Mul", either(b, "Mul", x, number(b, x, 0.5)), inner)


def swish(b: Builder) -> None:
    x = rows(b)
    kind = b.rng.randrange(3)
    if kind == 0:
        either(b, "Mul", x, do(b, "Sigmoid", x))
    elif kind == 1:
        either(b, "Mul", x, do(b, "Sigmoid", either(b, "Mul", x, number(b, x, 1.702))))
    else:
        shifted = either(b, "Add", x, number(b, x, 3.0))
        gate = (
            b.emit("Clip", [shifted, number_scalar(b, x, 0.0), number_scalar(b, x, 6.0)])[0]
            if b.traits.opset >= 11
            else b.emit("Clip", [shifted], min=0.0, max=6.0)[0]
        )
        do(b, "Div", either(b, "Mul", x, gate), number(b, x, 6.0))


def number_scalar(b: Builder, x: Value, value: float) -> Value:
    return b.given(np.asarray(value).astype(x.data.dtype), "initializer")


def softplus_mish(b: Builder) -> None:
    x = rows(b)
    either(b, "Mul", x, do(b, "Tanh", do(b, "Softplus", x)))


def dense(b: Builder) -> Value:
    """A product, what is added to it, and what follows."""
    x = rows(b)
    n = b.rng.choice(WIDTHS)
    y = do(b, "MatMul", x, weight(b, x, (x.shape[-1], n)))
    if b.rng.random() < 0.8:
        y = either(b, "Add", y, b.like(x, b.rng.choice(((n,), (1, n), (1,), y.shape))))
    for _ in range(b.rng.choice((0, 1, 1, 2))):
        y = follow(b, y)
    return y


def follow(b: Builder, y: Value) -> Value:
    op = b.rng.choice(("Relu", "Sigmoid", "Tanh", "Add", "Mul", "Sub", "Div", "Max", "LeakyRelu"))
    if op in ("Relu", "Sigmoid", "Tanh", "LeakyRelu"):
        return do(b, op, y)
    other = b.like(y, b.rng.choice((y.shape, y.shape[-1:], ())), low=0.5, high=1.5)
    return do(b, op, y, other) if b.rng.random() < 0.7 else do(b, op, other, y)


def convolution(b: Builder) -> None:
    """A convolution with normalization, addition and activation after it, and a Pad before it."""
    x = image(b, KINDS[:1])
    if b.rng.random() < 0.2 and b.traits.opset >= 11:
        pads = [0, 0, *(b.rng.randint(0, 2) for _ in x.shape[2:])]
        x = b.emit("Pad", [x], params={"pads": np.array(pads * 2, np.int64)})[0]
    attrs = images.windows(b, x)
    channels = x.shape[1]
    group = b.rng.choice([g for g in (1, 1, 1, channels) if channels % g == 0])
    filters = group * b.rng.choice((1, 2, 4, 8)) if group > 1 else b.rng.choice((1, 3, 8, 16, 17))
    inputs = [
        x,
        b.new(
            x.dtype,
            (filters, channels // group, *attrs["kernel_shape"]),
            -0.5,
            0.5,
            "initializer",
        ),
    ]
    if b.rng.random() < 0.5:
        inputs.append(b.new(x.dtype, (filters,), style="initializer"))
    y = b.emit("Conv", inputs, group=group, **attrs)[0]
    shape = (filters, *(1 for _ in y.shape[2:]))
    if b.rng.random() < 0.5:
        stats = [
            b.new(x.dtype, (filters,), lo, hi, "initializer")
            for lo, hi in ((0.5, 1.5), (-1, 1), (-1, 1), (0.3, 2))
        ]
        y = do(b, "BatchNormalization", y, *stats)
    elif b.rng.random() < 0.4:
        y = either(b, b.rng.choice(("Add", "Mul")), y, b.new(x.dtype, shape, style="initializer"))
    if b.rng.random() < 0.4:
        y = either(b, "Add", y, b.like(y, y.shape))
    if b.rng.random() < 0.7:
        y = do(b, b.rng.choice(("Relu", "Sigmoid", "LeakyRelu", "HardSigmoid", "Tanh")), y)
    if b.rng.random() < 0.2:
        either(b, "Mul", y, do(b, "Sigmoid", do(b, "GlobalAveragePool", y)))


def attention(b: Builder) -> None:
    """Heads split by reshapes and transposes, scores, scale, mask, softmax, values, and back."""
    batch, time, heads, width = (
        b.rng.choice((1, 2)),
        b.rng.choice((1, 3, 5, 17)),
        b.rng.choice((1, 2, 4)),
        b.rng.choice((1, 4, 8, 16)),
    )
    size = heads * width
    x = b.pick(["float"], lambda v: v.shape == (batch, time, size), (batch, time, size))
    split = np.array((0, 0, heads, width) if b.rng.random() < 0.5 else (batch, time, heads, width))
    parts = []
    for i in range(3):
        p = do(b, "MatMul", x, weight(b, x, (size, size)))
        if b.rng.random() < 0.5:
            p = either(b, "Add", p, b.like(x, (size,)))
        p = do(b, "Reshape", p, b.given(split, "initializer"))
        transposes_key = i == 1 and b.rng.random() < 0.5
        parts.append(do(b, "Transpose", p, perm=[0, 2, 3, 1] if transposes_key else [0, 2, 1, 3]))
        if i == 1 and not transposes_key:
            parts[1] = do(b, "Transpose", parts[1], perm=[0, 1, 3, 2])
    scores = do(b, "MatMul", parts[0], parts[1])
    scores = (
        do(b, "Div", scores, number(b, x, width**0.5))
        if b.rng.random() < 0.6
        else either(b, "Mul", scores, number(b, x, b.rng.choice((0.5, width**-0.5))))
    )
    if b.rng.random() < 0.5:
        shape = b.rng.choice(((batch, 1, 1, time), (1, 1, time, time), (time, time)))
        mask = np.where(b.numbers.random(shape) < 0.3, -10000.0, 0.0).astype(np.float32)
        mask[..., 0] = 0
        scores = either(b, "Add", scores, b.given(mask))
    weights = do(b, "Softmax", scores, axis=-1 if b.traits.opset >= 13 else 3)
    y = do(b, "Transpose", do(b, "MatMul", weights, parts[2]), perm=[0, 2, 1, 3])
    do(b, "Reshape", y, b.given(np.array((0, 0, size)), "initializer"))


def sizes(b: Builder) -> None:
    """Arithmetic on shapes that ends in a Reshape, an Expand or a Slice."""
    x = b.pick(
        ("float", "int64", "float16"),
        lambda v: 1 < v.rank < 5 and v.data.size > 0,
        lambda: b.new_shape(3),
    )
    shape = do(b, "Shape", x)
    at = b.rng.randrange(x.rank)
    one = do(b, "Gather", shape, b.given(np.array(b.rng.choice((at, [at]))), "initializer"), axis=0)
    if one.rank == 0:
        one = b.emit("Unsqueeze", [one], params={"axes": np.array([0])})[0]
    kind = b.rng.randrange(3)
    if kind == 0:
        rest = b.given(np.array([-1]), "initializer")
        do(b, "Reshape", x, b.emit("Concat", [one, rest], axis=0)[0])
    elif kind == 1:
        y = b.new(x.dtype, (1,))
        do(b, "Expand", y, shape)
    else:
        half = do(b, "Div", one, b.given(np.array([2]), "initializer"))
        if b.traits.opset < 10:
            raise Unfit("slices had attributes then")
        zero, where = b.given(np.array([0]), "initializer"), b.given(np.array([at]), "initializer")
        do(b, "Slice", x, zero, half, where)


def transposed(b: Builder) -> None:
    """Transposes that meet elementwise nodes, products and each other."""
    x = rows(b)
    perm = b.rng.sample(range(x.rank), x.rank)
    y = do(b, "Transpose", x, perm=perm)
    for _ in range(b.rng.choice((0, 1, 2))):
        y = follow(b, y)
    if b.rng.random() < 0.5:
        y = do(b, "Transpose", y, perm=b.rng.sample(range(x.rank), x.rank))
    if b.rng.random() < 0.5:
        do(b, "MatMul", y, weight(b, x, (y.shape[-1], b.rng.choice(WIDTHS))))


def quantized(b: Builder, x: Value, kind: str) -> Value:
    """Through QuantizeLinear and DequantizeLinear."""
    scale = b.given(np.array(b.rng.choice((0.01, 0.02, 0.05)), np.float32), "initializer")
    zero = b.given(
        np.array(b.rng.choice((0, 3, 128 if kind == "uint8" else -5)), DTYPES[kind]), "initializer"
    )
    q = do(b, "QuantizeLinear", x, scale, zero)
    return do(b, "DequantizeLinear", q, scale, zero)


def qdq(b: Builder) -> None:
    """A product, a convolution or an addition between quantizers."""
    if b.traits.opset < 10:
        raise Unfit("no quantizers then")
    kind = b.rng.choice(("uint8", "int8"))
    what = b.rng.choice(("MatMul", "Conv", "Add", "Gemm", "GlobalAveragePool", "Relu"))
    if what in ("Conv", "GlobalAveragePool"):
        x = image(b, ["float"], (2,))
    else:
        x = b.pick(["float"], lambda v: v.rank == 2 and 0 not in v.shape, lambda: b.new_shape(2))
    inputs = [quantized(b, x, kind)]
    attrs: dict[str, Any] = {}
    if what == "Add":
        inputs.append(quantized(b, b.like(x, x.shape), kind))
    elif what in ("MatMul", "Gemm"):
        inputs.append(_weights(b, (x.shape[-1], b.rng.choice(WIDTHS)), 1))
    elif what == "Conv":
        attrs = images.windows(b, x)
        shape = (b.rng.choice((1, 4, 16)), x.shape[1], *attrs["kernel_shape"])
        inputs.append(_weights(b, shape, 0))
    y = b.emit(what, inputs, **attrs)[0]
    if b.rng.random() < 0.4 and what != "Relu":
        y = do(b, "Relu", y)
    if b.rng.random() < 0.8:
        quantized(b, y, kind)


def _weights(b: Builder, shape: tuple[int, ...], axis: int) -> Value:
    q = b.new(b.rng.choice(("int8", "int8", "uint8")), shape, style="initializer")
    n = shape[axis] if b.rng.random() < 0.5 and b.traits.opset >= 13 else 0
    scale = b.given(
        np.asarray(b.numbers.uniform(0.02, 0.1, (n,) if n else ()), np.float32), "initializer"
    )
    zeros = np.zeros((n,) if n else (), q.data.dtype)
    zero = b.given(zeros + (0 if q.dtype == "int8" else 8), "initializer")
    return do(b, "DequantizeLinear", q, scale, zero, axis=axis if n else None)


def dynamic(b: Builder) -> None:
    """The product of 8-bit integers as quantizers of models write it."""
    if b.traits.opset < 11:
        raise Unfit("no DynamicQuantizeLinear then")
    x = b.pick(["float"], lambda v: 1 < v.rank < 4 and 0 not in v.shape, lambda: b.new_shape(2))
    q, scale, zero = b.emit("DynamicQuantizeLinear", [x], 3)
    n = b.rng.choice(WIDTHS)
    w = b.new(b.rng.choice(("int8", "uint8")), (x.shape[-1], n), style="initializer")
    inputs = [q, w, zero]
    if b.rng.random() < 0.5:
        inputs.append(b.new(w.dtype, (), 0, 9, "initializer"))
    product = do(b, "Cast", do(b, "MatMulInteger", *inputs), to=1)
    factor = either(b, "Mul", scale, number(b, x, 0.05))
    y = either(b, "Mul", product, factor)
    if b.rng.random() < 0.5:
        either(b, "Add", y, b.like(x, (n,)))


def embedding(b: Builder) -> None:
    n, width = b.rng.choice((3, 10)), b.rng.choice((4, 8, 33))
    table = b.new("float", (n, width), style="initializer")
    ids = b.new(b.rng.choice(("int64", "int32")), b.new_shape(b.rng.choice((1, 2))), 0, n - 1)
    h = do(b, "Gather", table, ids)
    if b.rng.random() < 0.5:
        h = either(b, "Add", h, b.like(h, h.shape[-2:]))
    if b.rng.random() < 0.5:
        transposed_table = do(b, "Transpose", table, perm=[1, 0])
        do(b, "MatMul", h, transposed_table)


def chain(b: Builder) -> None:
    """A long run of elementwise nodes that all meet again."""
    x = rows(b)
    y = x
    for _ in range(b.rng.randint(3, 9)):
        y = follow(b, y)
        if b.rng.random() < 0.2:
            y = either(b, "Add", y, x) if y.shape == x.shape else y


def rotary(b: Builder) -> None:
    batch, time, heads, width = 1, b.rng.choice((1, 5)), b.rng.choice((1, 2)), b.rng.choice((4, 8))
    shape = (batch, heads, time, width)
    x = b.pick(["float"], lambda v: v.shape == shape, shape)
    cos, sin = b.new("float", (time, width), -1, 1), b.new("float", (time, width), -1, 1)
    if b.traits.opset < 13:
        raise Unfit("splits had attributes then")
    left, right = b.emit("Split", [x], 2, params={"split": np.array([width // 2] * 2)}, axis=-1)
    half = b.emit("Concat", [do(b, "Neg", right), left], axis=-1)[0]
    either(b, "Add", either(b, "Mul", x, cos), either(b, "Mul", half, sin))


BLOCKS: tuple[Callable[[Builder], Any], ...] = (
    layer_norm, rms_norm, gelu, swish, softplus_mish, dense, dense, convolution, convolution,
    convolution, attention, attention, sizes, transposed, transposed, qdq, qdq, dynamic, embedding,
    chain, rotary,
)  # fmt: skip
