"""How the enumerations of onnxruntime's interface look."""

from __future__ import annotations

from enum import Enum, IntEnum


class Named(IntEnum):
    """A number that is shown by its name, as onnxruntime shows it."""

    __str__ = Enum.__str__
