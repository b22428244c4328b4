"""The model that ships with the package: it reads handwritten digits of 8x8 pixels."""

from __future__ import annotations

import pathlib
from typing import Final

_HERE: Final = pathlib.Path(__file__).parent

DIGITS: Final = _HERE / "digits.onnx"
SAMPLES: Final = _HERE / "digits.npz"  # image: held-out pictures, label: what they show

__all__ = ["DIGITS", "SAMPLES"]
