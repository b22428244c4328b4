"""tools/packages.py: headers of programs, and the comparison of answers."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = sorted((ROOT / "tools" / "programs").glob("use_*.py"))


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("packages_tool", ROOT / "tools" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_programs_say_what_they_need(path: Path, tool: Any) -> None:
    program = tool.read(path)
    assert "==" in program.package
    assert program.does
    compile(path.read_text(), path.name, "exec")


# Ours, theirs, how far apart numbers may be, and where they are not the same.
ANSWERS: dict[str, tuple[Any, Any, float, str | None]] = {
    "equal": ({"a": [1, "x", None, True]}, {"a": [1, "x", None, True]}, 1e-4, None),
    "close": ([1.0001, 0.00001], [1.0, 0.0], 1e-4, None),
    "far": ([1.0, 2.1], [1.0, 2.0], 1e-4, "[1] is 2.1, not 2.0"),
    "whole numbers": ({"n": [3]}, {"n": [4]}, 1e-4, ".n[0] is 3, not 4"),
    "whole numbers by their program": ([3], [4], 1, None),
    "texts": (["abc"], ["abd"], 1, '[0] is "abc", not "abd"'),
    "truth": ([True], [1], 1, "[0] is true, not 1"),
    "lengths": ([1, 2], [1], 1, " is [1, 2], not [1]"),
    "keys": ({"a": 1}, {"b": 1}, 1, ' is {"a": 1}, not {"b": 1}'),
    "nan": ([math.nan], [math.nan], 0, None),
    "nan and a number": ([math.nan], [1.0], 1, "[0] is nan, not 1.0"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_equal_answers(name: str, tool: Any) -> None:
    ours, theirs, absolute, wrong = ANSWERS[name]
    found = [where for where, _, is_wrong in tool.compare(ours, theirs, absolute) if is_wrong]
    assert found == ([] if wrong is None else [wrong])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback\n  File x\nValueError: no\n", "ValueError: no"),
        ("a.b.Fail: what\n  node   n\n  stage  infer\n", "a.b.Fail: what"),
        ("Killed\n\n", "Killed"),
        ("", "no words"),
    ],
)
def test_the_reason_of_a_failure(text: str, line: str, tool: Any) -> None:
    assert tool.reason(text) == line


def test_the_page_has_the_place_for_the_table(tool: Any) -> None:
    text = tool.PAGE.read_text()
    assert text.count(tool.BEGIN) == text.count(tool.END) == 1
    assert text.index(tool.BEGIN) < text.index(tool.END)
