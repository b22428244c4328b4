"""The lowering of each op: a family's module is imported when a model has one of its ops.

`providers/cpu/<family>.py` has a table `LOWERINGS` of the family's ops that have native kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import sardonyx._native as native
from sardonyx.base.name_index import import_if_present
from sardonyx.graph.graph import Node
from sardonyx.ops import family_of
from sardonyx.place.lowered import Lowered
from sardonyx.place.provider import No

Lowering = Callable[[Node], Lowered | No]
MULTIPLIES_BF16: Final = native.multiplies_bf16


@cache
def lowerings(family: str) -> dict[tuple[str, str], Lowering]:
    """The lowerings of a family, by domain and name of the op."""
    module = import_if_present(f"sardonyx.providers.cpu.{family}")
    return {} if module is None else module.LOWERINGS


@cache
def lowering(key: tuple[str, str]) -> Lowering | None:
    """How nodes of an op are lowered; None for ops without kernels."""
    family = family_of(*key)
    return None if family is None else lowerings(family).get(key)


def text_lowering(key: tuple[str, str]) -> Lowering | None:
    """How nodes of an op that have to do with strings are lowered; None for ops without kernels."""
    from sardonyx.providers.cpu.text import TEXT_LOWERINGS  # few models have strings

    return TEXT_LOWERINGS.get(key)
