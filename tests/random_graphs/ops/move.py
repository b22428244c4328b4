"""Nodes that move elements, reshape, gather and scatter them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops.draw import Generator, axes, axis, ranked, types
from tests.random_graphs.value import DTYPES, Value, is_float


def _ints(values: Any, dtype: Any = np.int64) -> Any:
    return np.array(values, dtype)


def shape(b: Builder, op: str) -> None:
    attrs = {}
    x = b.pick(types(b, op))
    if b.traits.opset >= 15:
        for name in ("start", "end"):
            if b.rng.random() < 0.4:
                attrs[name] = b.rng.randint(-x.rank - 1, x.rank + 1)
    b.emit(op, [x], **attrs)


def one(b: Builder, op: str) -> None:
    b.emit(op, [b.pick(types(b, op))])


def reshape(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: v.data.size > 0)
    target = _refactored(b, x.shape)
    if b.rng.random() < 0.5 and target:
        target[b.rng.randrange(len(target))] = -1
    for i in range(min(len(target), x.rank)):
        known = [d for d in target if d > 0]
        if target[i] == x.shape[i] and -1 in target and b.rng.random() < 0.3 and known:
            target[i] = 0
    b.emit(op, [x, b.param(_ints(target))])


def _refactored(b: Builder, dims: tuple[int, ...]) -> list[int]:
    """Other dims of the same product: some merged, some split, some ones."""
    found = list(dims)
    for _ in range(b.rng.randint(1, 3)):
        kind = b.rng.randrange(3)
        if kind == 0 and len(found) > 1:
            i = b.rng.randrange(len(found) - 1)
            found[i : i + 2] = [found[i] * found[i + 1]]
        elif kind == 1 and found:
            i = b.rng.randrange(len(found))
            divisors = [d for d in range(1, found[i] + 1) if found[i] % d == 0]
            d = b.rng.choice(divisors)
            found[i : i + 1] = [d, found[i] // d]
        elif len(found) < 5:
            found.insert(b.rng.randint(0, len(found)), 1)
    return found if len(found) <= 6 else [math.prod(dims)]


def flatten(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    least = -x.rank if b.traits.opset >= 11 else 0
    b.emit(op, [x], axis=b.rng.randint(least, x.rank))


def squeeze(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: 1 in v.shape, lambda: (1, *b.new_shape(2)))
    ones = [i for i, d in enumerate(x.shape) if d == 1]
    if not ones:
        raise Unfit("nothing to squeeze")
    chosen = None
    if b.rng.random() < 0.8:
        chosen = b.rng.sample(ones, b.rng.randint(1, len(ones)))
        if b.traits.opset >= 11:
            chosen = [a - x.rank if b.rng.random() < 0.3 else a for a in chosen]
    b.emit(op, [x], params={"axes": None if chosen is None else _ints(chosen)})


def unsqueeze(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(0, 4))
    count = b.rng.choice((1, 1, 2))
    chosen = b.rng.sample(range(x.rank + count), count)
    if b.traits.opset >= 11:
        chosen = [a - x.rank - count if b.rng.random() < 0.3 else a for a in chosen]
    else:
        chosen.sort()
    b.emit(op, [x], params={"axes": _ints(chosen)})


def expand(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    target = [b.rng.choice((d, 1)) if d != 1 else b.rng.choice((1, b.size())) for d in x.shape]
    if b.rng.random() < 0.3:
        target = [b.rng.choice((1, 2, 3)), *target]
    b.emit(op, [x, b.param(_ints(target))])


def constant_of_shape(b: Builder, op: str) -> None:
    dtype = b.rng.choice([t for t in types(b, op, "T2") if t != "string"])
    value = np.asarray([b.rng.choice((0, 1, 3))]).astype(DTYPES[dtype])
    attrs = {"value": value} if b.rng.random() < 0.8 else {}
    b.emit(op, [b.param(_ints(b.new_shape()))], **attrs)


def eye_like(b: Builder, op: str) -> None:
    x = b.pick(types(b, op, "T1"), ranked(2, 2), lambda: b.new_shape(2))
    b.emit(op, [x], k=b.rng.randint(-3, 3))


def range_(b: Builder, op: str) -> None:
    dtype = b.rng.choice(types(b, op))
    start, count = b.rng.randint(-3, 3), b.rng.randint(0, 9)
    delta = b.rng.choice((1, 2, -1)) * (0.5 if is_float(dtype) else 1)
    np_type = DTYPES[dtype]
    cells = [start, start + delta * count, delta]
    b.emit(op, [b.given(np.asarray(c).astype(np_type)) for c in cells])


def transpose(b: Builder, op: str) -> None:
    x = b.pick(types(b, op))
    perm = b.rng.sample(range(x.rank), x.rank)
    b.emit(op, [x], perm=perm if x.rank and b.rng.random() < 0.85 else None)


def concat(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1))
    at = axis(b, x) if b.traits.opset >= 11 else b.rng.randrange(x.rank)
    parts = [x]
    for _ in range(b.rng.choice((0, 1, 1, 2, 3))):
        size = list(x.shape)
        size[at] = b.rng.choice((size[at], b.size()))
        parts.append(b.like(x, size))
    b.rng.shuffle(parts)
    b.emit(op, parts, axis=at)


def split(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1))
    at = axis(b, x) if b.traits.opset >= 11 else b.rng.randrange(x.rank)
    n = b.rng.randint(1, 4)
    size = x.shape[at]
    cuts = sorted(b.rng.randint(0, size) for _ in range(n - 1))
    sizes = [hi - lo for lo, hi in zip([0, *cuts], [*cuts, size], strict=True)]
    attrs: dict[str, Any] = {"axis": at}
    if b.rng.random() < 0.3:
        if b.traits.opset >= 18:
            attrs["num_outputs"] = n
        elif size % n:
            raise Unfit("not equal parts")
        b.emit(op, [x], n, **attrs)
        return
    b.emit(op, [x], n, params={"split": _ints(sizes)}, **attrs)


def slice_(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1))
    chosen = axes(b, x, 1)
    if b.traits.opset < 10:
        chosen = [a % x.rank for a in chosen]
    starts, ends, steps = [], [], []
    for a in chosen:
        d = x.shape[a]
        step = b.rng.choice((1, 1, 1, 2, 3, -1, -2)) if b.traits.opset >= 10 else 1
        lo, hi = sorted((b.rng.randint(0, d), b.rng.randint(0, d)))
        if step < 0:
            lo, hi = hi, lo - 1
            hi = hi if hi >= 0 else -d - 5
        far = b.rng.random() < 0.2 and step > 0
        starts.append(lo - d if b.rng.random() < 0.2 and lo < d else lo)
        ends.append((2**63 - 1 if b.rng.random() < 0.5 else d + 9) if far else hi)
        steps.append(step)
    params: dict[str, Any] = {"starts": _ints(starts), "ends": _ints(ends)}
    is_leading = [a % x.rank for a in chosen] == list(range(len(chosen)))
    if not is_leading or b.rng.random() < 0.5 or set(steps) != {1}:
        params["axes"] = _ints(chosen)
    if set(steps) != {1}:
        params["steps"] = _ints(steps)
    b.emit(op, [x], params=params)


def tile(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1))
    b.emit(op, [x, b.param(_ints([b.rng.choice((1, 1, 2, 3, 0)) for _ in x.shape]))])


def pad(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    modes = ("constant", "constant", "reflect", "edge", "wrap" if b.traits.opset >= 19 else "edge")
    mode = b.rng.choice(modes)
    low = -1 if mode == "constant" and b.rng.random() < 0.3 else 0
    pads = [b.rng.randint(low, 2) for _ in range(2 * x.rank)]
    if mode != "constant":
        if 0 in x.shape:
            raise Unfit("nothing to repeat")
        pads = [min(p, x.shape[i % x.rank] - 1) for i, p in enumerate(pads)]
    params: dict[str, Any] = {"pads": _ints(pads)}
    attrs: dict[str, Any] = {"mode": mode if b.rng.random() < 0.8 or mode != "constant" else None}
    if mode == "constant" and b.rng.random() < 0.5:
        if b.traits.opset < 11:
            attrs["value"] = 1.5
        else:
            fill = "-" if x.dtype == "string" else 1
            params["constant_value"] = np.asarray(fill).astype(x.data.dtype)
    if b.traits.opset >= 18 and b.rng.random() < 0.4:
        chosen = axes(b, x, 1)
        pads = [pads[a % x.rank] for a in chosen] + [pads[a % x.rank + x.rank] for a in chosen]
        params |= {"pads": _ints(pads), "axes": _ints(chosen)}
    b.emit(op, [x], params=params, **attrs)


def depth_to_space(b: Builder, op: str) -> None:
    block = b.rng.choice((1, 2, 3))
    x = b.pick(
        types(b, op),
        lambda v: v.rank == 4 and v.shape[1] % block**2 == 0 and v.shape[1] > 0,
        lambda: (1, block**2 * b.rng.choice((1, 2)), 3, 2),
    )
    mode = b.rng.choice(("DCR", "CRD", None)) if b.traits.opset >= 11 else None
    b.emit(op, [x], blocksize=block, mode=mode)


def space_to_depth(b: Builder, op: str) -> None:
    block = b.rng.choice((1, 2, 3))
    x = b.pick(
        types(b, op),
        lambda v: v.rank == 4 and v.shape[2] % block == 0 and v.shape[3] % block == 0,
        lambda: (1, 2, block * 2, block),
    )
    b.emit(op, [x], blocksize=block)


def reverse_sequence(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(2, 4), lambda: b.new_shape(2))
    batch = b.rng.randrange(2)
    if 0 in x.shape[:2]:
        raise Unfit("no time")
    lengths = b.new("int64", [x.shape[batch]], 1, x.shape[1 - batch])
    b.emit(op, [x, lengths], batch_axis=batch, time_axis=1 - batch)


def trilu(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(2, 4), lambda: b.new_shape(2))
    inputs = [x]
    if b.rng.random() < 0.6:
        inputs.append(b.param(_ints(b.rng.randint(-4, 4))))
    b.emit(op, inputs, upper=b.rng.choice((0, 1, None)))


def center_crop_pad(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    chosen = axes(b, x, 1) if b.rng.random() < 0.5 else None
    n = x.rank if chosen is None else len(chosen)
    b.emit(op, [x, b.param(_ints([b.rng.randint(1, 7) for _ in range(n)]))], axes=chosen)


def _index(b: Builder, op: str, dims: Any, size: int, letter: str = "Tind") -> Value:
    dtype = b.rng.choice(types(b, op, letter))
    least = -size if b.traits.opset >= 11 else 0
    if not size:
        raise Unfit("nothing to take")
    return b.new(dtype, dims, least, size - 1)


def gather(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    at = axis(b, x) if b.traits.opset >= 11 else b.rng.randrange(x.rank)
    dims = b.rng.choice(((), (1,), (3,), (2, 3), b.new_shape(1)))
    b.emit(op, [x, _index(b, op, dims, x.shape[at])], axis=at)


def gather_elements(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    at = axis(b, x)
    dims = [b.rng.randint(1, max(1, d)) for d in x.shape]
    dims[at] = b.size()
    b.emit(op, [x, _index(b, op, dims, x.shape[at])], axis=at)


def _cells(b: Builder, x: Value, batch: int, outer: tuple[int, ...]) -> Any:
    """Indices that name cells of a tensor: all different, as scatters want them."""
    depth = b.rng.randint(1, x.rank - batch)
    dims = x.shape[batch : batch + depth]
    count = math.prod(outer)
    total = math.prod(dims)
    if not total or count > total:
        raise Unfit("not enough cells")
    flat = b.numbers.permutation(total)[:count]
    return np.stack(np.unravel_index(flat, dims), -1).reshape(*outer, depth).astype(np.int64)


def gather_nd(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    outer = b.rng.choice(((1,), (2,), (2, 2)))
    b.emit(op, [x, b.param(_cells(b, x, 0, outer))])


def scatter_nd(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    outer = b.rng.choice(((1,), (2,), (2, 2)))
    cells = _cells(b, x, 0, outer)
    updates = b.like(x, (*outer, *x.shape[cells.shape[-1] :]))
    kinds = ["none", None] + (["add", "mul"] if b.traits.opset >= 16 else [])
    kinds += ["max", "min"] if b.traits.opset >= 18 else []
    b.emit(op, [x, b.param(cells), updates], reduction=_numeric(x, b.rng.choice(kinds)))


def _numeric(x: Value, reduction: str | None) -> str | None:
    return None if x.dtype in ("bool", "string") else reduction


def scatter_elements(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 3))
    at = axis(b, x)
    if 0 in x.shape:
        raise Unfit("nowhere to write")
    dims = [b.rng.randint(1, d) for d in x.shape]
    cells = np.argsort(b.numbers.random((*dims[:at], x.shape[at], *dims[at:][1:])), axis=at)
    index = np.take(cells, range(dims[at]), axis=at).astype(np.int64)
    kinds = ["none", None] + (["add", "mul"] if b.traits.opset >= 16 else [])
    kinds += ["max", "min"] if b.traits.opset >= 18 else []
    reduction = _numeric(x, b.rng.choice(kinds))
    b.emit(op, [x, b.param(index), b.like(x, index.shape)], axis=at, reduction=reduction)


def one_hot(b: Builder, op: str) -> None:
    depth = b.rng.randint(1, 6)
    least = -depth if b.traits.opset >= 11 else 0
    index = b.new("int64", b.new_shape(b.rng.randint(1, 2)), least, depth - 1)
    dtype = b.rng.choice([t for t in types(b, op, "T3") if t in ("float", "int64")])
    number = b.param(_ints(depth) if b.rng.random() < 0.5 else _ints([depth]))
    values = b.given(np.array([0, 3], DTYPES[dtype]))
    b.emit(op, [index, number, values], axis=b.rng.randint(-index.rank - 1, index.rank))


def compress(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    at = axis(b, x) if b.rng.random() < 0.7 and b.traits.opset >= 11 else None
    size = x.data.size if at is None else x.shape[at]
    condition = b.new("bool", (b.rng.randint(1, max(1, size)),))
    if not size:
        raise Unfit("nothing to keep")
    b.emit(op, [x, condition], axis=at)


def top_k(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), ranked(1, 4))
    at = axis(b, x) if b.traits.opset >= 11 else b.rng.randrange(x.rank)
    k = b.rng.randint(0, x.shape[at])
    attrs: dict[str, Any] = {"axis": at}
    if b.traits.opset >= 11:
        attrs |= {"largest": b.rng.randrange(2), "sorted": 1}
    params = {"K": _ints([k])} if b.traits.opset >= 10 else {"k": k}
    b.emit(op, [x], 2, params=params, **attrs)


def unique(b: Builder, op: str) -> None:
    x = b.pick(types(b, op), lambda v: v.data.size > 0)
    at = axis(b, x) if b.rng.random() < 0.5 and x.rank else None
    if b.traits.is_wild and is_float(x.dtype):
        raise Unfit("whether NaN is itself is open")
    b.emit(op, [x], b.rng.randint(1, 4), axis=at, sorted=b.rng.choice((0, 1, None)))


OPS: dict[str, Generator] = {
    "Shape": shape, "Size": one, "Reshape": reshape, "Flatten": flatten, "Squeeze": squeeze,
    "Unsqueeze": unsqueeze, "Expand": expand, "ConstantOfShape": constant_of_shape,
    "EyeLike": eye_like, "Range": range_, "Transpose": transpose, "Concat": concat, "Split": split,
    "Slice": slice_, "Tile": tile, "Pad": pad, "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth, "ReverseSequence": reverse_sequence, "Trilu": trilu,
    "CenterCropPad": center_crop_pad, "Gather": gather, "GatherElements": gather_elements,
    "GatherND": gather_nd, "ScatterND": scatter_nd, "ScatterElements": scatter_elements,
    "OneHot": one_hot, "Compress": compress, "TopK": top_k, "NonZero": one, "Unique": unique,
}  # fmt: skip
