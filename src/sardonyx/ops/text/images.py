"""ImageDecoder, by Pillow."""

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
from sardonyx.ops.text.strings import optional_package

# A small file can claim any size (a decompression bomb), so the size is checked before decoding.
MAX_PIXELS: Final = 2**27
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
        raise InvalidGraph(f"pixel_format must be RGB, BGR or Grayscale, got {odd}")
    return Fact(U8, (g.new_dim("height"), g.new_dim("width"), CHANNELS[pixel_format]))


@decoder.reference
def _(encoded_stream: Array, *, pixel_format: bytes) -> Array:
    pillow = optional_package("PIL.Image", "pillow", "images", "ImageDecoder")
    try:
        image = pillow.open(io.BytesIO(encoded_stream.tobytes()), formats=FORMATS)
        _check_size(image)
        pixels = _pixels(image, pixel_format, pillow)
    except (RuntimeException, pillow.DecompressionBombError) as error:
        raise RuntimeException(
            f"the image is too large for ImageDecoder: {error.args[0]}"
        ) from error
    except Exception:  # decoders raise many types; the spec says to return an empty image then
        return np.zeros((0, 0, CHANNELS[pixel_format]), np.uint8)
    return pixels[:, :, ::-1].copy() if pixel_format == b"BGR" else pixels


def _check_size(image: Any) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise RuntimeException(
            f"it has {image.width} x {image.height} pixels, and the limit is {MAX_PIXELS}"
        )


def _pixels(image: Any, pixel_format: bytes, pillow: Any) -> Array:
    """Return an image as [rows, columns, channels] of 8 bits."""
    if image.mode.startswith("I"):  # 16 bits per pixel, of which the upper 8 are used
        samples = np.asarray(image).astype(np.int64)
        image = pillow.fromarray((samples >> 8).clip(0, 255).astype(np.uint8))
    if pixel_format == b"Grayscale":
        return np.array(image.convert("L"))[:, :, None]
    return np.array(image.convert("RGB"))


OPS: Final = (decoder,)
