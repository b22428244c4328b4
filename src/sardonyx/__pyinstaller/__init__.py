"""The hook that PyInstaller finds by the entry point `pyinstaller40` of this package."""

from __future__ import annotations

import os


def hook_folders() -> list[str]:
    """Return the folders with hooks."""
    return [os.path.dirname(__file__)]
