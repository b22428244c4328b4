"""Config keys and values are strings."""

from __future__ import annotations

from typing import Any

import pytest

import sardonyx


@pytest.mark.parametrize(("key", "value"), [("x", 0), (1, "y"), ("x", None)])
def test_config_entries_are_strings(key: Any, value: Any) -> None:
    for add in (
        sardonyx.SessionOptions().add_session_config_entry,
        sardonyx.RunOptions().add_run_config_entry,
    ):
        with pytest.raises(TypeError, match="key and its value must be strings"):
            add(key, value)
