"""Messages of sessions where the program has not imported Python's logging."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
import sardonyx
from sardonyx.base.log import session_logger
assert "logging" not in sys.modules
log = session_logger({severity})
log.debug("one %d", 1)
log.info("two")
log.warning("three")
"""


@pytest.mark.parametrize(
    ("severity", "said"),
    [
        (-1, ["three"]),
        (0, ["one 1", "two", "three"]),
        (1, ["two", "three"]),
        (2, ["three"]),
        (3, []),
    ],
)
def test_log_severity(severity: int, said: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", CODE.format(severity=severity)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.rpartition("] ")[2] for line in ran.stderr.splitlines()] == said
