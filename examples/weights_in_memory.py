"""A model in memory finds its external data in buffers that the program gives, uncopied."""

import tempfile
from pathlib import Path

import numpy as np

import sardonyx
from sardonyx.models import DIGITS

with tempfile.TemporaryDirectory() as folder:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(Path(folder) / "model.onnx")
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "weights.bin"
    )
    sardonyx.InferenceSession(DIGITS, options)
    model, weights = (Path(folder, n).read_bytes() for n in ("model.onnx", "weights.bin"))

options = sardonyx.SessionOptions()
options.add_external_initializers_from_files_in_memory(["weights.bin"], [weights], [len(weights)])
session = sardonyx.InferenceSession(model, options)
(y,) = session.run(None, {session.get_inputs()[0].name: np.zeros((1, 1, 8, 8), np.float32)})
print(f"{len(weights)} bytes of weights in memory, output {y.shape}")
