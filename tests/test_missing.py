"""Failures that count as skips: those of a package that is missing, and no others."""

from __future__ import annotations

import sys

import pytest

from sardonyx.errors import NotImplemented
from tests.missing import reason

WANTED = "RegexFullMatch needs the package google-re2: pip install sardonyx[regex]"


def raised(what: BaseException, context: BaseException | None = None) -> BaseException:
    what.__context__ = context
    return what


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("re2", "PIL"):
        monkeypatch.setitem(sys.modules, name, None)
    errors = [
        NotImplemented(WANTED),
        raised(AssertionError("another text was wanted"), NotImplemented(WANTED)),
        ModuleNotFoundError("No module named 're2'", name="re2"),
    ]
    for error in errors:
        assert reason(error) == "the package of the module re2 is missing"
    assert "PIL" in (reason(ModuleNotFoundError("", name="PIL.Image")) or "")


def test_other_failures_stay_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", type(sys)("re2"))
    assert reason(NotImplemented(WANTED)) is None  # it is there, and the op says otherwise
    monkeypatch.setitem(sys.modules, "re2", None)
    errors = [
        NotImplemented("Det has no gradient"),
        AssertionError("1 != 2"),
        ModuleNotFoundError("No module named 'sardonyx.ops'", name="sardonyx.ops"),
    ]
    for error in errors:
        assert reason(error) is None
