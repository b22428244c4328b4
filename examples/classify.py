"""Run a model: the built-in reader of handwritten digits on its samples."""

import numpy as np

import sardonyx
from sardonyx.models import DIGITS, SAMPLES

session = sardonyx.InferenceSession(DIGITS)
with np.load(SAMPLES) as samples:
    images, labels = samples["image"], samples["label"]

(probabilities,) = session.run(None, {session.get_inputs()[0].name: images})
for label, row in zip(labels, probabilities, strict=True):
    print(f"a {label} read as {row.argmax()} with probability {row.max():.2f}")
