"""Shape arithmetic as exporters write it: one function per kind of step, in a table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.shape_graphs.maker import N_RUNS, Maker, ShapeGraph

FAR = (2**31 - 1, 2**63 - 1)
NUMBERS = (-3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 8)
INT64, INT32, FLOAT, BOOL, DOUBLE = (
    TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.DOUBLE,
)  # fmt: skip


class NoneFits(Exception):
    """There is no value yet that a step could take."""


def _some(m: Maker, kinds: str, ranks: tuple[int, ...] = (0, 1)) -> str:
    found = m.pool(kinds, ranks)
    if not found:
        raise NoneFits
    return m.random.choice(found)


def _number(m: Maker, like: str) -> str:
    """A constant of a value's type: a scalar, or a vector of one."""
    number = m.random.choice(NUMBERS)
    return m.const(m.random.choice((number, [number])), m.values[like][0].dtype)


def _alike(m: Maker, x: str) -> str:
    """Another value of the same type, or a constant."""
    dtype = m.values[x][0].dtype
    found = [n for n in m.pool(dtype.kind, (0, 1)) if m.values[n][0].dtype == dtype]
    return m.random.choice(found) if found and m.random.random() < 0.6 else _number(m, x)


def _shape(m: Maker) -> None:
    x = _some(m, "fib", (0, 1, 2, 3, 4))
    if m.random.random() < 0.25:
        m.op("Size", x)
        return
    attrs = {}
    if m.random.random() < 0.3:
        attrs["start"] = m.random.choice((-2, -1, 0, 1))
    if m.random.random() < 0.3:
        attrs["end"] = m.random.choice((-1, 1, 2, 3))
    m.op("Shape", x, **attrs)


def _pick(m: Maker) -> None:
    x = _some(m, "ib", (1,))
    index = m.random.choice((-2, -1, 0, 1, 2))
    at = m.const(m.random.choice((index, [index])))
    made = m.op("Gather", x, at, axis=m.random.choice((0, -1)))
    if made is not None and m.random.random() < 0.4:
        m.op("Unsqueeze" if m.values[made][0].ndim == 0 else "Squeeze", made, m.const([0]))


def _gather_some(m: Maker) -> None:
    x = _some(m, "ib", (1,))
    m.op(
        "Gather",
        x,
        m.const([m.random.choice((-1, 0, 1, 2)) for _ in range(m.random.randint(0, 3))]),
    )


def _cut(m: Maker) -> None:
    x = _some(m, "ib", (1,))
    start, end = m.random.choice((-3, -1, 0, 1)), m.random.choice((-1, 1, 2, 3, *FAR))
    step = m.random.choice((1, 1, 1, 2, -1))
    if step < 0:
        start, end = m.random.choice((-1, *FAR)), m.random.choice((-(2**63), -(2**31), -3, 0))
    inputs = [m.const([start]), m.const([end])]
    if step != 1 or m.random.random() < 0.5:
        inputs.append(m.const([m.random.choice((0, -1))]))
    if len(inputs) == 3 and (step != 1 or m.random.random() < 0.3):
        inputs.append(m.const([step]))
    m.op("Slice", x, *inputs)


def _join(m: Maker) -> None:
    x = _some(m, "i", (1,))
    dtype = m.values[x][0].dtype
    parts = [x]
    for _ in range(m.random.randint(0, 3)):
        y = _some(m, "i")
        if m.values[y][0].dtype != dtype:
            continue
        if m.values[y][0].ndim == 0:
            y = m.op("Unsqueeze", y, m.const([0])) or x
        parts.append(y)
    if m.random.random() < 0.4:
        parts.insert(m.random.randint(0, len(parts)), m.const([m.random.choice((-1, 1, 2))], dtype))
    m.op("Concat", *parts, axis=0)


def _binary(m: Maker) -> None:
    x = _some(m, "i")
    y = _alike(m, x)
    kind = m.random.choice(("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Pow"))
    attrs: dict[str, Any] = {}
    if kind == "Mod" and m.random.random() < 0.5:
        attrs["fmod"] = 1
    if kind == "Pow":
        y = m.const(m.random.choice((1, 2)), m.random.choice((np.int64, np.float32)))
    elif m.random.random() < 0.4:
        x, y = y, x
    if kind in ("Div", "Mod") and any((a == 0).any() for a in m.values[y]):
        return
    m.op(kind, x, y, **attrs)


def _unary(m: Maker) -> None:
    m.op(m.random.choice(("Neg", "Neg", "Abs", "Sign", "Identity")), _some(m, "i"))


def _function(m: Maker) -> None:
    x = _some(m, "i")
    if m.values[x][0].dtype == np.int64:
        m.op(m.random.choice(("Same", "Twice", "Half")), x)


def _float_detour(m: Maker) -> None:
    """Cast to float, a little arithmetic as interpolate does it, and back."""
    x = _some(m, "i")
    kind = m.random.choice((FLOAT, FLOAT, DOUBLE))
    dtype = np.float32 if kind == FLOAT else np.float64
    y = m.op("Cast", x, to=kind)
    if y is not None and m.random.random() < 0.7:
        factor = m.const(m.random.choice((0.5, 2.0, 1.5, 0.25, -1.0, 3.0)), dtype)
        y = m.op(m.random.choice(("Mul", "Div", "Add")), y, factor)
    if y is not None and m.random.random() < 0.6:
        y = m.op(m.random.choice(("Floor", "Ceil", "Round", "Neg", "Abs")), y)
    if y is not None:
        _back(m, y)


def _back(m: Maker, y: str) -> None:
    if m.random.random() < 0.25:
        m.op("CastLike", y, m.const(0, m.random.choice((np.int64, np.int32))))
    else:
        m.op("Cast", y, to=m.random.choice((INT64, INT64, INT32)))


def _cast(m: Maker) -> None:
    x = _some(m, "ib")
    like = m.random.choice((INT64, INT64, INT32, INT32, BOOL))
    if m.random.random() < 0.2:
        m.op("CastLike", x, _some(m, "ib"))
    else:
        m.op("Cast", x, to=like)


def _float_const(m: Maker) -> None:
    """A number that comes to be by a Cast of a float, as exporters leave scalars."""
    held = m.const(float(m.random.choice(NUMBERS)) + m.random.choice((0, 0, 0.5)), np.float32)
    if m.random.random() < 0.4:
        held = m.op("Mul", held, m.const(2.0, np.float32)) or held
    if m.random.random() < 0.5:
        m.op("CastLike", held, _some(m, "i"))
    else:
        m.op("Cast", held, to=m.random.choice((INT64, INT32)))


def _compare(m: Maker) -> None:
    x = _some(m, "i")
    y = _alike(m, x)
    kind = ("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual")
    m.op(m.random.choice(kind), *((x, y) if m.random.random() < 0.5 else (y, x)))


def _logic(m: Maker) -> None:
    x, y = _some(m, "b"), _some(m, "b")
    if m.values[x][0].dtype == m.values[y][0].dtype == bool:
        kind = m.random.choice(("Not", "And", "Or", "Xor"))
        m.op(kind, *((x,) if kind == "Not" else (x, y)))


def _where(m: Maker) -> None:
    c, x = _some(m, "b"), _some(m, "i")
    if m.values[c][0].dtype == bool:
        y = _alike(m, x)
        m.op("Where", c, *((x, y) if m.random.random() < 0.5 else (y, x)))


def _if(m: Maker) -> None:
    c, x = _some(m, "b"), _some(m, "if", (0, 1, 2))
    y = _some(m, m.values[x][0].dtype.kind, (m.values[x][0].ndim,))
    if m.values[c][0].dtype != bool or any(a.size != 1 for a in m.values[c]):
        return
    if m.values[x][0].dtype == m.values[y][0].dtype and m.values[x][0].ndim == m.values[y][0].ndim:
        m.choose(c, x, y)


def _reduce(m: Maker) -> None:
    x = _some(m, "i", (0, 1, 2))
    kind = m.random.choice(("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"))
    if any(a.size == 0 for a in m.values[x]):
        return
    keep = m.random.choice((0, 1))
    if kind == "ReduceSum" and m.random.random() < 0.5 and m.values[x][0].ndim:
        m.op(kind, x, m.const([m.random.choice((0, -1))]), keepdims=keep)
    else:
        m.op(kind, x, keepdims=keep)


def _scan(m: Maker) -> None:
    x = _some(m, "i", (1,))
    if m.random.random() < 0.5:
        m.op("CumSum", x, m.const(0), exclusive=m.random.choice((0, 1)))
    else:
        m.op("ArgMax", x, axis=0, keepdims=m.random.choice((0, 1)))


def _range(m: Maker) -> None:
    x = _some(m, "i")
    dtype = m.values[x][0].dtype
    if any(a.size != 1 for a in m.values[x]):
        return
    if m.values[x][0].ndim == 1:
        x = m.op("Squeeze", x) or x
    if m.values[x][0].ndim:
        return
    start, step = (
        m.const(m.random.choice((0, 0, 1, -1, 3)), dtype),
        m.const(m.random.choice((1, 1, 2, -1)), dtype),
    )
    if m.random.random() < 0.4:
        start = (
            m.op("Cast", m.const(0.0, np.float32), to=INT64 if dtype == np.int64 else INT32)
            or start
        )
    if m.random.random() < 0.2:
        start, x = x, start
    if m.random.random() < 0.2:
        parts = [m.op("Cast", v, to=FLOAT) for v in (start, x, step)]
        made = m.op("Range", *[p for p in parts if p is not None]) if all(parts) else None
        if made is not None:
            m.op("Cast", made, to=INT64)
        return
    m.op("Range", start, x, step)


def _fill(m: Maker) -> None:
    x = _some(m, "i", (1,))
    if m.values[x][0].dtype != np.int64:
        return
    dtype = m.random.choice((np.int64, np.int64, np.float32, np.bool_, np.int32))
    value = numpy_helper.from_array(np.array([m.random.choice((0, 1, 2, -1))]).astype(dtype))
    m.op("ConstantOfShape", x, **({} if m.random.random() < 0.2 else {"value": value}))


def _expand(m: Maker) -> None:
    x, target = _some(m, "fib", (0, 1, 2, 3)), _some(m, "i", (1,))
    if m.values[target][0].dtype == np.int64:
        m.op("Expand", x, target)


def _reshape(m: Maker) -> None:
    x = _some(m, "fib", (0, 1, 2, 3, 4))
    if m.random.random() < 0.5:
        target = m.random.choice(([-1], [1, -1], [-1, 1], [], [0, -1], [1], [2, -1]))
        m.op("Reshape", x, m.const(target))
        return
    t = _some(m, "i", (1,))
    if m.values[t][0].dtype != np.int64:
        return
    if m.random.random() < 0.5:
        ends = (m.const([-1]), t) if m.random.random() < 0.5 else (t, m.const([-1]))
        t = m.op("Concat", *ends, axis=0) or t
    attrs = {"allowzero": 1} if m.random.random() < 0.2 else {}
    m.op("Reshape", x, t, **attrs)


def _tile(m: Maker) -> None:
    x, times = _some(m, "fib", (1, 2)), _some(m, "i", (1,))
    if m.values[times][0].dtype == np.int64:
        m.op("Tile", x, times)


def _move(m: Maker) -> None:
    x = _some(m, "fi", (1, 2, 3))
    rank = m.values[x][0].ndim
    kind = m.random.choice(("Transpose", "Flatten", "Unsqueeze", "Squeeze", "Concat", "Relu"))
    if kind == "Unsqueeze":
        m.op(kind, x, m.const([m.random.choice((0, -1, rank))]))
    elif kind == "Flatten":
        m.op(kind, x, axis=m.random.choice((0, 1, -1, rank)))
    elif kind == "Concat":
        m.op(kind, x, x, axis=m.random.choice((0, -1)))
    elif kind == "Relu":
        m.op("Neg", x)
    else:
        m.op(kind, x)


def _slice_tensor(m: Maker) -> None:
    x, bound = _some(m, "f", (1, 2, 3)), _some(m, "i")
    if m.values[bound][0].dtype != np.int64 or any(a.size != 1 for a in m.values[bound]):
        return
    if m.values[bound][0].ndim == 0:
        bound = m.op("Unsqueeze", bound, m.const([0])) or bound
    axis = m.const([m.random.randrange(m.values[x][0].ndim)])
    ends = [m.const([m.random.choice((0, 1, -1))]), bound]
    if m.random.random() < 0.4:
        ends = [bound, m.const([m.random.choice((-1, 4, *FAR))])]
    steps = [m.const([m.random.choice((1, 2))])] if m.random.random() < 0.3 else []
    m.op("Slice", x, *ends, axis, *steps)


def _pad(m: Maker) -> None:
    x, amount = _some(m, "fi", (1,)), _some(m, "i")
    if m.values[amount][0].dtype != np.int64 or any(a.size != 1 for a in m.values[amount]):
        return
    if m.values[amount][0].ndim == 0:
        amount = m.op("Unsqueeze", amount, m.const([0])) or amount
    front = m.const([m.random.choice((0, 1, -1))])
    pads = m.op(
        "Concat", *((front, amount) if m.random.random() < 0.5 else (amount, front)), axis=0
    )
    if pads is not None and m.values[x][0].ndim == 1:
        m.op("Pad", x, pads)


def _take(m: Maker) -> None:
    """Rows of a tensor at computed places, as an embedding of positions does."""
    x, places = _some(m, "f", (1, 2, 3)), _some(m, "i", (0, 1, 2))
    axis = m.random.randrange(m.values[x][0].ndim)
    m.op("Gather", x, places, axis=axis)


def _by_value(m: Maker) -> None:
    """Sizes that depend on data."""
    x = _some(m, "ibf", (1, 2))
    found = m.op("NonZero", x)
    if found is not None and m.random.random() < 0.7:
        m.op("Transpose", found, perm=[1, 0])


def _scatter(m: Maker) -> None:
    x = _some(m, "i", (1,))
    dtype = m.values[x][0].dtype
    update = m.const([m.random.choice(NUMBERS)], dtype)
    if m.random.random() < 0.5:
        m.op("ScatterND", x, m.const([[m.random.choice((0, 1))]]), update)
    else:
        m.op("ScatterElements", x, m.const([m.random.choice((0, 1, -1))]), update)


def _clip(m: Maker) -> None:
    x = _some(m, "i")
    dtype = m.values[x][0].dtype
    low = m.const(m.random.choice((-1, 0, 1)), dtype)
    m.op(
        "Clip",
        x,
        low,
        *((m.const(m.random.choice((3, 5)), dtype),) if m.random.random() < 0.6 else ()),
    )


def _mask(m: Maker) -> None:
    x = _some(m, "fi", (2, 3))
    if m.values[x][0].dtype in (np.float32, np.int64):
        m.op("Trilu", x, upper=m.random.choice((0, 1)))


def _scalar(m: Maker) -> str:
    """A computed number of int64, as a vector of one."""
    found = _some(m, "i")
    if m.values[found][0].dtype != np.int64 or any(a.size != 1 for a in m.values[found]):
        raise NoneFits
    if m.values[found][0].ndim == 0:
        return m.op("Unsqueeze", found, m.const([0])) or found
    return found


def _sized(m: Maker) -> None:
    """Ops that take a number of elements, sizes or classes."""
    kind = m.random.choice(("TopK", "OneHot", "CenterCropPad", "Resize"))
    if kind == "TopK":
        m.op(kind, _some(m, "f", (1, 2)), _scalar(m))
    elif kind == "OneHot":
        m.op(kind, _some(m, "i"), _scalar(m), m.const([0, 1]))
    elif kind == "CenterCropPad":
        m.op(kind, _some(m, "f", (1, 2)), _scalar(m), axes=[0])
    else:
        sizes = _some(m, "i", (1,))
        x = _some(m, "f", (2,))
        if m.values[sizes][0].dtype == np.int64 and all((a > 0).all() for a in m.values[sizes]):
            place = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            m.op(kind, x, "", "", sizes, mode="nearest", **place)


def _loop(m: Maker) -> None:
    x = _some(m, "i", (1,))
    if m.values[x][0].dtype == np.int64:
        m.loop(_scalar(m), x)


Step = Callable[[Maker], None]
TABLE: tuple[tuple[int, Step], ...] = (
    (10, _shape), (10, _pick), (3, _gather_some), (6, _cut), (9, _join), (14, _binary), (4, _unary),
    (3, _function), (5, _float_detour), (4, _cast), (4, _float_const), (7, _compare), (2, _logic),
    (4, _where), (6, _if), (5, _reduce), (2, _scan), (6, _range), (4, _fill), (5, _expand),
    (7, _reshape), (2, _tile), (4, _move), (4, _slice_tensor), (2, _pad), (5, _take),
    (2, _by_value), (2, _scatter), (3, _clip), (1, _mask), (3, _sized), (2, _loop),
)  # fmt: skip


def _first_values(m: Maker) -> None:
    """Tensors whose sizes differ between runs, and now and then numbers that do."""
    random = m.random
    sizes = {name: [random.choice((1, 2, 3, 4, 5, 6)) for _ in range(N_RUNS)] for name in "BNT"}
    for _ in range(random.choice((1, 1, 2))):
        names = [random.choice("BNT34") for _ in range(random.randint(1, 4))]
        shapes = [
            [int(n) if n.isdigit() else sizes[n][run] for n in names] for run in range(N_RUNS)
        ]
        arrays = [(np.arange(np.prod(s)) % 7 - 2).astype(np.float32).reshape(s) for s in shapes]
        declared: list[Any] = [int(n) if n.isdigit() else n for n in names]
        m.input(arrays, declared)
    if random.random() < 0.3:
        rank = random.choice((0, 1))
        numbers = [np.array(random.choice((1, 2, 3)), np.int64) for _ in range(N_RUNS)]
        m.input([n.reshape((1,) * rank) for n in numbers], [1] * rank)  # type: ignore[list-item]


def make(seed: int, length: int = 36) -> ShapeGraph:
    """The graph of a seed."""
    m = Maker(Random(seed))
    _first_values(m)
    m.op("Shape", next(iter(m.inputs)))
    weights, steps = zip(*TABLE, strict=True)
    for _ in range(m.random.randint(4, length)):
        with contextlib.suppress(NoneFits):
            m.random.choices(steps, weights)[0](m)
    names = m.made
    outputs = names[-1:] + m.random.sample(names[:-1], min(len(names) - 1, m.random.randint(0, 3)))
    if m.random.random() < 0.5:  # the sizes of everything, whether or not others read them
        shapes = [m.op("Shape", n) for n in names[-4:]]
        joined = m.op("Concat", *[s for s in shapes if s is not None], axis=0)
        outputs = [*outputs, joined] if joined is not None else outputs
    return ShapeGraph(
        seed, m.nodes, m.inputs, m.constants, m.values, list(dict.fromkeys(outputs)), m.declared
    )
