"""How much of the requests a server keeps in memory."""

from __future__ import annotations

from sardonyx.serve.refusals import Unavailable


class HeldBytes:
    """The bytes of all bodies that a server holds, each until its answer is made."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0

    def take(self, count: int) -> None:
        """Count bytes that arrived, or refuse their request."""
        if self.count + count > self._limit:
            # Not 429, which is for the queue of one model: this limit is shared by all requests.
            raise Unavailable(
                f"request memory is full ({self.count} of {self._limit} bytes): try again later"
            )
        self.count += count

    def give_back(self, count: int) -> None:
        """Take bytes from the count that are no longer held."""
        self.count -= count
