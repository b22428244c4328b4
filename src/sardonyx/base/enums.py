"""The base class of the enumerations in onnxruntime's interface."""

from __future__ import annotations

from enum import Enum, IntEnum


class Named(IntEnum):
    """An IntEnum whose str is its name, as in onnxruntime."""

    __str__ = Enum.__str__
