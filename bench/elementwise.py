"""Elementwise ops on tensors of networks, against reading and writing as much.

python -m bench.elementwise [WORDS] [--threads 1,2] [--rivals]
"""

from __future__ import annotations

from bench.steps import Case, Made, floats, main, one, parser

SHAPES = ((128, 768), (128, 3072), (1, 64, 112, 112), (4096, 4096))
UNARY = ("Relu", "Gelu", "Tanh", "Sigmoid", "Exp", "Sqrt", "HardSwish")
BINARY = ("Add", "Mul", "Div", "Max")


def _case(op: str, shape: tuple[int, ...], n_inputs: int) -> Case:
    def make() -> Made:
        feed = {f"x{i}": abs(floats(*shape, seed=i)) for i in range(n_inputs)}
        return one(op, feed)

    name = f"{op} {'x'.join(map(str, shape))}"
    return Case("elementwise", name, ("chain",), make, 0.85)


def cases() -> list[Case]:
    """One input, then two."""
    unary = [_case(op, shape, 1) for op in UNARY for shape in SHAPES[1:3]]
    binary = [_case(op, shape, 2) for op in BINARY for shape in SHAPES[:2]]
    return [*unary, *binary, *(_case("Add", shape, 2) for shape in SHAPES[2:])]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
