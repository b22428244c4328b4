# /// script
# dependencies = ["onnxmltools==1.16.0", "lightgbm", "onnxconverter-common==1.16.0", "pandas"]
# ///
"""onnxmltools and onnxconverter-common: boosted trees as ONNX models, and networks in float16."""

import lightgbm
import numpy as np
import onnxruntime
from networks import convolutions, network
from onnx import helper
from onnxconverter_common import auto_mixed_precision, float16
from onnxmltools import convert_lightgbm
from onnxmltools.convert.common.data_types import FloatTensorType
from sklearn.datasets import load_breast_cancer

X, Y = load_breast_cancer(return_X_y=True)
X = X.astype(np.float32)
PICTURE = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)


def small_network():
    nodes, weights = convolutions("x", (3, 8, 8))
    nodes += [helper.make_node("ReduceMean", ["features"], ["y"], axes=[2, 3], keepdims=0)]
    return network(nodes, {"x": (np.float32, PICTURE.shape)}, {"y": (1, 8)}, weights)


def make():
    trees = lightgbm.LGBMClassifier(n_estimators=40, random_state=0, verbose=-1).fit(X, Y)
    kinds = [("x", FloatTensorType([None, X.shape[1]]))]
    mixed = auto_mixed_precision.auto_convert_mixed_precision(
        small_network(), {"x": PICTURE}, rtol=0.01, atol=0.001, keep_io_types=True
    )
    half = float16.convert_float_to_float16(small_network(), keep_io_types=True)
    models = (convert_lightgbm(trees, initial_types=kinds, zipmap=False), mixed, half)
    return [onnxruntime.InferenceSession(model.SerializeToString()) for model in models]


def use(sessions):
    return [s.run(None, {"x": x}) for s, x in zip(sessions, (X, PICTURE, PICTURE), strict=True)]
