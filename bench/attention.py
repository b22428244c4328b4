"""Attention of transformers: encoders, decoders with and without a past.

python -m bench.attention [WORDS] [--threads 1,2] [--rivals]
"""

from __future__ import annotations

from typing import NamedTuple

from bench.steps import Case, Made, floats, main, one, parser


class Shape(NamedTuple):
    """Heads, rows and keys of a layer; heads of keys that several of the queries share."""

    name: str
    heads: int
    rows: int
    keys: int
    width: int = 64
    is_causal: int = 0
    shared: int = 1

    def made(self) -> Made:
        q = floats(1, self.heads, self.rows, self.width)
        k, v = (floats(1, self.heads // self.shared, self.keys, self.width, seed=i) for i in (1, 2))
        return one("Attention", {"q": q, "k": k, "v": v}, is_causal=self.is_causal)

    def case(self) -> Case:
        name = f"{self.name} {self.heads} x {self.rows} x {self.keys} x {self.width}"
        return Case("attention", name, ("attention",), self.made, 0.8)


SHAPES = (
    Shape("bert", 12, 128, 128),
    Shape("vit", 12, 197, 197),
    Shape("bert long", 12, 512, 512),
    Shape("whisper", 6, 1500, 1500),
    Shape("swin", 3, 49, 49, 32),
    Shape("gpt2 prompt", 12, 512, 512, is_causal=1),
    Shape("llama prompt", 32, 256, 256, 96, 1, 4),
    Shape("decode", 12, 1, 512),
    Shape("decode shared", 32, 1, 2048, 96, 0, 4),
)


def cases() -> list[Case]:
    """All layers."""
    return [shape.case() for shape in SHAPES]


if __name__ == "__main__":
    main(cases(), parser(__doc__).parse_args())
