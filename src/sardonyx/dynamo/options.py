"""Options of the TorchDynamo backend: those of `wrap`, and of `torch.compile(options={...})`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

from sardonyx.base.records import field_names, frozen
from sardonyx.errors import InvalidArgument

_MIN_BYTES: Final = 1024  # of a memory budget: a smaller number above 1 is a mistake


@frozen
class BackendOptions:
    """What `sardonyx.train.wrap` documents under the same names."""

    memory_budget: float | None = None
    cache: bool = True
    freeze: bool | Literal["versions"] = True

    def __post_init__(self) -> None:
        """Reject values without a meaning."""
        budget = self.memory_budget
        if budget is not None and not 0 <= budget <= 1 and not _MIN_BYTES <= budget < math.inf:
            raise InvalidArgument(
                f"memory_budget must be a fraction of the activations' bytes from 0 to 1, or at "
                f"least {_MIN_BYTES} bytes, got {budget}"
            )
        if self.freeze not in (True, False, "versions"):
            raise InvalidArgument(f'freeze must be True, False or "versions", got {self.freeze!r}')


def read_options(options: Mapping[str, Any]) -> BackendOptions:
    """Return the options of `torch.compile`; names that do not exist are an error."""
    known = field_names(BackendOptions)
    for name in options:
        if name not in known:
            raise InvalidArgument(
                f"the backend sardonyx has no option {name!r}; it has {', '.join(known)}"
            )
    return BackendOptions(**options)
