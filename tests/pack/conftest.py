"""Fixtures of tests about packs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sardonyx.pack import checksums as sums
from sardonyx.pack import verification_cache as known
from sardonyx.pack.checksums import Place
from tests.pack.model_files import Reads


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is known: neither to this process nor to a folder, which is given."""
    folder = tmp_path / "account"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    known._here.clear()
    monkeypatch.setattr("sardonyx.session.inference.cache_key", lambda *_: None)  # each has its own
    yield folder / "sardonyx" / "checked"
    known._here.clear()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted = Reads()
    plain = sums._sum

    def counting(place: Place) -> str:
        counted.size_bytes += place.length
        return plain(place)

    monkeypatch.setattr(sums, "_sum", counting)
    return counted
