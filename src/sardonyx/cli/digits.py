"""`sardonyx run` without a model: the built-in digits classifier on its samples."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.base.npz import read_npz
from sardonyx.cli.console import activity, can_encode, console, say
from sardonyx.cli.run import Measured, measure, print_figures, print_files, start_session
from sardonyx.models import DIGITS, SAMPLES

if TYPE_CHECKING:
    from rich.text import Text

DRAWN: Final = 6  # images
BRIGHTEST: Final = 16  # a pixel's largest value
_COLUMNS: Final = 26  # of an image with its answer, and a gap

_SHADES: Final = " ░▒▓█"
_ASCII_SHADES: Final = " .:+#"
_GREYS: Final = range(233, 256)  # of a terminal's 256 colours, dark to light


def run_digits(arguments: argparse.Namespace) -> int:
    """Classify all samples in one batch, time a single one, and print answers and figures."""
    samples = read_npz(SAMPLES)
    images, labels = samples["image"], samples["label"]
    with activity("running the built-in model"):
        started = start_session(arguments, DIGITS)
        measured = measure(arguments, started, {"image": images}, {"image": images[:1]})
    probabilities = measured.outputs[0]
    n_right = int((probabilities.argmax(1) == labels).sum())
    if arguments.json:
        print(json.dumps(_facts(measured, labels, n_right), indent=2))
        return 0
    _draw(images, labels, probabilities)
    colour = "green" if n_right == len(labels) else "yellow"
    say(f"{n_right} of {len(labels)} samples right\n", f"bold {colour}")
    print_figures(measured, " of one image")
    print_files(arguments)
    return 0


def _facts(measured: Measured, labels: Any, n_right: int) -> dict[str, Any]:
    answers = [
        {"label": int(label), "answer": int(row.argmax()), "probability": float(row.max())}
        for label, row in zip(labels, measured.outputs[0], strict=True)
    ]
    return {
        "model": os.fspath(DIGITS),
        "samples": len(labels),
        "right": n_right,
        "answers": answers,
        **measured.facts(),
    }


def _draw(images: Any, labels: Any, probabilities: Any) -> None:
    """Draw the first images with their answers, up to three side by side."""
    from rich.table import Table

    samples = zip(images[:DRAWN], labels, probabilities, strict=False)
    cells = [_cell(image[0], int(label), row) for image, label, row in samples]
    # n cells take n * 26 - 1 columns: no gap after the last.
    abreast = max(1, min(3, (console().width + 1) // _COLUMNS))
    for first in range(0, len(cells), abreast):
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(*cells[first : first + abreast])
        say(grid)
        say()


def _cell(image: Any, label: int, probabilities: Any) -> Text:
    """Return an image with the answer, its probability and the verdict beside it."""
    from rich.text import Text

    answer = int(probabilities.argmax())
    verdict = ("right", "green") if answer == label else (f"is {label}", "red")
    beside = {2: (str(answer), "bold"), 3: (f"{probabilities[answer]:.1%}", "dim"), 4: verdict}
    lines = []
    for y, pixels in enumerate(image):
        text, style = beside.get(y, ("", ""))
        lines.append(Text.assemble(*_pixels(pixels), "  ", (f"{text:<6}", style)))
    return Text("\n").join(lines)


def _pixels(row: Any) -> list[tuple[str, str]]:
    """Return one line of an image; a pixel is two columns, as characters are twice as high."""
    levels = np.clip(np.asarray(row) / BRIGHTEST, 0, 1)
    if console().color_system:
        greys = [_GREYS[round(float(v) * (len(_GREYS) - 1))] for v in levels]
        return [("  ", f"on color({grey})") for grey in greys]
    shades = _SHADES if can_encode(_SHADES) else _ASCII_SHADES
    return [(2 * shades[round(float(v) * (len(shades) - 1))], "") for v in levels]
