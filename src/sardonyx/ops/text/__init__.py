"""Strings, n-grams and encoded images."""

from __future__ import annotations

from typing import Final

from sardonyx.ops.text import grams, images, strings

OPS: Final = (*strings.OPS, *grams.OPS, *images.OPS)
