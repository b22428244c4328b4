"""Sizes and times as text with a unit."""

from __future__ import annotations


def format_bytes(n_bytes: float) -> str:
    """Return a size with three significant digits, in powers of 1000: `1.23 MB`."""
    sign, n_bytes = "-" if n_bytes < 0 else "", abs(n_bytes)
    if n_bytes < 1000:
        return f"{sign}{n_bytes:.0f} B"
    for power, unit in enumerate(("KB", "MB", "GB"), 1):
        scaled = n_bytes / 1000**power
        if scaled < 999.5:
            return f"{sign}{_three_digits(scaled)} {unit}"
    return f"{sign}{_three_digits(n_bytes / 1e12)} TB"


def format_seconds(seconds: float) -> str:
    """Return a time with three significant digits: `12.3 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 0.9995:
            return f"{_three_digits(seconds * scale)} {unit}"
    return f"{_three_digits(seconds * 1e6)} µs"


def _three_digits(number: float) -> str:
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"
