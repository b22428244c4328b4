#!/usr/bin/env python3
"""Runs test suites of packages that make ONNX models, on onnxruntime and on Sardonyx.

    suites.py --cache FOLDER --sources FOLDER                    all, into docs/packages.md
    suites.py --cache FOLDER --sources FOLDER --only skl2onnx    one of them; other rows stay

The second folder has the source of each package under its name: an unpacked source distribution,
or a checkout. It is installed in an environment of its own, in the first folder, and its tests run
unmodified with onnxruntime and with `python -m sardonyx.as_onnxruntime`. Tests that pass with
onnxruntime and not with Sardonyx are listed, and are an error unless `REASONS` explains them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packages import AS_ONNXRUNTIME, NEEDED, PAGE, RUNTIMES, Trouble, install, link_sardonyx

from sardonyx.base.atomic_file import writing

BEGIN, END = "<!-- begin of what tools/suites.py writes -->", "<!-- end of suites -->"
TESTING = ("pytest", "pytest-xdist", "google-re2", "pandas")
SECONDS = 3600  # for one suite


@dataclass(frozen=True, slots=True)
class Suite:
    """The tests of a package, and what they need beside it."""

    name: str
    requires: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()  # folders whose packages cannot be installed here


SUITES = (
    Suite("onnxconverter-common", ("onnxmltools",)),
    Suite(
        "onnxmltools",
        ("catboost", "dill", "libsvm", "lightgbm", "onnxconverter-common", "xgboost"),
        ("coreml", "h2o", "hummingbirdml", "sparkml"),
    ),
    Suite("skl2onnx"),
)

_SPLIT = (
    "wants whole trees to be less exact than split ones: here both are within 4e-8 of LightGBM's "
    "values, and whole ones as near or nearer"
)

# Tests that pass with onnxruntime only, by the end of their name, and why.
REASONS = {
    "ModelsSplit.test_lgbm_regressor": _SPLIT,
    "ModelsSplit.test_lightgbm_booster_regressor": _SPLIT,
    "test_auto_mixed_precision_rtol_atol": "wants a relative 0.01 of values near zero in float16: "
    "results differ by up to 3.3e-3 from float32's, onnxruntime's by up to 1.9e-3",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The tests of one suite that pass on each runtime."""

    suite: Suite
    passed: dict[str, set[str]]  # names of tests by runtime

    @property
    def lost(self) -> list[str]:
        """Tests that pass with onnxruntime only."""
        theirs, ours = (self.passed[runtime] for runtime in RUNTIMES)
        return sorted(theirs - ours)

    @property
    def unexplained(self) -> list[str]:
        """Those of them that have no reason."""
        return [name for name in self.lost if not name.endswith(tuple(REASONS))]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder for environments")
    parser.add_argument("--sources", type=Path, required=True, help="folder of the packages")
    parser.add_argument("--only", default="", help="packages, with commas between")
    parser.add_argument("--workers", type=int, default=2, help="processes of a suite")
    given = parser.parse_args()
    chosen = [name for name in given.only.split(",") if name]
    unexplained = []
    for suite in (s for s in SUITES if not chosen or s.name in chosen):
        source = (given.sources / suite.name).resolve()
        python = environment(suite, source, given.cache.resolve())
        found = Comparison(
            suite, {each: run(suite, source, python, each, given.workers) for each in RUNTIMES}
        )
        print(as_cells(found))
        for name in found.lost:
            known = [why for end, why in REASONS.items() if name.endswith(end)]
            print(f"  {name}: {known[0] if known else 'not explained'}")
        write_row(found)
        unexplained += found.unexplained
    return 1 if unexplained else 0


def environment(suite: Suite, source: Path, cache: Path) -> Path:
    """The Python of an environment with the package's source and what its tests need."""
    if not (source / "tests").is_dir():
        raise SystemExit(f"{source} has no folder tests: unpack the source of {suite.name} there")
    requires = (*NEEDED, *TESTING, *suite.requires, str(source))
    python = install(cache / "suites" / suite.name, requires)
    link_sardonyx(cache)
    return python


def run(suite: Suite, source: Path, python: Path, runtime: str, workers: int) -> set[str]:
    """The names of the tests that pass. A suite with failures still has a result."""
    report = python.parents[1] / f"{runtime}.xml"
    report.unlink(missing_ok=True)
    start = [str(python), *(() if runtime == "onnxruntime" else AS_ONNXRUNTIME)]
    options = [f"--ignore=tests/{folder}" for folder in suite.ignored]
    options += ["-q", "-p", "no:cacheprovider", "-n", str(workers), f"--junitxml={report}"]
    alone = python.parents[3] / "sardonyx-alone"
    try:
        done = subprocess.run(
            [*start, "-m", "pytest", "tests", *options],
            cwd=source,
            env={**os.environ, "PYTHONPATH": str(alone) if runtime == "sardonyx" else ""},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Trouble(f"{suite.name}: not done after {SECONDS} s") from None
    passed = passing(report) if report.exists() else set()
    if not passed:
        raise Trouble(f"{suite.name} on {runtime}: no test passed: {done.stdout[-500:]}")
    return passed


def passing(report: Path) -> set[str]:
    """The names of tests that a report in JUnit's format calls passed."""
    cases = list(ET.parse(report).iter("testcase"))
    bad = {name_of(case) for case in cases if is_bad(case)}
    return {name_of(case) for case in cases} - bad


def is_bad(case: ET.Element) -> bool:
    """Whether a test, or one of its subtests, failed or was skipped."""
    return any(child.tag in {"failure", "error", "skipped"} for child in case)


def name_of(case: ET.Element) -> str:
    return f"{case.get('classname')}.{case.get('name')}"


def write_row(found: Comparison) -> None:
    """Replaces the row of a suite in docs/packages.md."""
    before, rest = PAGE.read_text().split(BEGIN)
    old, after = rest.split(END)
    rows = {line.split(" | ")[0]: line for line in old.splitlines() if line.startswith("| ")}
    rows.pop("| tests of", None)
    line = as_cells(found)
    rows[line.split(" | ")[0]] = line
    with writing(str(PAGE)) as file:
        file.write("\n".join([before.rstrip(), "", BEGIN, *table(rows.values()), END]).encode())
        file.write(after.encode())


def table(rows: Iterable[str]) -> list[str]:
    """The rows with their head."""
    return [
        "| tests of | pass with onnxruntime | of these with Sardonyx |",
        "|---|---|---|",
        *sorted(rows),
    ]


def as_cells(found: Comparison) -> str:
    """A row of the table."""
    n = len(found.passed["onnxruntime"])
    return f"| {found.suite.name} | {n} | {n - len(found.lost)} |"


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Trouble as trouble:
        raise SystemExit(f"{trouble}") from None
