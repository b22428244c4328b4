"""The list of modules that `import sardonyx` imports for most models."""

from __future__ import annotations

from pathlib import Path

import pytest

import sardonyx
from sardonyx.preload import MODULES

ROOT = Path(sardonyx.__file__).parent


@pytest.mark.parametrize("name", MODULES)
def test_listed_modules_exist(name: str) -> None:
    path = ROOT.joinpath(*name.split("."))
    assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), (
        f"preload.py lists sardonyx.{name}, which does not exist: rename or remove it there"
    )


def test_no_module_is_listed_twice() -> None:
    assert len(set(MODULES)) == len(MODULES)
