"""ai.onnx.ml ops that select, binarize, scale, normalize, impute and concatenate features."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, ShapeError
from sardonyx.graph.dim import product
from sardonyx.graph.dtype import F32, STRING
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import array, optional
from sardonyx.ops.arrays import Array
from sardonyx.ops.estimators.scores import FEATURES, batch_sizes, ml_op
from sardonyx.ops.inference import check_choice, like_first
from sardonyx.ops.sizes import SIZES

MAX_COLUMNS: Final = 2**28  # of one input; more means an invalid model
_SCALAR: Final = "ArrayFeatureExtractor selects along the last dimension, and x is a scalar"

extractor = ml_op(
    "ArrayFeatureExtractor", 1, "x:T y:I", "z:T", types={"T": FEATURES | {STRING}, "I": SIZES}
)


@extractor.infer
def _(g: Scope, x: Fact, y: Fact) -> Fact:
    if x.shape is None:
        return x.without_contents()
    if not x.rank:
        raise ShapeError(_SCALAR)
    count = g.new_dim("selected") if y.shape is None else product(y.dims)
    return Fact(x.dtype, (*(x.dims[:-1] if x.rank > 1 else (1,)), count))


@extractor.reference
def _(x: Array, y: Array) -> Array:
    if not x.ndim:
        raise InvalidArgument(_SCALAR)
    chosen = y.reshape(-1)
    wrong = chosen[(chosen < 0) | (chosen >= x.shape[-1])]
    if wrong.size:
        raise InvalidArgument(f"feature {wrong[0]} is outside [0, {x.shape[-1]})")
    picked = x[..., chosen]
    return picked.reshape(1, -1) if x.ndim == 1 else picked


binarizer = ml_op("Binarizer", 1, "x:T", "y:T", attrs={"threshold": 0.0})
binarizer.infer(like_first)
binarizer.reference(lambda x, *, threshold: (x > np.float32(threshold)).astype(x.dtype))


scaler = ml_op("Scaler", 1, "x:T", "y:S", attrs={"offset": array(), "scale": array()})


@scaler.infer
def _(g: Scope, x: Fact, *, offset: Any, scale: Any) -> Fact:
    _check_per_feature(g, x, offset, "offset")
    _check_per_feature(g, x, scale, "scale")
    return Fact(F32, x.shape)


def _check_per_feature(g: Scope, x: Fact, values: Any, what: str) -> None:
    """Check for one value for all features, or one per feature (last dimension)."""
    if x.shape is not None and not x.rank:
        raise ShapeError(f"features must have one dimension or more, got {x}")
    if values is None or len(values) == 1 or x.shape is None:
        return
    g.equal(x.dims[-1], len(values), f"{what} is one number, or one per feature")


@scaler.reference
def _(x: Array, *, offset: Any, scale: Any) -> Array:
    wide = x if x.dtype == np.float32 else x.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = wide if offset is None else wide - offset
        return (shifted if scale is None else shifted * scale).astype(np.float32)


normalizer = ml_op("Normalizer", 1, "x:T", "y:S", attrs={"norm": b"MAX"})
_NORMS: Final[dict[bytes, Callable[[Array], Array]]] = {
    b"MAX": lambda x: x.max(axis=-1, keepdims=True, initial=-np.inf),
    b"L1": lambda x: np.abs(x).sum(axis=-1, keepdims=True),
    b"L2": lambda x: np.sqrt((x * x).sum(axis=-1, keepdims=True)),
}


@normalizer.infer
def _(g: Scope, x: Fact, *, norm: bytes) -> Fact:
    check_choice("norm", norm, _NORMS, InvalidGraph)
    batch_sizes(g, x, "Normalizer")
    return Fact(F32, x.shape)


@normalizer.reference
def _(x: Array, *, norm: bytes) -> Array:
    wide = x.astype(np.float64)  # squares of float32 numbers never overflow here
    with np.errstate(all="ignore"):
        size = _NORMS[norm](wide)
        return np.where(size == 0, wide, wide / size).astype(np.float32)


imputer = ml_op(
    "Imputer",
    1,
    "x:T",
    "y:T",
    attrs={
        "imputed_value_floats": array("floats"),
        "imputed_value_int64s": array("ints"),
        "replaced_value_float": 0.0,
        "replaced_value_int64": 0,
    },
)


@imputer.infer
def _(g: Scope, x: Fact, **attrs: Any) -> Fact:
    name = "imputed_value_floats" if x.dtype.is_float else "imputed_value_int64s"
    if attrs[name] is None or not len(attrs[name]):
        raise InvalidGraph(f"Imputer of {x.dtype} needs {name}")
    _check_per_feature(g, x, attrs[name], name)
    return x.without_contents()


@imputer.reference
def _(x: Array, **attrs: Any) -> Array:
    if x.dtype.kind == "i":
        missing = x == attrs["replaced_value_int64"]
        return np.where(missing, attrs["imputed_value_int64s"], x).astype(x.dtype)
    sentinel = np.float32(attrs["replaced_value_float"])
    missing = np.isnan(x) if np.isnan(sentinel) else x == sentinel
    return np.where(missing, attrs["imputed_value_floats"].astype(x.dtype), x)


vectorizer = ml_op(
    "FeatureVectorizer",
    1,
    "xs:T*",
    "y:S",
    attrs={"inputdimensions": optional("ints")},
    unranked=False,
)


@vectorizer.infer
def _(g: Scope, *xs: Fact, inputdimensions: tuple[int, ...] | None) -> Fact:
    if not xs:
        raise InvalidGraph("FeatureVectorizer has no inputs to join")
    declared = inputdimensions or ()
    if inputdimensions is not None and len(declared) != len(xs):
        raise InvalidGraph(f"inputdimensions has {len(declared)} entries for {len(xs)} inputs")
    if odd := [n for n in declared if not 0 <= n <= MAX_COLUMNS]:
        raise InvalidGraph(f"inputdimensions has {odd[0]}, which is outside [0, {MAX_COLUMNS}]")
    rows: Any = None
    width: Any = 0
    for i, x in enumerate(xs):
        own = x.dims[0] if x.rank > 1 else 1
        rows = own if rows is None else g.equal(rows, own, "rows of the inputs differ")
        size = product(x.dims[1:] if x.rank > 1 else x.dims)
        width = width + (size if inputdimensions is None else inputdimensions[i])
    return Fact(F32, (rows, width))


@vectorizer.reference
def _(*xs: Array, inputdimensions: tuple[int, ...] | None) -> Array:
    columns = []
    for i, x in enumerate(xs):
        rows = x.reshape(len(x), math.prod(x.shape[1:])) if x.ndim > 1 else x.reshape(1, -1)
        width = rows.shape[1] if inputdimensions is None else inputdimensions[i]
        missing = max(width - rows.shape[1], 0)  # rows are zero-padded or truncated to the width
        columns.append(np.pad(rows[:, :width].astype(np.float32), ((0, 0), (0, missing))))
    return np.concatenate(columns, axis=1)


OPS: Final = (extractor, binarizer, scaler, normalizer, imputer, vectorizer)
