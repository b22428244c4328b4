"""Errors of packs. Users never see them: a model whose pack is unusable is compiled instead."""

from __future__ import annotations

from sardonyx.errors import Recoverable


class InvalidPack(Recoverable):
    """A pack that cannot be used; the text says why."""


class PackMismatch(InvalidPack):
    """An intact pack of another model, of other weights, or of another version."""


class OptionsMismatch(PackMismatch):
    """A pack that was written with other options."""

    def __init__(self, what: str, option: str) -> None:
        super().__init__(what)
        self.option = option
