"""Pictures that need no files: pages of text and drawings. The same on every run."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont


def page(*lines: str, size: int = 40, margin: int = 30) -> Any:
    """Lines of black text on white, as an RGB image."""
    font = ImageFont.load_default(size)
    width = max(int(font.getlength(line)) for line in lines) + 2 * margin
    image = Image.new("RGB", (width, int(1.6 * size * len(lines)) + 2 * margin), "white")
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((margin, margin + 1.6 * size * number), line, "black", font)
    return image


def table(rows: list[list[str]], cell: tuple[int, int] = (160, 50)) -> Any:
    """A table with ruled cells."""
    wide, high = cell
    image = Image.new("RGB", (wide * len(rows[0]) + 41, high * len(rows) + 41), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(24)
    for y, row in enumerate(rows):
        for x, text in enumerate(row):
            left, top = 20 + x * wide, 20 + y * high
            draw.rectangle((left, top, left + wide, top + high), outline="black", width=2)
            draw.text((left + 12, top + 10), text, "black", font)
    return image


def faces(width: int = 640, height: int = 480) -> Any:
    """Two heads with eyes, nose and mouth before a background that fades."""
    ramp = np.linspace(90, 200, width, dtype=np.uint8)
    image = Image.fromarray(np.dstack([np.tile(ramp, (height, 1))] * 3))
    draw = ImageDraw.Draw(image)
    for x, y, r in ((width // 4, height // 2, 90), (3 * width // 4, height // 2, 120)):
        draw.ellipse((x - r, y - 1.3 * r, x + r, y + 1.3 * r), fill=(224, 178, 150))
        draw.chord((x - r, y - 1.4 * r, x + r, y + 0.4 * r), 180, 360, fill=(60, 40, 30))
        for side in (-1, 1):
            eye = x + side * 0.4 * r
            draw.ellipse((eye - 0.17 * r, y - 0.2 * r, eye + 0.17 * r, y), fill="white")
            draw.ellipse((eye - 0.07 * r, y - 0.17 * r, eye + 0.07 * r, y - 0.03 * r), fill="black")
        draw.polygon(
            ((x, y), (x - 0.13 * r, y + 0.4 * r), (x + 0.13 * r, y + 0.4 * r)), (190, 140, 120)
        )
        draw.ellipse((x - 0.35 * r, y + 0.6 * r, x + 0.35 * r, y + 0.8 * r), fill=(170, 60, 70))
    return image


def encoded(image: Any, kind: str = "PNG") -> bytes:
    """An image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()
