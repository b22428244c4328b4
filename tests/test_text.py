"""Text and image ops without optional packages, and streams that declare a wrong size."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from sardonyx.errors import NotImplemented, RuntimeException
from sardonyx.ops import lookup


def test_regular_expressions_name_the_package_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    op = lookup("", "RegexFullMatch")
    assert op is not None
    with pytest.raises(NotImplemented, match=r"google-re2: pip install sardonyx\[regex\]"):
        op.run([np.array(["a"], object)], {"pattern": b"never compiled before"})


def test_images_name_the_package_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    op = lookup("", "ImageDecoder")
    assert op is not None
    with pytest.raises(NotImplemented, match=r"pillow: pip install sardonyx\[images\]"):
        op.run([np.zeros(4, np.uint8)], {"pixel_format": b"RGB"})


def test_a_large_image_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sardonyx.ops.text.images.MAX_PIXELS", 99)
    op = lookup("", "ImageDecoder")
    assert op is not None
    stream = np.frombuffer(b"P5 10 10 255\n" + bytes(100), np.uint8)
    with pytest.raises(RuntimeException, match="it has 10 x 10 pixels, and the limit is 99"):
        op.run([stream], {"pixel_format": b"RGB"})
