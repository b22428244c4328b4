"""Cases of QMoE.

Scales are powers of two, so that sums are exact, and zero points of results even: onnxruntime
rounds some results before it adds the zero point and some after, which is the same but for a half
and an odd zero point. tests/test_qlinear.py has scales and zero points of any kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, codes, f32, ms, no

NO_KERNEL = "onnxruntime has no kernel for it on a CPU"


EXPERTS, WIDTH, INNER = 3, 32, 16


def experts(
    name: str = "relu", *, rows: tuple[int, ...] = (5,), bits: int = 4, **options: Any
) -> Case:
    """A mixture of 3 experts, 32 wide, with 16 units each."""
    block, has_zeros = options.pop("block", 0), options.pop("zeros", False)
    fused = 2 if options.get("swiglu_fusion") else 1
    dtype = options.pop("dtype", np.float32)

    def layer(n: int, k: int) -> tuple[Any, ...]:
        shape = (EXPERTS, n, k // block) if block else (EXPERTS, n)
        scales = (np.abs(f32(*shape)) * 0.05 + 0.01).astype(dtype)
        packed = shape[-1] * bits // 8 if shape[-1] * bits % 8 == 0 else shape[-1] * bits // 8 + 1
        zeros = codes(np.uint8, *shape[:-1], packed) if has_zeros else None
        return (
            codes(np.uint8, EXPERTS, n, k * bits // 8),
            scales,
            f32(EXPERTS, n).astype(dtype),
            zeros,
        )

    (*first, first_zeros), (*second, second_zeros) = (
        layer(INNER * fused, WIDTH),
        layer(WIDTH, INNER),
    )
    *third, third_zeros = layer(INNER, WIDTH) if options.pop("fc3", False) else (None,) * 4
    tokens = int(np.prod(rows))
    shares = np.abs(f32(tokens, EXPERTS)).astype(dtype) if options.pop("shares", False) else None
    if not options.pop("bias", True):
        first[2] = second[2] = None
    if block:
        options["block_size"] = block
    return ms(
        "QMoE", f32(*rows, WIDTH).astype(dtype), f32(tokens, EXPERTS).astype(dtype), *first,
        *second,
        *third, first_zeros, second_zeros, third_zeros, shares, activation_type=name,
        expert_weight_bits=bits, **{"ulps": 64, **options},
    )  # fmt: skip


MIXED = [
    experts(),
    experts(rows=(2, 3), k=2, bits=8),
    experts("gelu", k=2, normalize_routing_weights=1),
    experts("silu", bias=False),
    experts("identity", k=3),
    experts("swiglu", swiglu_fusion=1, k=2),
    experts("swiglu", swiglu_fusion=1, activation_alpha=1.702, activation_beta=1.0,
            swiglu_limit=0.5, normalize_routing_weights=1, k=2),
    experts(block=16),
    experts(block=16, zeros=True, k=2),
    experts(zeros=True),
    experts(zeros=True, bits=8),
    experts(shares=True, k=2),
    experts(shares=True, k=2, normalize_routing_weights=1),
    experts(dtype=np.float16, ulps=8),
    experts("swiglu", swiglu_fusion=2, oracle="none", why=NO_KERNEL),
    experts("swiglu", fc3=True, oracle="none", why=NO_KERNEL),
    experts("silu", fc3=True, oracle="none", why=NO_KERNEL),
    experts(bits=2, oracle="none", why=NO_KERNEL),
    experts(bits=8, block=16, oracle="none", why="onnxruntime rounds its input to 8 bits here"),
    experts(rows=(0,), oracle="none", why="onnxruntime refuses no tokens"),
    *(
        Case(r.op, r.inputs, r.attrs, r.domain, fails=match)
        for r, match in (
            (experts("cube"), "cube"),
            (experts("swiglu"), "needs fc3_experts_weights"),
            (experts(k=4), "larger than the number of experts"),
            (experts(block=24), "power of two"),
            (experts(quant_type="fp8"), "quant_type fp8"),
            (experts(use_sparse_mixer=1), "use_sparse_mixer"),
            (experts(bits=3), "2, 4 or 8"),
        )
    ),
    no("QMoE", f32(5, 32), f32(4, 3), *experts().inputs[2:], match="another number of rows"),
    no("QMoE", f32(5, 16), f32(5, 3), *experts().inputs[2:], match="fc1_experts_weights must"),
]  # fmt: skip


CASES = [
    *MIXED,
]
