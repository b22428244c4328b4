"""Nodes that work element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops.draw import Generator, broadcastable, partner, types
from tests.random_graphs.value import DTYPES, FOREIGN, INTS, Value, is_float


def unary(b: Builder, op: str) -> None:
    b.emit(op, [b.pick(types(b, op))])


def bounded(low: float, high: float) -> Generator:
    """A unary op that is defined on a range; what is outside comes rarely."""

    def generate(b: Builder, op: str) -> None:
        def inside(v: Value) -> bool:
            numbers = np.asarray(v.data, np.float64)
            return bool(np.all((numbers >= low) & (numbers <= high)))

        b.emit(op, [b.pick(types(b, op), inside, low=low, high=high)])

    return generate


def with_attrs(**choices: Any) -> Generator:
    """A unary op with attributes, each left out now and then."""

    def generate(b: Builder, op: str) -> None:
        attrs = {k: b.rng.choice(v) for k, v in choices.items() if b.rng.random() < 0.7}
        b.emit(op, [b.pick(types(b, op))], **attrs)

    return generate


def binary(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    y = partner(b, x)
    b.emit(op, [x, y] if b.rng.random() < 0.5 else [y, x])


def divide(b: Builder, op: str) -> None:
    x = b.pick([t for t in types(b, op) if t not in FOREIGN or t == "bfloat16"])
    attrs = {}
    if op == "Mod":
        attrs["fmod"] = 1 if is_float(x.dtype) else b.rng.randrange(2)
    if not is_float(x.dtype) and b.traits.is_wild and np.any(x.data == np.iinfo(x.data.dtype).min):
        raise Unfit("the least integer by -1 faults")
    low, high = (0.5, 4.0) if is_float(x.dtype) else (1, 7)
    y = b.new(x.dtype, broadcastable(b.rng, x.shape), low, high)
    b.emit(op, [x, y], **attrs)


def power(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    seconds = types(b, op, "T1") if b.traits.opset >= 12 else (x.dtype,)
    kinds = [t for t in seconds if t in DTYPES]
    kind = b.rng.choice(kinds)
    exponent = b.rng.choice((2.0, 3.0, 0.5, 1.0, 0.0, -1.0) if is_float(kind) else (0, 1, 2, 3))
    if not is_float(x.dtype):
        exponent = abs(int(exponent))
    shape = () if b.rng.random() < 0.6 else broadcastable(b.rng, x.shape)
    y = b.new(kind, shape, exponent, exponent)
    b.emit(op, [x, y])


def variadic(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    others = [partner(b, x) for _ in range(b.rng.choice((0, 1, 1, 1, 2, 3)))]
    values = [x, *others]
    b.rng.shuffle(values)
    b.emit(op, values)


def compare(b: Builder, op: str) -> None:
    letter = "T"
    x = b.pick(types(b, op, letter))
    b.emit(op, [x, partner(b, x)])


def logical(b: Builder, op: str) -> None:
    x = b.pick(["bool"])
    b.emit(op, [x, partner(b, x)])


def shift(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    y = b.new(x.dtype, broadcastable(b.rng, x.shape), 0, 7)
    b.emit(op, [x, y], direction=b.rng.choice(("LEFT", "RIGHT")))


def where(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    y = partner(b, x)
    shape = np.broadcast_shapes(x.shape, y.shape)
    condition = b.pick(["bool"], lambda v: v.shape == shape, lambda: broadcastable(b.rng, shape))
    b.emit(op, [condition, x, y])


def clip(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    low = None if b.rng.random() < 0.3 else b.rng.choice((-1, 0, 1))
    high = None if b.rng.random() < 0.3 else b.rng.choice((1, 2, 6))
    if b.traits.opset < 11:
        b.emit(op, [x], min=low, max=high)
        return
    if x.dtype.startswith("u") and low is not None:
        low = abs(low)
    bounds = [None if v is None else b.new(x.dtype, (), v, v) for v in (low, high)]
    b.emit(op, [x, *bounds])


def prelu(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    shape = broadcastable(b.rng, x.shape)[-x.rank :] if x.rank else ()
    if np.broadcast_shapes(shape, x.shape) != x.shape:
        raise Unfit("the slope broadcasts one way only")
    b.emit(op, [x, b.like(x, shape)])


def is_inf(b: Builder, op: str) -> None:
    b.emit(
        op, [b.pick(types(b, op, "T1"))],
        detect_negative=b.rng.randrange(2), detect_positive=b.rng.randrange(2),
    )  # fmt: skip


def is_nan(b: Builder, op: str) -> None:
    b.emit(op, [b.pick(types(b, op, "T1"))])


def cast(b: Builder, op: str) -> None:
    sources = [t for t in types(b, op, "T1") if t != "string"]
    x = b.pick(sources)
    targets = [t for t in types(b, op, "T2") if t not in ("string", x.dtype)]
    to = b.rng.choice([t for t in b.traits.dtypes if t in targets] * 2 + targets)
    if not _castable(x, to):
        raise Unfit("out of range: what comes out is undefined")
    number = _number(to)
    b.emit(op, [x], to=number, saturate=0 if b.rng.random() < 0.2 else None)


def cast_like(b: Builder, op: str) -> None:
    x = b.pick([t for t in types(b, op, "T1") if t != "string"])
    like = b.pick([t for t in types(b, op, "T2") if t != "string"])
    if not _castable(x, like.dtype):
        raise Unfit("out of range: what comes out is undefined")
    b.emit(op, [x, like])


def _castable(x: Value, to: str) -> bool:
    if to == "bool" or is_float(to) or not x.data.size:
        return True
    numbers = x.data.astype(np.float64)
    if not np.all(np.isfinite(numbers)):
        return False
    if not is_float(x.dtype):
        return to not in ("int4", "uint4") or bool(np.all((numbers >= 0) & (numbers < 8)))
    if to in ("int4", "uint4"):
        return False
    info = np.iinfo(DTYPES[to])
    return bool(np.all((numbers > float(info.min)) & (numbers < float(info.max))))


def _number(dtype: str) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype]))) if dtype != "string" else 8


def bit_cast(b: Builder, op: str) -> None:
    x = b.pick([t for t in types(b, op, "T1") if t in INTS or t in ("float", "double")])
    same = [
        t for t in types(b, op, "T2")
        if t in INTS and np.dtype(DTYPES[t]).itemsize == x.data.dtype.itemsize
    ]  # fmt: skip
    if same:
        b.emit(op, [x], to=_number(b.rng.choice(same)))


_UNARY = (
    "Abs Neg Ceil Floor Round Sign Exp Tanh Sigmoid Atan Sin Cos Sinh Cosh Asinh Erf Tan Not "
    "BitwiseNot Relu HardSwish Softplus Softsign Mish Identity Identity Selu"
)
OPS: dict[str, Generator] = {
    **dict.fromkeys(_UNARY.split(), unary),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), bounded(-0.99, 0.99)),
    **dict.fromkeys(("Sqrt", "Log", "Reciprocal"), bounded(0.05, 100)),
    "Acosh": bounded(1.01, 100),
    "LeakyRelu": with_attrs(alpha=(0.2, 0.01, -0.5, 1.5, 0.0)),
    "Elu": with_attrs(alpha=(0.5, 1.0, 2.0)),
    "Celu": with_attrs(alpha=(0.5, 1.0, 2.0)),
    "ThresholdedRelu": with_attrs(alpha=(0.5, 1.0, -0.5)),
    "HardSigmoid": with_attrs(alpha=(0.2, 0.5, 1 / 6), beta=(0.5, 0.3, 0.0)),
    "Shrink": with_attrs(lambd=(0.5, 0.1), bias=(0.0, 0.3)),
    "Swish": with_attrs(alpha=(0.5, 1.0, 1.702)),
    "Gelu": with_attrs(approximate=("none", "tanh")),
    **dict.fromkeys(("Add", "Sub", "Mul", "BitwiseAnd", "BitwiseOr", "BitwiseXor"), binary),
    **dict.fromkeys(("Div", "Mod"), divide),
    "Pow": power,
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), variadic),
    **dict.fromkeys(("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"), compare),
    **dict.fromkeys(("And", "Or", "Xor"), logical),
    "BitShift": shift,
    "Where": where,
    "Clip": clip,
    "PRelu": prelu,
    "IsInf": is_inf,
    "IsNaN": is_nan,
    "Cast": cast,
    "CastLike": cast_like,
    "BitCast": bit_cast,
}
