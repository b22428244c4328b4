"""A seeded source of types, shapes and operands for the families of cases.

Shapes of the class "typical" are those of layers of well-known networks; "tiny" shows what a call
costs, "large" leaves the caches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np

from bench.sweep.case import Array, Case

MICROSOFT: Final = "com.microsoft"
MOST_ELEMENTS: Final = 1 << 26  # 256 MB in float32: far out of the caches, and many fit in memory
ML: Final = "ai.onnx.ml"
SIZES: Final = ("tiny", "typical", "typical", "typical", "large")
FLOATS: Final = ("float32", "float32", "float32", "float16", "float64")
INTS: Final = ("int64", "int32", "uint8", "int8")

IMAGES: Final = {  # N, C, H, W
    "tiny": [(1, 3, 8, 8), (1, 8, 7, 7), (1, 16, 4, 4), (2, 5, 9, 11)],
    "typical": [
        (1, 3, 224, 224), (1, 64, 56, 56), (1, 128, 28, 28), (1, 256, 14, 14), (1, 512, 7, 7),
        (1, 24, 56, 56), (1, 96, 112, 112), (1, 144, 56, 56), (1, 960, 7, 7), (1, 40, 80, 80),
        (1, 80, 40, 40), (4, 64, 32, 32), (1, 32, 160, 160), (1, 320, 64, 64), (2, 192, 17, 17),
    ],
    "large": [(8, 64, 112, 112), (16, 256, 28, 28), (1, 64, 640, 640), (4, 512, 64, 64)],
}  # fmt: skip
TOKENS: Final = {  # batch, tokens, width
    "tiny": [(1, 1, 64), (1, 7, 33), (2, 4, 16)],
    "typical": [
        (1, 128, 768), (8, 128, 384), (1, 197, 192), (1, 512, 1024), (64, 49, 96), (1, 1, 2048),
        (4, 77, 512), (1, 1500, 384), (2, 256, 768), (1, 50, 768), (32, 16, 256),
    ],
    "large": [(8, 512, 1024), (32, 384, 768), (1, 4096, 2048)],
}  # fmt: skip
TABLES: Final = {
    "tiny": [(1, 4), (5, 13), (1, 30)],
    "typical": [(1000, 30), (10_000, 13), (256, 1000), (1, 30522), (64, 4096), (4000, 81)],
    "large": [(100_000, 30), (512, 50257), (1_000_000, 4)],
}


class TooLarge(Exception):
    """An operand would have more than MOST_ELEMENTS."""


class Draw:
    """A seeded source of shapes, types and operands."""

    def __init__(self, seed: int, size: str | None = None) -> None:
        self._random = random.Random(seed)
        self._numbers = np.random.default_rng(seed)
        self.size = size or self.pick(SIZES)

    def pick(self, options: Sequence[Any]) -> Any:
        """One of the options."""
        return options[self._random.randrange(len(options))]

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < share

    def image(self) -> tuple[int, ...]:
        """The shape of feature maps."""
        return tuple(self.pick(IMAGES[self.size]))

    def tokens(self) -> tuple[int, ...]:
        """The shape of activations of a transformer."""
        return tuple(self.pick(TOKENS[self.size]))

    def table(self) -> tuple[int, ...]:
        """The shape of a matrix."""
        return tuple(self.pick(TABLES[self.size]))

    def shape(self) -> tuple[int, ...]:
        """Any of these."""
        return tuple(self.pick((self.image, self.tokens, self.table))())

    def array(
        self, shape: Sequence[int], dtype: str = "float32", low: float = 0, high: float = 0
    ) -> Array:
        """Noise: normal floats, or numbers in [low, high) if these differ."""
        if math.prod(shape) > MOST_ELEMENTS:
            raise TooLarge(f"{dtype}{list(shape)}")
        if dtype == "bool":
            return np.asarray(self._numbers.random(shape) < 0.5)
        kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            least, most = (
                (low, high) if low < high else (max(limits.min, -100), min(limits.max, 100))
            )
            return self._numbers.integers(int(least), int(most), shape).astype(kind)
        if low < high:
            return self._numbers.uniform(low, high, shape).astype(kind)
        return self._numbers.standard_normal(shape, np.float32).astype(kind)

    def permutation(self, n: int) -> list[int]:
        """A random permutation of n axes."""
        return self._random.sample(range(n), n)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Another operand's shape: equal, a number, the last axis, channels, or axes of 1."""
        rank = len(shape)
        channels = tuple(n if i == 1 else 1 for i, n in enumerate(shape))
        some = tuple(n if self.chance(0.5) else 1 for n in shape)
        options = [shape, shape, (), shape[-1:], channels if rank > 2 else shape, some]
        return tuple(self.pick(options))


Family = Callable[[Draw, str], Case]


def fixed(family: Callable[..., Case], **values: Any) -> Family:
    """Return the family with some of its keywords given."""
    return lambda d, op: family(d, op, **values)


def rows(words: str, family: Family) -> dict[str, Family]:
    """Return the entries of ops that share a family."""
    return dict.fromkeys(words.split(), family)
