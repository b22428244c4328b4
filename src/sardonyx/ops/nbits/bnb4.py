"""MatMulBnb4: matmul with bitsandbytes 4-bit weights, codes of an FP4 or NF4 code book."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sardonyx.errors import ShapeError
from sardonyx.graph.const import Recipe
from sardonyx.graph.constant_values import constant
from sardonyx.graph.dtype import F32, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, input_of
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import contrib_op, internal_op, required
from sardonyx.ops.arrays import Array, wide
from sardonyx.ops.attention.heads import expect_dims
from sardonyx.ops.builder import Builder
from sardonyx.ops.decomposition import Outputs, present
from sardonyx.ops.matmul.standard import matmul
from sardonyx.ops.nbits.internal import REALS, check_weight_sizes

# Code books, relative to a block's absolute maximum: FP4 is a sign and 8 magnitudes; NF4 are the 16
# quantiles of a normal distribution (QLoRA, arXiv 2305.14314).
_FP4_MAGNITUDES: Final = (0.0, 0.0052083333, 0.6666667, 1.0, 0.3333333, 0.5, 0.16666667, 0.25)
FP4: Final = (*_FP4_MAGNITUDES, *(-v for v in _FP4_MAGNITUDES))
NF4: Final = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
_WEIGHTS: Final = dict.fromkeys(("K", "N", "block_size", "quant_type"), required("int"))

bnb4: Final = contrib_op(
    "MatMulBnb4",
    "A:T1 B:T2 absmax:T1",
    "Y:T1",
    attrs={**_WEIGHTS, "training_mode": 0, "transB": 1},
    types={"T1": REALS, "T2": frozenset((U8,))},
)
# Dequantizes the weights of MatMulBnb4 to float32; constant-folded where they are constant.
weights: Final = internal_op(
    "Bnb4Weights",
    "B:T2 absmax:T1",
    "w:T",
    attrs=_WEIGHTS,
    types={"T1": REALS, "T2": frozenset((U8,)), "T": frozenset((F32,))},
)


@weights.infer
def infer_weights(g: Scope, b: Fact, absmax: Fact, **attrs: Any) -> Fact:
    k, n, block = attrs["K"], attrs["N"], attrs["block_size"]
    if attrs["quant_type"] not in (0, 1):
        raise ShapeError(f"quant_type must be 0 (FP4) or 1 (NF4), got {attrs['quant_type']}")
    check_weight_sizes(k, n, block)
    expect_dims(g, ((n * k + 1) // 2,), B=b)
    expect_dims(g, (-(-n * k // block),), absmax=absmax)
    return Fact(F32, (n, k))


@weights.reference
def dequantized(b: Array, absmax: Array, **attrs: Any) -> Array:
    count = attrs["N"] * attrs["K"]
    codes = np.stack((b >> 4, b & 15), axis=1).reshape(-1)[:count]
    table = np.array(NF4 if attrs["quant_type"] else FP4, np.float32)
    scales = np.repeat(absmax.astype(np.float32), attrs["block_size"])[:count]
    return np.asarray((table[codes] * scales).reshape(attrs["N"], attrs["K"]))


def storage_attrs(attrs: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that describe the stored weights."""
    return {name: attrs[name] for name in _WEIGHTS}


@bnb4.infer
def _(g: Scope, a: Fact, b: Fact, absmax: Fact, **attrs: Any) -> Fact:
    n, k = infer_weights(g, b, absmax, **storage_attrs(attrs)).dims
    if a.rank < 1:
        raise ShapeError(f"A must have rows, got the scalar {a}")
    inner, columns = (k, n) if attrs["transB"] else (n, k)
    g.equal(a.dims[-1], inner, f"the last dim of A is not {'K' if attrs['transB'] else 'N'}")
    return a.shaped((*a.dims[:-1], columns))


@bnb4.reference
def _(a: Array, b: Array, absmax: Array, **attrs: Any) -> Array:
    w = dequantized(b, absmax, **storage_attrs(attrs))
    with np.errstate(all="ignore"):
        y = matmul(wide(a), w.T if attrs["transB"] else w)
        return np.asarray(y).astype(a.dtype, copy=False)


@bnb4.decompose
def _(b: Builder, node: Node) -> Outputs:
    """MatMulBnb4: the weights are a recipe, dequantized once when they are packed."""
    x, q, absmax = (input_of(node, i) for i in range(3))
    codes, scales = (present(v.const, "the weights are not constant") for v in (q, absmax))
    attrs = node.attrs
    fact = (F32, (attrs["N"], attrs["K"]))
    matrix = constant(Recipe(weights, (codes, scales), storage_attrs(attrs), 0, fact))
    # The recipe yields [N, K], which a flag of the matmul transposes.
    right = b.Transpose(matrix, perm=(1, 0)) if attrs["transB"] else matrix
    dtype = x.tensor.dtype
    y = b.MatMul(x if dtype is F32 else b.Cast(x, to=F32.onnx), right)
    return (y if dtype is F32 else b.Cast(y, to=dtype.onnx),)


OPS: Final = (bnb4, weights)
