# /// script
# dependencies = ["scikit-learn", "skl2onnx"]
# ///
"""A pipeline of scikit-learn as an ONNX model: scaling and a regression, with the same answers."""

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sardonyx as ort

x, y = load_iris(return_X_y=True)
x = x.astype(np.float32)
pipeline = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
model = to_onnx(pipeline, x[:1], options={"zipmap": False})
session = ort.InferenceSession(model.SerializeToString())
labels, odds = session.run(None, {session.get_inputs()[0].name: x})
print(f"{(labels == pipeline.predict(x)).mean():.0%} of the labels are equal")
print(f"probabilities differ by at most {abs(odds - pipeline.predict_proba(x)).max():.0e}")
