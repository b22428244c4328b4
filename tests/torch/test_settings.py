"""Process-wide settings of torch under concurrent runs that request different ones."""

from __future__ import annotations

import threading
import time

import pytest

pytest.importorskip("torch")
from sardonyx.providers.torch.settings import ProcessSettings, _state


def test_each_run_has_its_settings_and_the_process_keeps_its_own() -> None:
    before, settings, wrong = _state(), ProcessSettings(), []

    def work(wish: tuple[bool, bool]) -> None:
        for _ in range(50):
            with settings.applied(*wish):
                time.sleep(1e-5)
                if _state() != (wish[0], *wish):
                    wrong.append(wish)

    wishes = [(True, True), (False, False), (True, False)]
    threads = [threading.Thread(target=work, args=(wish,), daemon=True) for wish in wishes * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert (wrong, _state()) == ([], before)


def test_runs_with_equal_settings_are_concurrent() -> None:
    settings, there = ProcessSettings(), threading.Barrier(2, timeout=10)

    def work() -> None:
        with settings.applied(True, False):
            there.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not there.broken


def test_an_error_in_a_run_leaves_what_was_set() -> None:
    before, settings = _state(), ProcessSettings()
    with pytest.raises(ValueError, match="no"), settings.applied(not before[0], True):
        raise ValueError("no")
    assert _state() == before
