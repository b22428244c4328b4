"""`python -m sardonyx` is the command line."""

from __future__ import annotations

from sardonyx.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
