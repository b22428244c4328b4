"""`sardonyx run` without a model: the built-in one reads its samples, drawn beside its answers."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from typing import Any, Final

import numpy as np

from sardonyx.cli.inputs import arrays_of
from sardonyx.cli.run import Measured, begin, measure, print_figures, print_files
from sardonyx.cli.term import Progress, can_show, has_colour, paint, say
from sardonyx.models import DIGITS, SAMPLES

DRAWN: Final = 6
BRIGHTEST: Final = 16  # a pixel's largest value
CELL: Final = 26  # columns of one picture with its answer

_SHADES: Final = " ░▒▓█"
_PLAIN_SHADES: Final = " .:+#"
_GREYS: Final = range(233, 256)  # of a terminal's 256 colours, dark to light


def show(arguments: argparse.Namespace) -> int:
    """Runs all samples at once, times a single one, and tells how it went."""
    samples = arrays_of(SAMPLES)
    images, labels = samples["image"], samples["label"]
    with Progress("running the built-in model"):
        started = begin(arguments, DIGITS)
        measured = measure(arguments, started, {"image": images}, {"image": images[:1]})
    probabilities = measured.outputs[0]
    right = int((probabilities.argmax(1) == labels).sum())
    if arguments.json:
        say(json.dumps(_facts(measured, labels, right), indent=2))
        return 0
    _draw(images, labels, probabilities)
    said = f"{right} of {len(labels)} samples right"
    say(f"{paint(said, 'bold', 'green' if right == len(labels) else 'yellow')}\n")
    print_figures(measured, " of one image")
    print_files(arguments)
    return 0


def _facts(measured: Measured, labels: Any, right: int) -> dict[str, Any]:
    probabilities = measured.outputs[0]
    answers = [
        {"label": int(label), "answer": int(row.argmax()), "probability": float(row.max())}
        for label, row in zip(labels, probabilities, strict=True)
    ]
    return {
        "model": os.fspath(DIGITS),
        "samples": len(labels),
        "right": right,
        "answers": answers,
        **measured.facts(),
    }


def _draw(images: Any, labels: Any, probabilities: Any) -> None:
    """A few pictures, as many side by side as the terminal has room for."""
    cells = [
        _cell(image[0], int(label), row)
        for image, label, row in zip(images, labels, probabilities, strict=True)
    ][:DRAWN]
    abreast = max(1, min(3, (shutil.get_terminal_size().columns + 1) // CELL))
    for first in range(0, len(cells), abreast):
        for lines in zip(*cells[first : first + abreast], strict=True):
            say("".join(lines).rstrip())
        say()


def _cell(image: Any, label: int, row: Any) -> list[str]:
    """The lines of one picture, with answer, probability and verdict beside it."""
    answer = int(row.argmax())
    verdict = ("right", "green") if answer == label else (f"is {label}", "red")
    beside = {
        2: (str(answer), "bold"),
        3: (f"{row[answer]:.1%}", "dim"),
        4: verdict,
    }
    lines = []
    for y, pixels in enumerate(image):
        text, style = beside.get(y, ("", "dim"))
        lines.append(f"{_pixels(pixels)}  {paint(text, style)}{' ' * (CELL - 18 - len(text))}")
    return lines


def _pixels(row: Any) -> str:
    """One line of a picture, two columns to a pixel, since characters are twice as high as wide."""
    levels = np.clip(np.asarray(row) / BRIGHTEST, 0, 1)
    if has_colour():
        greys = [_GREYS[round(float(v) * (len(_GREYS) - 1))] for v in levels]
        return "".join(f"\x1b[48;5;{g}m  " for g in greys) + "\x1b[0m"
    shades = _SHADES if can_show(_SHADES) else _PLAIN_SHADES
    return "".join(2 * shades[round(float(v) * (len(shades) - 1))] for v in levels)
