"""Decoding images."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, RuntimeException
from sardonyx.graph.dtype import U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op
from sardonyx.ops.arrays import Array
from sardonyx.ops.text.strings import package

MAX_PIXELS: Final = (
    2**27
)  # a small file can claim any size: what is larger is refused before it is decoded
FORMATS: Final = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
CHANNELS: Final = {b"RGB": 3, b"BGR": 3, b"Grayscale": 1}

decoder = Op(
    "ImageDecoder",
    20,
    "encoded_stream:B",
    "image:B",
    attrs={"pixel_format": b"RGB"},
    types={"B": frozenset((U8,))},
    unranked=True,
)


@decoder.infer
def _(g: Scope, encoded_stream: Fact, *, pixel_format: bytes) -> Fact:
    if pixel_format not in CHANNELS:
        odd = pixel_format.decode(errors="replace")
        raise InvalidGraph(f"pixel_format is {odd}, and may be RGB, BGR or Grayscale")
    return Fact(U8, (g.fresh("height"), g.fresh("width"), CHANNELS[pixel_format]))


@decoder.reference
def _(encoded_stream: Array, *, pixel_format: bytes) -> Array:
    pillow = package("PIL.Image", "pillow", "images", "ImageDecoder")
    try:
        image = pillow.open(io.BytesIO(encoded_stream.tobytes()), formats=FORMATS)
        _check_size(image)
        pixels = _pixels(image, pixel_format, pillow)
    except (RuntimeException, pillow.DecompressionBombError) as error:
        raise RuntimeException(
            f"the image is too large for ImageDecoder: {error.args[0]}"
        ) from error
    except Exception:  # decoders fail in many ways, and ONNX asks for an empty image then
        return np.zeros((0, 0, CHANNELS[pixel_format]), np.uint8)
    return pixels[:, :, ::-1].copy() if pixel_format == b"BGR" else pixels


def _check_size(image: Any) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise RuntimeException(
            f"it has {image.width} x {image.height} pixels, and may have {MAX_PIXELS}"
        )


def _pixels(image: Any, pixel_format: bytes, pillow: Any) -> Array:
    """Rows, columns and channels of an image, eight bits each."""
    if image.mode.startswith("I"):  # 16 bits per pixel, of which the upper 8 remain
        deep = np.asarray(image).astype(np.int64)
        image = pillow.fromarray((deep >> 8).clip(0, 255).astype(np.uint8))
    if pixel_format == b"Grayscale":
        return np.array(image.convert("L"))[:, :, None]
    return np.array(image.convert("RGB"))


OPS: Final = (decoder,)
