"""How the requests of one model are queued and joined."""

from __future__ import annotations

from sardonyx.base.records import frozen


@frozen
class BatchSettings:
    """Limits of a queue and of the batches that are made of it."""

    max_rows: int = 64  # 1: requests never run together
    max_delay_s: float = 0.005  # longest wait for more requests while a run could start
    concurrency: int = 1  # runs at a time; each uses the threads of the engine
    queue_requests: int = 256
    queue_bytes: int = 512 << 20
    default_priority: int = 500
    default_timeout_s: float | None = None
