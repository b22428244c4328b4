"""What can be wrong with a pack."""

from __future__ import annotations

from sardonyx.errors import Recoverable


class Broken(Recoverable):
    """A pack that cannot be used; the text says why. It is never the user's error."""


class Other(Broken):
    """A pack that is whole and was made of something else."""


class OtherOptions(Other):
    """A pack that was made for other options."""

    def __init__(self, what: str, option: str) -> None:
        super().__init__(what)
        self.option = option
