"""Fixtures of tests about packs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sardonyx.pack import checksums, verification_cache
from sardonyx.pack.checksums import FileRange
from tests.pack.model_files import Reads


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing is known: neither to this process nor to a folder, which is given."""
    folder = tmp_path / "account"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    verification_cache._process_cache.clear()
    monkeypatch.setattr("sardonyx.session.inference.cache_key", lambda *_: None)  # each has its own
    yield folder / "sardonyx" / "checked"
    verification_cache._process_cache.clear()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counted = Reads()
    plain = checksums._digest

    def counting(place: FileRange) -> str:
        counted.size_bytes += place.length
        return plain(place)

    monkeypatch.setattr(checksums, "_digest", counting)
    return counted
