# /// script
# dependencies = [
#   "torch==2.13.0", "scikit-learn<1.6", "onnx", "onnxconverter-common", "onnxscript", "psutil",
#   "dill",
# ]
# [tool.packages]
# without-dependencies = ["hummingbird-ml==0.4.12"]  # it asks for an onnx before 1.17
# ///
"""hummingbird-ml: trees as matrix products, in ONNX."""

import numpy as np
from hummingbird.ml import convert
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)


def make():
    return convert(RandomForestClassifier(10, max_depth=4, random_state=0).fit(X, Y), "onnx", X)


def use(model):
    return {"labels": model.predict(X), "odds": model.predict_proba(X)}
