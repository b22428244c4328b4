"""The table of kernels: each family on its typical shapes, as a share of what the machine can do.

    python -m bench.kernels [WORDS] [--threads 1,2] [--rivals] [--markdown]

bench/steps.py says how it is measured; the cases are in the modules below.
"""

from __future__ import annotations

from bench import attention, conv, elementwise, gemm, int8, move, nbits, reduce
from bench.steps import Case, main, parser

MODULES = (gemm, conv, int8, nbits, attention, elementwise, reduce, move)


def cases() -> list[Case]:
    """All families."""
    return [case for module in MODULES for case in module.cases()]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
