"""Fixtures for the command line."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are not wrapped, as in a pipe: pytest-xdist sets COLUMNS for its workers."""
    monkeypatch.delenv("COLUMNS", raising=False)
