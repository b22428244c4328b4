"""Write the optimized model, with its weights in a file of their own, and load it again."""

import tempfile
from pathlib import Path

import numpy as np

import sardonyx
from sardonyx.models import DIGITS

image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32)
with tempfile.TemporaryDirectory() as folder:
    options = sardonyx.SessionOptions()
    options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "optimized.bin"
    )
    original = sardonyx.InferenceSession(DIGITS, options)
    saved = sardonyx.InferenceSession(options.optimized_model_filepath)
    name = original.get_inputs()[0].name
    difference = np.abs(original.run(None, {name: image})[0] - saved.run(None, {name: image})[0])
    for file in sorted(Path(folder).iterdir()):
        print(f"{file.name}: {file.stat().st_size} bytes")
    print(f"largest difference: {difference.max():.1e}")
