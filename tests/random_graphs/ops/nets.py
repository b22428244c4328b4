"""Longer patterns, whose parts meet again: branches, residuals, moves, gates, masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops import images, move
from tests.random_graphs.ops.blocks import do, either, follow, number, reduced, rows
from tests.random_graphs.ops.draw import image
from tests.random_graphs.ops.linear import WIDTHS, weight
from tests.random_graphs.value import Value


def product(b: Builder, x: Value, n: int) -> Value:
    y = do(b, "MatMul", x, weight(b, x, (x.shape[-1], n)))
    return either(b, "Add", y, b.like(x, (n,))) if b.rng.random() < 0.6 else y


def parts(b: Builder) -> None:
    """Branches of one value, joined, and perhaps taken apart again."""
    x = rows(b)
    made = []
    for _ in range(b.rng.randint(2, 4)):
        y = product(b, x, b.rng.choice(WIDTHS)) if b.rng.random() < 0.5 else follow(b, x)
        made.append(follow(b, y) if b.rng.random() < 0.5 else y)
    if b.rng.random() < 0.3:
        made.append(x)
    joined = b.emit("Concat", made, axis=x.rank - 1)[0]
    sizes = [v.shape[-1] for v in made]
    if b.rng.random() < 0.5:
        b.emit("Split", [joined], len(sizes), params={"split": np.array(sizes)}, axis=x.rank - 1)
    else:
        product(b, joined, b.rng.choice(WIDTHS))


def stacked(b: Builder) -> None:
    """Values of one shape, joined along any axis, a new one included."""
    x = rows(b)
    made = [follow(b, x) for _ in range(b.rng.randint(1, 3))]
    made = [v for v in made if v.shape == x.shape] + [x]
    if b.rng.random() < 0.5:
        at = b.rng.randrange(x.rank + 1)
        made = [b.emit("Unsqueeze", [v], params={"axes": np.array([at])})[0] for v in made]
        y = b.emit("Concat", made, axis=at)[0]
    else:
        y = b.emit("Concat", made, axis=b.rng.randrange(x.rank))[0]
    follow(b, y)


def residual(b: Builder) -> None:
    """Sums that go on while what is added to them is read again."""
    x = rows(b)
    width = x.shape[-1]
    for _ in range(b.rng.randint(1, 3)):
        h = x
        if b.rng.random() < 0.5:
            off = do(b, "Sub", x, reduced(b, "ReduceMean", x, [-1]))
            h = either(b, "Mul", off, b.like(x, (width,), low=0.5, high=1.5))
        h = follow(b, product(b, h, b.rng.choice(WIDTHS)))
        x = either(b, "Add", x, product(b, h, width))
    if b.rng.random() < 0.3:
        do(b, "Softmax", x, axis=x.rank - 1)


MOVES = (
    "Transpose", "Transpose", "Reshape", "Reshape", "Slice", "Squeeze", "Unsqueeze", "Expand",
    "Concat", "Split", "Flatten", "Tile", "Pad", "Gather", "DepthToSpace", "SpaceToDepth",
)  # fmt: skip


def moves(b: Builder) -> None:
    """One move after the other on the newest value, with something elementwise in between."""
    rows(b)
    for _ in range(b.rng.randint(3, 8)):
        if b.rng.random() < 0.3:
            newest = [v for v in b.pool if v.is_tensor and v.dtype == "float" and v.data.size]
            if newest:
                follow(b, newest[-1])
            continue
        op = b.rng.choice(MOVES)
        try:
            move.OPS[op](b, op)
        except Unfit:
            continue
    newest = [
        v for v in b.pool if v.is_tensor and v.dtype == "float" and v.rank > 1 and v.data.size
    ]
    if newest and newest[-1].shape[-1]:
        product(b, newest[-1], b.rng.choice(WIDTHS))


def layer(b: Builder, x: Value) -> Value:
    """A convolution, or a pool, that keeps an image large enough for the next."""
    channels = x.shape[1]
    kind = b.rng.random()
    edges = len(x.shape) - 2
    if kind < 0.2:
        same = {"kernel_shape": [3] * edges, "pads": [1] * (2 * edges)}
        return do(b, b.rng.choice(("MaxPool", "AveragePool")), x, **same)
    size = b.rng.choice((1, 3))
    group = channels if kind < 0.35 else 1
    filters = channels if group > 1 else b.rng.choice((4, 8, 16, 17, 32))
    w = b.new("float", (filters, channels // group, *[size] * edges), -0.4, 0.4, "initializer")
    inputs = [x, w]
    if b.rng.random() < 0.6:
        inputs.append(b.new("float", (filters,), style="initializer"))
    y = b.emit("Conv", inputs, group=group, pads=[size // 2] * (2 * edges))[0]
    if b.rng.random() < 0.6:
        y = do(b, b.rng.choice(("Relu", "Sigmoid", "LeakyRelu", "HardSigmoid", "Elu")), y)
    return y


def network(b: Builder) -> None:
    """Convolutions with branches and sums, a pool, and a classifier."""
    x = image(b, ["float"], (2, 2, 1))
    before = x
    for _ in range(b.rng.randint(2, 5)):
        y = layer(b, x)
        if y.shape == before.shape and b.rng.random() < 0.5:
            y = either(b, "Add", y, before)
        elif y.shape[2:] == before.shape[2:] and b.rng.random() < 0.3:
            y = b.emit("Concat", [y, before], axis=1)[0]
        before, x = x, y
        if b.rng.random() < 0.15:
            x = do(b, "Mul", x, do(b, "Sigmoid", do(b, "GlobalAveragePool", x)))
    kind = b.rng.randrange(4)
    if kind == 0:
        flat = do(b, "Flatten", do(b, "GlobalAveragePool", x), axis=1)
        product(b, flat, b.rng.choice(WIDTHS))
    elif kind == 1:
        order = [0, *range(2, x.rank), 1]
        transposed = do(b, "Transpose", x, perm=order)
        product(b, follow(b, transposed), b.rng.choice(WIDTHS))
    elif kind == 2:
        lines = do(b, "Reshape", x, b.given(np.array([0, x.shape[1], -1]), "initializer"))
        do(b, "Softmax", do(b, "Transpose", lines, perm=[0, 2, 1]), axis=2)
    else:
        images.resize(b, "Resize")


def gates(b: Builder) -> None:
    """Two halves of a product, one of which lets the other through."""
    x = rows(b)
    n = b.rng.choice((1, 4, 8, 17))
    y = product(b, x, 2 * n)
    split = {"params": {"split": np.array([n, n])}, "axis": x.rank - 1}
    left, right = b.emit("Split", [y], 2, **split)  # type: ignore[arg-type]
    kind = b.rng.choice(("Sigmoid", "Tanh", "swish", "Relu"))
    opened = (
        either(b, "Mul", left, do(b, "Sigmoid", left)) if kind == "swish" else do(b, kind, left)
    )
    product(b, either(b, "Mul", opened, right), x.shape[-1])


def masked(b: Builder) -> None:
    """Scores with a mask as exporters write it, and a softmax, whole or in its parts."""
    x = rows(b)
    width = x.shape[-1]
    kept = b.numbers.random((width,) if b.rng.random() < 0.5 else x.shape) < 0.7
    kept[..., 0] = True
    keep = b.given(kept)
    kind = b.rng.randrange(3)
    if kind == 0:
        low = b.given(np.asarray(-1e4).astype(x.data.dtype), "initializer")
        scores = do(b, "Where", keep, x, low)
    else:
        to = {"float": 1, "float16": 10, "double": 11}[x.dtype]
        off = do(b, "Sub", number(b, x, 1.0), do(b, "Cast", keep, to=to))
        scores = either(b, "Add", x, either(b, "Mul", off, number(b, x, -1e3)))
    if b.rng.random() < 0.5:
        do(b, "Softmax", scores, axis=x.rank - 1)
        return
    top = reduced(b, "ReduceMax", scores, [-1])
    powers = do(b, "Exp", do(b, "Sub", scores, top))
    do(b, "Div", powers, reduced(b, "ReduceSum", powers, [-1]))


def unit(b: Builder) -> None:
    """Vectors of length one."""
    x = rows(b)
    kind = b.rng.randrange(2)
    if kind == 0:
        length = reduced(b, "ReduceL2", x, [-1])
    else:
        length = do(b, "Sqrt", reduced(b, "ReduceSum", do(b, "Mul", x, x), [-1]))
    do(b, "Div", x, either(b, "Add", length, number(b, x, 1e-3)))


def integers(b: Builder) -> None:
    """Arithmetic on integers of one type, with casts at both ends."""
    kind = b.rng.choice(("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64"))
    x = b.pick([kind], lambda v: v.data.size > 0)
    for _ in range(b.rng.randint(2, 6)):
        op = b.rng.choice(("Add", "Sub", "Mul", "Max", "Min", "Where", "Abs", "Sign", "Clip"))
        old_small = b.traits.opset < 14 and kind not in ("int64", "int32", "uint32", "uint64")
        if op in ("Abs", "Sign"):
            x = do(b, op, x)
        elif op == "Where":
            x = do(b, op, b.new("bool", x.shape), x, b.like(x, x.shape))
        elif old_small or (op in ("Max", "Min", "Clip") and b.traits.opset < 12):
            continue
        elif op == "Clip":
            bounds = [b.given(np.asarray(v).astype(x.data.dtype), "initializer") for v in (1, 5)]
            x = do(b, op, x, *bounds)
        else:
            x = either(b, op, x, b.like(x, b.rng.choice((x.shape, x.shape[-1:], ()))))
    do(b, "Cast", x, to=1)


def repeated(b: Builder) -> None:
    """The same work more than once, as graphs that share nothing write it."""
    x = rows(b)
    w = weight(b, x, (x.shape[-1], b.rng.choice(WIDTHS)))
    made = [do(b, "Tanh", do(b, "MatMul", x, w)) for _ in range(2)]
    y = either(b, b.rng.choice(("Add", "Mul")), made[0], made[1])
    if b.rng.random() < 0.5:
        zero, one = number(b, x, 0.0), number(b, x, 1.0)
        y = either(b, "Mul", either(b, "Add", y, zero), one)
    do(b, "Identity", do(b, "Neg", do(b, "Neg", y)))


NETS: tuple[Callable[[Builder], Any], ...] = (
    parts, parts, stacked, residual, residual, moves, moves, moves, network, network, network,
    gates, masked, unit, integers, integers, repeated,
)  # fmt: skip
