"""Profile a load and a run; the file opens in Perfetto or chrome://tracing."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np

import sardonyx
from sardonyx.models import DIGITS

with tempfile.TemporaryDirectory() as folder:
    options = sardonyx.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = os.path.join(folder, "profile")
    session = sardonyx.InferenceSession(DIGITS, options)
    session.run(None, {session.get_inputs()[0].name: np.zeros((1, 1, 8, 8), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())

for event in sorted(events, key=lambda e: -e["dur"])[:8]:
    print(f"{event['dur']:8} µs  {event['cat']:8} {event['name']}")
