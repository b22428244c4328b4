"""Det and Inverse on the CPU."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import FLOATS
from sardonyx.graph.op import MICROSOFT
from sardonyx.providers.cpu.index import Lowerings, direct, for_types

LOWERINGS: Final[Lowerings] = {
    ("", "Det"): for_types(FLOATS, direct("matrix_determinant")),
    (MICROSOFT, "Inverse"): for_types(FLOATS, direct("matrix_inverse")),
}
