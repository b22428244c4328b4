"""Differences between forms of a model that are as they should be: where, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A legitimate difference; empty fields fit everything."""

    why: str
    transforms: frozenset[str] = frozenset()  # one of them is among those applied
    case: str = ""  # patterns
    kind: str = ""
    detail: str = ""

    def excuses(self, transforms: Sequence[str], case: str, kind: str, detail: str) -> bool:
        """Whether this is the reason for a finding."""
        return (
            (not self.transforms or not self.transforms.isdisjoint(transforms))
            and re.search(self.case, case) is not None
            and re.fullmatch(self.kind or ".*", kind) is not None
            and re.search(self.detail, detail) is not None
        )


KNOWN: tuple[Known, ...] = (
    Known(
        "only tensors are bound to memory, and an output is declared to be an optional",
        frozenset(("bound",)), kind="refused", detail="optional.*, not a tensor",
    ),
    Known(
        "a tensor is carried in, and an optional comes back: these are two types",
        frozenset(("loop_carried",)), kind="refused", detail="comes back as optional",
    ),
)  # fmt: skip
