"""Where the memory of a run goes: the plan, and what each node took."""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np

import sardonyx
from sardonyx.cli import main
from sardonyx.models import DIGITS

with tempfile.TemporaryDirectory() as folder:
    # On the command line: sardonyx plan MODEL --dims batch=64 --html plan.html
    page = pathlib.Path(folder) / "plan.html"
    main(["plan", str(DIGITS), "--dims", "batch=64", "--html", str(page)])
    print(f"\nthe page has {page.stat().st_size} bytes")

    # What onnxruntime collects by node, this session writes too.
    stats = pathlib.Path(folder) / "stats.csv"
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", str(stats))
    session = sardonyx.InferenceSession(DIGITS, options)
    session.run(None, {"image": np.zeros((64, 1, 8, 8), np.float32)})
    print(f"\n{stats.read_text()}")
