"""Random ops: a node with a seed repeats its numbers in each run; others draw a new stream."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import BOOL, FLOAT8, FLOATS, INDEX, NUMBERS, DType, by_numpy, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, optional, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.elementwise.arithmetic import BOOLS
from sardonyx.ops.elementwise.cast import convert
from sardonyx.ops.random.streams import Seed, normal, seed_streams, stream_of, uniform, words
from sardonyx.ops.sizes import CLASSIC, allocatable, checked_shape

Types = frozenset[DType]


def set_seed(seed: int) -> None:
    """Make the numbers of nodes without a seed repeatable."""
    seed_streams(seed)


def _output_type(number: int | None, allowed: Types, default: DType | None = None) -> DType:
    """Return the type that an attribute names, or else the default."""
    dtype = default if number is None else by_onnx(number)
    if dtype is None or dtype not in allowed:
        names = ", ".join(sorted(d.name for d in allowed))
        raise InvalidGraph(f"the output may be {names}, got {dtype or f'the type number {number}'}")
    return dtype


def _computation_type(dtype: DType) -> Any:
    return np.float64 if dtype.bits == 64 else np.float32


def _normal(shape: tuple[int, ...], dtype: DType, attrs: dict[str, Any]) -> Array:
    z = normal(attrs["seed"], shape, _computation_type(dtype))
    return convert(z * z.dtype.type(attrs["scale"]) + z.dtype.type(attrs["mean"]), dtype)


def _uniform(shape: tuple[int, ...], dtype: DType, attrs: dict[str, Any]) -> Array:
    u = uniform(attrs["seed"], shape, _computation_type(dtype))
    low, high = u.dtype.type(attrs["low"]), u.dtype.type(attrs["high"])
    return convert(u * (high - low) + low, dtype)


def _generate(name: str, draw: Any, **attrs: float) -> Op:
    """Declare a generator op whose output shape is an attribute."""
    schema = {**attrs, "dtype": 1, "seed": optional("float"), "shape": required("ints")}
    op = Op(name, 22, "", "y:T", attrs=schema, types={"T": FLOATS}, pure=False)

    @op.infer
    def _(g: Scope, *, shape: tuple[int, ...], dtype: int, **_: Any) -> Fact:
        return Fact(_output_type(dtype, FLOATS), checked_shape(g, shape, "shape"))

    @op.reference
    def _(*, shape: tuple[int, ...], dtype: int, **options: Any) -> Array:
        sizes = allocatable(shape, np.float64, "shape")
        return np.asarray(draw(sizes, _output_type(dtype, FLOATS), options))

    return op


def _from_input(name: str, inputs: Types, outputs: Types, **attrs: Any) -> Op:
    """Declare a random op of one input; the output type is that of `dtype`."""
    schema, types = {"seed": optional("float"), **attrs}, {"T": inputs, "U": outputs}
    return Op(name, 22, "x:T", "y:U", attrs=schema, types=types, unranked=True, pure=False)


def _like_input(name: str, inputs: Types, outputs: Types, draw: Any, **attrs: float) -> Op:
    """Declare a random op whose output has its input's shape, and its type unless dtype is set."""
    op = _from_input(name, inputs, outputs, dtype=optional("int"), **attrs)

    @op.infer
    def _(g: Scope, x: Fact, *, dtype: int | None, **_: Any) -> Fact:
        return x.with_dtype(_output_type(dtype, outputs, x.dtype))

    @op.reference
    def _(x: Array, *, dtype: int | None, **options: Any) -> Array:
        return np.asarray(draw(x, _output_type(dtype, outputs, by_numpy(x.dtype)), options))

    return op


def _bernoulli(x: Array, dtype: DType, attrs: dict[str, Any]) -> Array:
    shares = wide(x)
    return convert(np.asarray(uniform(attrs["seed"], x.shape, shares.dtype) < shares), dtype)


multinomial = _from_input("Multinomial", FLOATS, INDEX, dtype=6, sample_size=1)


@multinomial.infer
def _(g: Scope, x: Fact, *, dtype: int, sample_size: int, seed: float | None) -> Fact:
    output_type = _output_type(dtype, INDEX)
    if x.shape is None:
        return Fact(output_type, None)
    if x.rank != 2:
        raise ShapeError(f"log probabilities must be (batch, classes), got {x}")
    g.at_least(x.dims[1], 1, "Multinomial needs classes to choose from")
    return Fact(output_type, checked_shape(g, (x.dims[0], sample_size), "the samples"))


@multinomial.reference
@np.errstate(all="ignore")
def _(x: Array, *, dtype: int, sample_size: int, seed: Seed) -> Array:
    shape = allocatable((x.shape[0], sample_size), np.float64, "the samples")
    shifted = wide(x).astype(np.float64)
    cumulative = np.cumsum(np.exp(shifted - np.fmax.reduce(shifted, axis=1, keepdims=True)), axis=1)
    if not np.all(np.isfinite(cumulative)):
        raise InvalidArgument("the log probabilities of a row have no largest number")
    drawn, chosen = uniform(seed, shape, np.float64), np.empty(shape, np.int64)
    for row, bounds, samples in zip(chosen, cumulative, drawn, strict=True):
        row[:] = np.searchsorted(bounds, samples * bounds[-1], side="right")
    return chosen.clip(max=x.shape[1] - 1).astype(_output_type(dtype, INDEX).np)


dropout = Op(
    "Dropout",
    22,
    "x:T ratio:R? training_mode:B?",
    "y:T mask:B?",
    attrs={"seed": optional("int")},
    types={"T": FLOATS | FLOAT8, "R": FLOATS | FLOAT8, "B": BOOLS},
    unranked=True,
    pure=False,
)


@dropout.infer
def _(
    g: Scope, x: Fact, ratio: Fact | None, training_mode: Fact | None, *, seed: int | None
) -> tuple[Fact, Fact]:
    for fact, what in ((ratio, "ratio"), (training_mode, "training_mode")):
        if fact is not None and fact.shape is not None:
            count = product(fact.shape)
            g.equal(count, 1, f"{what} of Dropout is one element, and has another number")
    return x.without_contents(), x.with_dtype(BOOL)


@dropout.reference
@np.errstate(all="ignore")
def _(
    x: Array, ratio: Array | None, training_mode: Array | None, *, seed: Seed
) -> tuple[Array, Array]:
    share = 0.5 if ratio is None else float(wide(ratio).reshape(-1)[0])
    if not 0 <= share <= 1:
        raise InvalidArgument(f"the ratio of Dropout must be in [0, 1], got {share}")
    if training_mode is None or not training_mode.reshape(-1)[0] or share == 0:
        return np.array(x), np.ones(x.shape, bool)
    drawn = words(stream_of(seed), x.size).reshape(-1)[: x.size].reshape(x.shape)
    mask = drawn >= np.uint64(share * 2**32)
    numbers = wide(x)
    # Inverted dropout: the scale keeps the expected value.
    scaled = numbers * numbers.dtype.type(1 / (1 - share) if share < 1 else 0)
    return np.where(mask, scaled, 0).astype(x.dtype), mask


_NORMAL: Final = {"mean": 0.0, "scale": 1.0}
_UNIFORM: Final = {"low": 0.0, "high": 1.0}
OPS: Final = (
    _generate("RandomNormal", _normal, **_NORMAL),
    _generate("RandomUniform", _uniform, **_UNIFORM),
    _like_input("RandomNormalLike", CLASSIC, FLOATS, lambda x, *a: _normal(x.shape, *a), **_NORMAL),
    _like_input(
        "RandomUniformLike", CLASSIC, FLOATS, lambda x, *a: _uniform(x.shape, *a), **_UNIFORM
    ),
    _like_input("Bernoulli", FLOATS, NUMBERS | {BOOL}, _bernoulli),
    multinomial,
    dropout,
)
