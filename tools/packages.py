#!/usr/bin/env python3
"""Runs packages that use onnxruntime on Sardonyx, unmodified, and compares their answers.

    packages.py --cache FOLDER                       all of tools/programs, into docs/packages.md
    packages.py --cache FOLDER --only magika,osam    some of them; the other rows stay

Each program of tools/programs uses one package through its public interface. It runs in an
environment of its own, made once and kept in FOLDER: with onnxruntime, and with
`python -m sardonyx.as_onnxruntime`, interleaved. Texts, labels and integers must be equal, other
numbers close. Needs the package index for environments that are not there yet.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sardonyx
from sardonyx.as_onnxruntime import SHADOW
from sardonyx.base.atomic_file import writing

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tools" / "programs"
PAGE = ROOT / "docs" / "packages.md"
BEGIN, END = "<!-- begin of what tools/packages.py writes -->", "<!-- end -->"
RUNTIMES = ("onnxruntime", "sardonyx")
NEEDED = (f"onnxruntime=={sardonyx.ORT_VERSION}", "numpy>=1.26", "ml_dtypes>=0.5")
MIN_SAME = 15  # packages that must give the same answers
RELATIVE, ABSOLUTE = 1e-3, 1e-4
SECONDS = 600  # for one run of a program
MARK = "result: "  # before what tools/programs/run.py found
AS_ONNXRUNTIME = ("-m", "sardonyx.as_onnxruntime")


@dataclass(frozen=True, slots=True)
class Program:
    """A program of tools/programs and what it says of itself (PEP 723)."""

    name: str
    does: str
    requires: tuple[str, ...]
    without_dependencies: tuple[str, ...]
    absolute: float

    @property
    def package(self) -> str:
        """The package it is about, with its version."""
        known = re.sub(r"[-_.]+", "_", self.name).removeprefix("use_")
        every = (*self.without_dependencies, *self.requires)
        return next(r for r in every if re.sub(r"[-_.]+", "_", r).startswith(known))

    @property
    def title(self) -> str:
        """The first cell of its row."""
        return self.package.replace("==", " ")


@dataclass(frozen=True, slots=True)
class Row:
    """The comparison of one program on both runtimes."""

    program: Program
    verdict: str
    times: dict[str, tuple[float, float]]  # start and run by runtime; empty if it did not run
    largest: float = 0.0  # difference of numbers

    @property
    def is_same(self) -> bool:
        """Whether both runtimes gave the same answers."""
        return self.verdict == "same"


class Trouble(Exception):
    """A program that could not be run, and why."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder for environments")
    parser.add_argument("--only", default="", help="packages, with commas between")
    parser.add_argument(
        "--processes", type=int, default=2, help="for each runtime; the best counts"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of work in each process, at least")
    given = parser.parse_args()
    chosen = [name.replace("-", "_") for name in given.only.split(",") if name]
    programs = [read(path) for path in sorted(PROGRAMS.glob("use_*.py"))]
    programs = [p for p in programs if not chosen or p.name.removeprefix("use_") in chosen]
    cache = given.cache.resolve()
    rows = []
    for number, program in enumerate(programs, 1):
        print(f"[{number}/{len(programs)}] {program.package}", end="", flush=True)
        row = attempt(program, cache, given.processes, given.rounds)
        rows.append(row)
        print(f"\r[{number}/{len(programs)}] {as_line(row)}", flush=True)
    same = sum(row.is_same for row in rows)
    print(f"{same} of {len(rows)} packages give the same answers")
    write_page(rows, {read(path).title for path in PROGRAMS.glob("use_*.py")})
    print(f"written: {PAGE.relative_to(ROOT)}")
    failed = [row for row in rows if row.verdict.startswith(("differs", "sardonyx"))]
    return 1 if failed or same < min(MIN_SAME, len(programs)) else 0


def read(path: Path) -> Program:
    """Read the header and the first line of a program."""
    text = path.read_text()
    header = re.search(r"^# /// script\n(.*?)^# ///$", text, re.MULTILINE | re.DOTALL)
    does = re.search(r'^"""[^:]*: (.*?)\.?"""', text, re.MULTILINE)
    assert header is not None, path
    assert does is not None, path
    said = tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))
    own = said.get("tool", {}).get("packages", {})
    alone = tuple(own.get("without-dependencies", ()))
    absolute = float(own.get("absolute", ABSOLUTE))
    return Program(path.stem, does[1], tuple(said["dependencies"]), alone, absolute)


def attempt(program: Program, cache: Path, processes: int, rounds: int) -> Row:
    """Installs, runs on both runtimes, interleaved, and compares."""
    try:
        python = environment(program, cache)
        found: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in RUNTIMES}
        for _ in range(processes):
            for runtime in RUNTIMES:
                found[runtime].append(run(program, python, runtime, rounds))
    except Trouble as trouble:
        return Row(program, str(trouble), {})
    times = {
        runtime: (min(f["start"] for f in each), min(f["run"] for f in each))
        for runtime, each in found.items()
    }
    ours, theirs = (found[runtime][0]["found"] for runtime in reversed(RUNTIMES))
    differences = list(compare(ours, theirs, program.absolute))
    largest = max((size for _, size, _ in differences), default=0.0)
    wrong = next((where for where, _, is_wrong in differences if is_wrong), None)
    return Row(program, "same" if wrong is None else f"differs: {wrong}", times, largest)


def environment(program: Program, cache: Path) -> Path:
    """The Python of an environment that holds the package, onnxruntime and the way to Sardonyx."""
    folder = cache / program.name.removeprefix("use_")
    python = install(folder, (*NEEDED, *program.requires), program.without_dependencies)
    link_sardonyx(cache)
    return python


def install(
    folder: Path, requires: Sequence[str], without_dependencies: Sequence[str] = ()
) -> Path:
    """The Python of an environment with these packages, made unless it has just these."""
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join((*requires, "", *without_dependencies, ""))
    if not stamp.exists() or stamp.read_text() != wanted:
        stamp.unlink(missing_ok=True)
        call([sys.executable, "-m", "venv", "--clear", str(folder)], "venv")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
        call([*pip, *requires], "pip")
        if without_dependencies:
            call([*pip, "--no-deps", *without_dependencies], "pip")
        with writing(str(stamp)) as file:
            file.write(wanted.encode())
    return python


def link_sardonyx(cache: Path) -> None:
    """Makes FOLDER/sardonyx-alone, for a path that has nothing else of where it is installed."""
    alone = cache / "sardonyx-alone" / "sardonyx"
    alone.parent.mkdir(exist_ok=True)
    alone.unlink(missing_ok=True)
    alone.symlink_to(Path(sardonyx.__file__).parent)


def run(program: Program, python: Path, runtime: str, rounds: int) -> dict[str, Any]:
    """One process: what was found, seconds to the first result and of later ones."""
    start = [str(python)] if runtime == "onnxruntime" else [str(python), *AS_ONNXRUNTIME]
    paths = {"PYTHONPATH": str(python.parents[2] / "sardonyx-alone")}
    began = time.perf_counter()
    output = call(
        [*start, str(PROGRAMS / "run.py"), program.name, str(rounds)],
        runtime,
        env={**os.environ, **(paths if runtime == "sardonyx" else {"PYTHONPATH": ""})},
    )
    seconds = time.perf_counter() - began
    line = next((at for at in reversed(output.splitlines()) if at.startswith(MARK)), None)
    if line is None:
        raise Trouble(f"{runtime}: it ended before it had a result")
    said: dict[str, Any] = json.loads(line.removeprefix(MARK))
    said["start"] = seconds - said.pop("later")
    check_runtime(said["runtime"], runtime)
    return said


def check_runtime(said: dict[str, Any], runtime: str) -> None:
    """The program ran on what it was to run on, and on nothing else."""
    is_ours = Path(said["file"]).resolve().is_relative_to(Path(SHADOW).resolve())
    if is_ours != (runtime == "sardonyx") or said["has_library"] == is_ours:
        raise Trouble(f"{runtime}: the program imported {said['file']}")


def call(command: Sequence[str], what: str, **options: Any) -> str:
    """Run a command and return its output."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise Trouble(f"{what}: not done after {SECONDS} s") from None
    if done.returncode != 0:
        raise Trouble(f"{what}: {reason(done.stderr)[:200]} (exit code {done.returncode})")
    return done.stdout


def reason(text: str) -> str:
    """The line of an error's class and words, or else the last one."""
    lines = [line for line in text.splitlines() if line.strip()] or ["no words"]
    named = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: ", line)]
    return (named or lines)[-1].strip()


def compare(
    ours: Any, theirs: Any, absolute: float, where: str = ""
) -> Iterator[tuple[str, float, bool]]:
    """Each difference: where, how large, whether it is too large."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and [*ours] == [*theirs]:
        for key in ours:
            yield from compare(ours[key], theirs[key], absolute, f"{where}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from compare(*pair, absolute, f"{where}[{number}]")
    elif is_number(ours) and is_number(theirs):
        is_whole = isinstance(ours, int) and isinstance(theirs, int) and absolute < 1
        close = math.isclose(ours, theirs, rel_tol=RELATIVE, abs_tol=absolute)
        if ours != theirs and not (math.isnan(ours) and math.isnan(theirs)):
            wrong = is_whole or not close
            yield f"{where} is {ours}, not {theirs}", abs(ours - theirs), wrong
    elif type(ours) is not type(theirs) or ours != theirs:
        yield f"{where} is {brief(ours)}, not {brief(theirs)}", math.inf, True


def is_number(value: Any) -> bool:
    """Whether numbers' rules apply; truth values are labels."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def brief(value: Any) -> str:
    """A value, cut to what fits in a line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def as_line(row: Row) -> str:
    """A row for the terminal."""
    if not row.times:
        return f"{row.program.package:28} {row.verdict}"
    (s0, r0), (s1, r1) = (row.times[runtime] for runtime in RUNTIMES)
    figures = f"start {s0:6.2f} -> {s1:6.2f} s   run {1e3 * r0:8.1f} -> {1e3 * r1:8.1f} ms"
    return f"{row.program.package:28} {figures}   {row.verdict} (within {row.largest:.1e})"


def write_page(rows: Sequence[Row], titles: set[str]) -> None:
    """Replaces rows of the table in docs/packages.md, and drops those without a program."""
    before, rest = PAGE.read_text().split(BEGIN)
    old, after = rest.split(END)
    table = {line.split(" | ")[0].removeprefix("| "): line for line in old.splitlines()}
    table |= {row.program.title: as_cells(row) for row in rows}
    table = {title: line for title, line in sorted(table.items()) if title in titles}
    same = sum(" | same | " in line for line in table.values())
    lines = [
        f"{same} of {len(table)} packages give the same answers.",
        "",
        "| package | what it does here | answers | differ by | start, s | run, ms |",
        "|---|---|---|---|---|---|",
        *table.values(),
    ]
    with writing(str(PAGE)) as file:
        file.write("\n".join([before.rstrip(), "", BEGIN, *lines, END]).encode() + after.encode())


def as_cells(row: Row) -> str:
    """A row of the table."""
    program = row.program
    cells = [program.title, program.does, row.verdict]
    if row.times:
        (s0, r0), (s1, r1) = (row.times[runtime] for runtime in RUNTIMES)
        cells.append(f"{row.largest:.0e}" if row.largest else "0")
        cells += [f"{s0:.2f} → {s1:.2f}", f"{1e3 * r0:.1f} → {1e3 * r1:.1f}"]
    else:
        cells += [""] * 3
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
