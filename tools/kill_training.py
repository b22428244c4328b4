#!/usr/bin/env python3
"""Kills a training run at random moments, resumes it, and compares what it ends with.

kill_training.py --kills 60      60 times kill -9; each run must end as one that was not killed
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.train.killed import check  # noqa: E402  # needs the path above


def main() -> None:
    """Kills, and prints what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):  # of the run that is not killed
            result = check(Path(folder), arguments.kills, arguments.seed)
        print(result)


if __name__ == "__main__":
    main()
