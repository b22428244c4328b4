"""The pause of the garbage collector ends as it began, and can be switched off."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import sardonyx
from sardonyx.base.gc_pause import GcPause
from sardonyx.models import DIGITS


@pytest.fixture(autouse=True)
def enabled_gc() -> Iterator[None]:
    yield
    gc.enable()


@pytest.mark.parametrize("was_enabled", [True, False])
def test_state_is_restored(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    with GcPause():
        assert not gc.isenabled()
        with GcPause():
            pass
        assert not gc.isenabled()
    assert gc.isenabled() is was_enabled


def test_state_is_restored_after_an_error() -> None:
    with pytest.raises(sardonyx.SardonyxError):
        sardonyx.InferenceSession(b"no model")
    assert gc.isenabled()


def test_new_objects_are_old_after_a_pause() -> None:
    """No collection scans them: they are in the oldest generation, and nothing is frozen."""
    with GcPause():
        kept: list[object] = [[] for _ in range(10)]
        assert any(each is kept for each in gc.get_objects(0))
    assert any(each is kept for each in gc.get_objects(2))
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_what_the_program_froze_stays_frozen() -> None:
    kept: list[object] = []
    gc.freeze()
    try:
        with GcPause():
            pass
        assert not any(each is kept for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_the_import_changes_no_setting() -> None:
    code = (
        "import gc\nbefore = gc.get_threshold()\nimport sardonyx, sardonyx.models\n"
        "assert gc.isenabled() and gc.get_freeze_count() == 0 and gc.get_threshold() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("value", "is_paused"), [("0", False), ("1", True)])
def test_switch(value: str, is_paused: bool) -> None:
    code = (
        "import gc\nfrom sardonyx.base.gc_pause import GcPause\n"
        f"with GcPause():\n    assert gc.isenabled() is {not is_paused}"
    )
    environment = {**os.environ, "SARDONYX_GC_PAUSE": value}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_compiling_creates_no_cyclic_garbage() -> None:
    """Nodes that passes remove are freed at once, without the collector."""
    sardonyx.InferenceSession(DIGITS)  # imports what the model needs
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        session = sardonyx.InferenceSession(DIGITS)
        gc.collect()
        kinds = {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert session.get_inputs()
    assert not kinds & {"Node", "Value"}
