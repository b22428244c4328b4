"""Fixtures of tests about sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sardonyx.ops import custom_ops, forget


@pytest.fixture
def unregistered_ops() -> Iterator[None]:
    """Unregister all custom ops after the test."""
    yield
    for op in custom_ops():
        forget(*op.key)
