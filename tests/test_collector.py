"""Objects that become old unseen, and the garbage among them."""

from __future__ import annotations

import gc
import weakref

import pytest

from sardonyx.base import collector
from sardonyx.base.collector import Paused


class Loop:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_as_it_was(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    try:
        with Paused():
            assert not gc.isenabled()
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    try:
        with Paused():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_garbage_is_found_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that come and go one after the other do not fill the memory."""
    monkeypatch.setattr(collector, "MANY", 1000)
    with Paused():
        lost = weakref.ref(Loop())
    for _ in range(20):
        with Paused():
            kept = [[i] for i in range(100)]
    assert lost() is None
    assert len(kept) == 100
