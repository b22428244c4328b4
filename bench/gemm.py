"""Matrix products with constant right sides: many rows against the FMA limit, few against memory.

"From memory" are products whose weights no cache has, as in a network that runs layer after layer.

python -m bench.gemm [WORDS] [--threads 1,2] [--rivals]
"""

from __future__ import annotations

from bench.steps import Case, Made, copies_of, floats, main, one, parser

MANY = (64, 128, 197, 256, 384, 512, 1024)
FEW = (1, 4, 8, 16)
WEIGHTS = ((768, 768), (768, 3072), (3072, 768))
OTHERS = (
    (512, 512, 512), (64, 64, 64), (384, 64, 384), (384, 384, 64), (49, 512, 2048),
    (100, 333, 500), (127, 257, 129), (1000, 100, 1000), (256, 2304, 768), (128, 768, 50257),
)  # fmt: skip
KERNELS = ("matmul_packed", "matmul")


def _made(m: int, k: int, n: int, copies: int) -> Made:
    weights = [floats(k, n)]  # equal ones are stored apart all the same
    return one("MatMul", {"a": floats(m, k)}, lambda i: weights, copies=copies)


def _case(family: str, m: int, k: int, n: int, goal: float, is_cold: bool = False) -> Case:
    copies = copies_of(4 * k * n) if is_cold else 1
    name = f"{m} x {k} x {n}{' from memory' * is_cold}"
    return Case(family, name, KERNELS, lambda: _made(m, k, n, copies), goal, 1e-3)


def cases() -> list[Case]:
    """Products of transformers, then others."""
    many = [_case("product", m, k, n, 0.9) for k, n in WEIGHTS for m in MANY]
    many += [_case("product", m, k, n, 0.9 if m >= 64 else 0.8) for m, k, n in OTHERS]
    cold = [_case("product", m, k, n, 0.9, True) for k, n in WEIGHTS for m in (128, 512)]
    few = [_case("skinny product", m, k, n, 0.85, True) for k, n in WEIGHTS for m in FEW]
    return [*many, *cold, *few]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
