"""Draws the figures of docs/ from the tables of docs/results.md: `python tools/figures.py`.

Each is one SVG that follows the reader's light or dark scheme. `--check` fails if a file is not
what the tables give.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "docs" / "results.md"
FOLDER: Final = ROOT / "docs" / "figures"
_ROW, _BAR, _LABEL, _VALUE, _HEAD, _GAP, _MARGIN = 19, 11, 190, 64, 42, 30, 14  # pixels
_START: Final = "| model | start: onnxruntime"
_MEMORY: Final = "| model | onnxruntime | sardonyx | ratio | with"
_SHOWN: Final = ("bert_base", "gpt2", "vit_base", "resnet50_qdq_int8")  # in README
_STYLE: Final = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1b1f24 }
.title { font-size: 14px; font-weight: 600 }
.paper { fill: #ffffff } .soft, .number { fill: #5b6570 } .number { font-size: 11px }
.ours { fill: #0b63ce } .theirs { fill: #b4bcc6 } .line { stroke: #c62828; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  .paper { fill: #14171a } text { fill: #e7eaee } .soft, .number { fill: #9aa5b1 }
  .ours { fill: #6cb0ff } .theirs { fill: #59626d }
  .line { stroke: #ff7568 }
}
"""

Table = list[list[str]]


class Bar(NamedTuple):
    """A row of a chart: its name, and the length and text of each bar."""

    name: str
    bars: Sequence[tuple[float, str, str]]  # length, class, text


class Chart(NamedTuple):
    """Bars under a title, and a number at which a line is drawn."""

    title: str
    remark: str
    rows: Sequence[Bar]
    line: float = 0.0


def tables(text: str) -> dict[str, Table]:
    """Return the tables of a page by their first line; the first of equal ones."""
    found: dict[str, Table] = {}
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = block.strip().split("\n")
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        found.setdefault(lines[0], rows[:1] + rows[2:])
    return found


def table(found: dict[str, Table], beginning: str) -> Table:
    """Return the rows of the table whose first line begins like this."""
    (key,) = [key for key in found if key.startswith(beginning)]
    return found[key][1:]


def number(cell: str) -> float:
    """Return the first number of a cell."""
    match = re.search(r"\d+(?:\.\d+)?", cell.replace(",", ""))
    if match is None:
        raise ValueError(f"no number in {cell!r}")
    return float(match[0])


def seconds(cell: str) -> float:
    """Return a time in seconds."""
    return number(cell) / (1000 if "ms" in cell else 1)


def drawn(chart: Chart, width: int) -> tuple[str, int]:
    """Return the SVG elements of a chart, and its height."""
    longest = max(length for row in chart.rows for length, _, _ in row.bars)
    scale = (width - _LABEL - _VALUE) / longest
    parts = [f'<text class="title" x="0" y="15">{escape(chart.title)}</text>']
    parts.append(f'<text class="soft" x="0" y="32">{escape(chart.remark)}</text>')
    y = _HEAD
    for row in chart.rows:
        height = _ROW + (_BAR + 2) * (len(row.bars) - 1)
        middle = y + height / 2 + 4 - 2
        parts.append(
            f'<text x="{_LABEL - 8}" y="{middle:g}" text-anchor="end">{escape(row.name)}</text>'
        )
        for i, (length, kind, text) in enumerate(row.bars):
            top, wide = y + 2 + i * (_BAR + 2), max(1.0, length * scale)
            parts.append(
                f'<rect class="{kind}" x="{_LABEL}" y="{top}" width="{wide:.1f}" '
                f'height="{_BAR}" rx="2"/><text class="number" x="{_LABEL + wide + 5:.1f}" '
                f'y="{top + 9.5}">{escape(text)}</text>'
            )
        y += height
    if chart.line:
        x = _LABEL + chart.line * scale
        parts.append(f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{_HEAD - 4}" y2="{y}"/>')
    return "".join(parts), y + 6


def picture(columns: Sequence[Sequence[Chart]], about: str, width: int = 860) -> str:
    """Return charts in columns as one SVG."""
    wide = (width - _GAP * (len(columns) - 1)) // len(columns)
    parts, total = [], 0
    for place, column in enumerate(columns):
        y = 0
        for chart in column:
            inside, height = drawn(chart, wide)
            parts.append(f'<g transform="translate({place * (wide + _GAP)} {y})">{inside}</g>')
            y += height + _GAP // 2
        total = max(total, y - _GAP // 2)
    outer, high = width + 2 * _MARGIN, total + 2 * _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {outer} {high}" width="{outer}" '
        f'height="{high}" role="img" aria-label="{escape(about)}">'
        f'<title>{escape(about)}</title><style>{_STYLE}</style><rect class="paper" '
        f'width="{outer}" height="{high}" rx="8"/>'
        f'<g transform="translate({_MARGIN} {_MARGIN})">{"".join(parts)}</g></svg>\n'
    )


def ratio_rows(rows: Table, column: int) -> list[Bar]:
    """Return a bar for each ratio of a column, the longest first."""
    found = [(number(row[column]), row[0]) for row in rows if "x" in row[column]]
    return [Bar(name, [(r, "ours", f"{r:.2f}x")]) for r, name in sorted(found, reverse=True)]


def pair(name: str, theirs: str, ours: str, measure: Callable[[str], float]) -> Bar:
    """Return a row with a bar of onnxruntime and one of ours."""
    return Bar(name, [(measure(theirs), "theirs", theirs), (measure(ours), "ours", ours)])


def run_pair(row: Sequence[str]) -> Bar:
    """Return a row of the memory of a run."""
    return pair(row[0], f"{row[1]} MB", f"{row[2]} MB", number)


def speed(found: dict[str, Table]) -> str:
    """Speed by model."""
    rows = ratio_rows(table(found, "| model | onnxruntime | OpenVINO"), 4)
    remark = (
        "time of onnxruntime divided by ours, two threads; right of the line Sardonyx is faster"
    )
    return picture(
        [[Chart("Speed by model", remark, rows, 1.0)]], "Speed by model against onnxruntime"
    )


def overview(found: dict[str, Table]) -> str:
    """Speed by family, start and memory: the picture of README."""
    families = table(found, "| models | against onnxruntime")
    speeds = [Bar(r[0], [(number(r[1]), "ours", r[1])]) for r in families]
    runs = table(found, _MEMORY)
    starts = [r for r in table(found, _START) if r[0] in _SHOWN]
    grey = "grey: onnxruntime, blue: Sardonyx"
    columns = (
        (
            Chart(
                "Speed against onnxruntime", "geometric means; right of 1x is faster", speeds, 1.0
            ),
            Chart("Memory of a run, batch 8", grey, [run_pair(r) for r in runs if r[0] in _SHOWN]),
        ),
        (
            Chart("Start of a session", grey, [pair(r[0], r[1], r[2], seconds) for r in starts]),
            Chart("Memory at start", grey, [pair(r[0], r[3], r[4], number) for r in starts]),
        ),
    )
    return picture(columns, "Speed, start and memory against onnxruntime", 940)


def memory(found: dict[str, Table]) -> str:
    """Memory of a run by model."""
    rows = [run_pair(r) for r in table(found, _MEMORY)]
    remark = "anonymous memory that a run adds at batch 8; grey: onnxruntime, blue: Sardonyx"
    return picture([[Chart("Memory of a run", remark, rows)]], "Memory of a run by model")


def start(found: dict[str, Table]) -> str:
    """Start of a session by model."""
    rows = [pair(r[0], r[1], r[2], seconds) for r in table(found, _START)]
    remark = "sessions in new processes, without a pack; grey: onnxruntime, blue: Sardonyx"
    return picture([[Chart("Start of a session", remark, rows)]], "Start of a session by model")


def kernels(found: dict[str, Table]) -> str:
    """Kernels against the roofline."""
    rows = [
        Bar(re.sub(r" \(.*", "", r[0]), [(number(r[3]), "ours", r[3])])
        for r in table(found, "| family | cases")
        if r[3]
    ]
    remark = "median share of the limit of arithmetic or memory, two threads; Winograd exceeds it"
    return picture(
        [[Chart("Kernels against the roofline", remark, rows, 1.0)]], "Kernels against the roofline"
    )


def gpu(found: dict[str, Table]) -> str:
    """GPU networks against torch.compile."""
    rows = [
        Bar(f"{r[0]} {r[1]}, {r[2]}", [(number(r[6]), "ours", f"{r[6]}x")])
        for r in table(found, "| network | type | batch")
    ]
    remark = "time of torch.compile (reduce-overhead) divided by ours; network, type, batch"
    return picture(
        [[Chart("Networks on an H200", remark, rows, 1.0)]], "GPU networks against torch.compile"
    )


FIGURES: Final = (overview, speed, memory, start, kernels, gpu)


def figures() -> dict[Path, str]:
    """Return every figure by its file."""
    found = tables(RESULTS.read_text())
    return {FOLDER / f"{make.__name__}.svg": make(found) for make in FIGURES}


def main() -> int:
    """Write the figures, or compare them."""
    stale = [
        path for path, svg in figures().items() if not path.exists() or path.read_text() != svg
    ]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(
                f"{path.relative_to(ROOT)} is not drawn from docs/results.md as it is: "
                "run python tools/figures.py"
            )
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for path, svg in figures().items():
        path.write_text(svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
