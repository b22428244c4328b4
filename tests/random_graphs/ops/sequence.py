"""Lists of tensors, and values that may be absent."""

from __future__ import annotations

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops.draw import Generator, ranked, types
from tests.random_graphs.value import FLOATS, Value, name_of

KINDS = (*FLOATS[:1], "int64", "int32", "double", "bool")


def lists(b: Builder, least: int = 1) -> Value:
    fits = [v for v in b.visible() if isinstance(v.data, list) and len(v.data) >= least]
    fits = [v for v in fits if all(isinstance(x, np.ndarray) for x in v.data)]
    if not fits:
        raise Unfit("no list")
    return b.rng.choice(fits)


def position(b: Builder, n: int) -> Value:
    return b.param(np.array(b.rng.randrange(-n, n), b.rng.choice((np.int64, np.int32))))


def construct(b: Builder, op: str) -> None:
    x = b.pick([t for t in types(b, op) if t != "string"] or KINDS)
    others = [b.pick([x.dtype], lambda v: v.rank == x.rank) for _ in range(b.rng.randint(0, 2))]
    b.emit(op, [x, *others])


def split(b: Builder, op: str) -> None:
    x = b.pick([t for t in types(b, op) if t in KINDS], ranked(1))
    at = b.rng.randrange(-x.rank, x.rank)
    size = x.shape[at]
    if not size:
        raise Unfit("nothing to split")
    kind = b.rng.randrange(3)
    if kind == 0:
        b.emit(op, [x], axis=at, keepdims=b.rng.choice((0, 1)))
    elif kind == 1:
        b.emit(op, [x, b.param(np.array(b.rng.randint(1, size)))], axis=at)
    else:
        cut = b.rng.randint(0, size)
        b.emit(op, [x, b.param(np.array([cut, size - cut]))], axis=at)


def at(b: Builder, op: str) -> None:
    s = lists(b)
    b.emit(op, [s, position(b, len(s.data))])


def erase(b: Builder, op: str) -> None:
    s = lists(b, 2)
    b.emit(op, [s, position(b, len(s.data))] if b.rng.random() < 0.7 else [s])


def insert(b: Builder, op: str) -> None:
    s = lists(b)
    x = b.pick([name_of(s.data[0])], lambda v: v.rank == s.data[0].ndim)
    inputs = [s, x]
    if b.rng.random() < 0.6:
        inputs.append(position(b, len(s.data)))
    b.emit(op, inputs)


def length(b: Builder, op: str) -> None:
    b.emit(op, [lists(b, 0)])


def join(b: Builder, op: str) -> None:
    s = lists(b)
    shapes = {x.shape for x in s.data}
    rank = s.data[0].ndim
    if len(shapes) == 1 and b.rng.random() < 0.5:
        b.emit(op, [s], axis=b.rng.randrange(-rank - 1, rank + 1), new_axis=1)
        return
    axes = [a for a in range(rank) if len({(*d[:a], *d[a + 1 :]) for d in shapes}) == 1]
    if not axes:
        raise Unfit("they do not fit together")
    b.emit(op, [s], axis=b.rng.choice(axes))


def optional(b: Builder, op: str) -> None:
    x = lists(b) if b.rng.random() < 0.3 else b.pick(KINDS)
    made = b.emit("Optional", [x])[0]
    b.emit("OptionalHasElement", [made])
    b.emit("OptionalGetElement", [made])


OPS: dict[str, Generator] = {
    "SequenceConstruct": construct, "SplitToSequence": split, "SequenceAt": at,
    "SequenceErase": erase, "SequenceInsert": insert, "SequenceLength": length,
    "ConcatFromSequence": join, "Optional": optional,
}  # fmt: skip
