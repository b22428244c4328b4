"""Pointwise ops, reductions, scans and random draws: torch's OpInfo samples against eager torch.

Every sample runs forward and, where the op has gradients, backward. A call that torch runs must be
in FALLBACKS: an op that loses its lowering fails here. SARDONYX_STRESS multiplies the number of
samples per op; .ci/long asks for more.
"""

from __future__ import annotations

import os
from typing import Any, Final

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # torch's samples import it
from torch.testing._internal.opinfo.core import (  # noqa: E402 - torch may be missing
    BinaryUfuncInfo,
    ReductionOpInfo,
    UnaryUfuncInfo,
)

from sardonyx.dynamo.table import supported  # noqa: E402
from tests.dynamo.op_info import OPS, check, samples  # noqa: E402

STRESS: Final = int(os.environ.get("SARDONYX_STRESS", "1"))
# bfloat16 stands for float16 in short runs: both take the same path through float32.
SAMPLES: Final = {"float32": 2, "bfloat16": 1, **({"float16": 1} if STRESS > 1 else {})}

# Beside the ops that OpInfo classifies as pointwise or as reductions.
OTHERS: Final = (
    "_softmax_backward_data", "addcdiv", "addcmul", "alias_copy", "aminmax", "bernoulli",
    "cauchy", "clamp", "clone", "cummax", "cummin", "cumprod", "cumsum", "diff", "dist",
    "exponential", "full_like", "geometric", "lerp", "linalg.matrix_norm", "linalg.norm",
    "log_normal", "log_softmax", "log_softmax.with_dtype", "logaddexp2", "logcumsumexp",
    "logsumexp", "masked.cumprod", "masked.cumsum", "masked.log_softmax", "masked.logaddexp",
    "masked.normalize", "masked.softmax", "masked.softmin", "masked_fill",
    "max.reduction_no_dim", "max.reduction_with_dim", "min.reduction_no_dim",
    "min.reduction_with_dim", "native_dropout_backward", "nn.functional.alpha_dropout",
    "nn.functional.cosine_similarity", "nn.functional.dropout", "nn.functional.dropout2d",
    "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout.with_train",
    "nn.functional.gelu", "nn.functional.glu", "nn.functional.hardswish",
    "nn.functional.leaky_relu", "nn.functional.normalize", "nn.functional.pairwise_distance",
    "nn.functional.softmin", "norm", "norm.fro", "norm.inf", "normal", "normal.in_place",
    "ones_like", "outer", "rand_like", "randint", "randint_like", "randn_like", "renorm",
    "softmax", "softmax.with_dtype", "std_mean", "std_mean.unbiased", "sum_to_size", "to",
    "torch.ops.aten._safe_softmax.default", "trapz", "uniform", "var_mean", "var_mean.unbiased",
    "where", "zero_", "zeros_like",
)  # fmt: skip

_SPECIAL: Final = "a special function without a kernel; torch has no decomposition"
_SPECIAL_FUNCTIONS: Final = (
    "digamma", "erfinv", "i0", "igamma", "igammac", "lgamma", "nextafter", "polygamma",
    "special_airy_ai", "special_bessel_j0", "special_bessel_j1", "special_bessel_y0",
    "special_bessel_y1", "special_chebyshev_polynomial_t", "special_chebyshev_polynomial_u",
    "special_chebyshev_polynomial_v", "special_chebyshev_polynomial_w", "special_erfcx",
    "special_hermite_polynomial_h", "special_hermite_polynomial_he", "special_i0e",
    "special_i1", "special_i1e", "special_laguerre_polynomial_l",
    "special_legendre_polynomial_p", "special_modified_bessel_i0", "special_modified_bessel_i1",
    "special_modified_bessel_k0", "special_modified_bessel_k1", "special_ndtri",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
    "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w",
    "special_spherical_bessel_j0", "special_zeta",
)  # fmt: skip
_COMPLEX: Final = "complex numbers have no kernels"
_SCAN: Final = "a scan without a kernel"
# Calls that stay with torch, and why.
FALLBACKS: Final = {
    **{f"aten.{name}.default": _SPECIAL for name in _SPECIAL_FUNCTIONS},
    "aten.frexp.Tensor": _SPECIAL,
    "aten.hash_tensor.default": "the hash is defined by torch's kernel",
    "aten._linalg_svd.default": "torch calls LAPACK",
    "aten.cummax.default": _SCAN,
    "aten.cummin.default": _SCAN,
    "aten.logcumsumexp.default": _SCAN,
    "aten.rrelu_with_noise_functional.default": "how much it draws depends on data",
    "aten.rrelu_with_noise_backward.default": "the forward op stays with torch",
    "aten.complex.default": _COMPLEX,
    "aten._conj.default": _COMPLEX,
    "aten.polar.default": _COMPLEX,
    "aten.view_as_real.default": _COMPLEX,
}
# The families of these refuse some cases.
REASONS: Final = ("complex", "unsupported dtype", "its own submodule")
# Left to torch by the families of indexing ops in some of these graphs.
INDEXING: Final = ("aten.flip.", "aten.scatter", "aten.sort.", "aten.searchsorted.")


def _names() -> list[str]:
    kinds = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)
    chosen = [n for n, op in OPS.items() if isinstance(op, kinds) or n in OTHERS]
    return [n for n in chosen if not n.startswith("jiterator")]  # which needs a GPU


def _is_expected(op: str, reason: str) -> bool:
    return op in FALLBACKS or op.startswith(INDEXING) or any(known in reason for known in REASONS)


@pytest.mark.parametrize("dtype", SAMPLES)
@pytest.mark.parametrize("name", _names())
def test_samples(name: str, dtype: str) -> None:
    op, type_ = OPS[name], getattr(torch, dtype)
    if type_ not in op.supported_dtypes("cpu"):
        pytest.skip(f"torch has no {name} of {dtype}")
    unexpected: set[tuple[str, str]] = set()
    for sample in samples(op, type_, SAMPLES[dtype] * STRESS):
        report: Any = check(op, type_, sample)
        unexpected |= {(f.op, f.reason) for f in report.fallbacks}
    assert not {f for f in unexpected if not _is_expected(*f)}


def test_the_fallbacks_have_no_lowering() -> None:
    assert not supported().keys() & FALLBACKS.keys()


def test_the_alternative_names_exist() -> None:
    assert not set(OTHERS) - OPS.keys()
