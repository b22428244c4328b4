"""Cases of selection ops that are upgraded when loaded: com.microsoft, old experiments."""

from __future__ import annotations

import numpy as np

from tests.op_cases import ms, of

SAME_SELECT = [
    ms("Unique", of([2, 1, 1, 3, 4, 3]), outputs=3),
    ms("Unique", of([], np.float32), outputs=3),
]


CASES = [
    *SAME_SELECT,
]
