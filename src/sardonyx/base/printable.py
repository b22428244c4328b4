"""Names and shapes of a model as text that is safe to print."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str) -> str:
    """Return a text from a model with control characters escaped: a terminal would obey them."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def format_shape(dims: Sequence[object] | None) -> str:
    """Return a shape as `[batch, 3, 224, 224]`; dims without a name are question marks."""
    if dims is None:
        return "[...]"
    return f"[{', '.join('?' if d is None or d == -1 else printable(str(d)) for d in dims)}]"
