# /// script
# dependencies = ["skl2onnx==1.20.0", "google-re2"]
# ///
"""skl2onnx: estimators of scikit-learn as ONNX models."""

import numpy as np
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    GradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC

X, Y = load_iris(return_X_y=True)
X = X.astype(np.float32)
ESTIMATORS = (
    make_pipeline(StandardScaler(), LogisticRegression()),
    make_pipeline(PCA(2), PolynomialFeatures(2), Ridge()),
    RandomForestClassifier(20, random_state=0),
    RandomForestRegressor(20, random_state=0),
    GradientBoostingClassifier(n_estimators=10, random_state=0),
    SVC(probability=True, random_state=0),
    KNeighborsClassifier(3),
    MLPClassifier((16,), max_iter=200, random_state=0),
    GaussianNB(),
    GaussianProcessRegressor(alpha=0.1),
)
WORDS = np.array(["red green", "green blue blue", "blue red", "yellow"])[:, None]


def make():
    models = [to_onnx(estimator.fit(X, Y), X[:1]) for estimator in ESTIMATORS]
    texts = TfidfVectorizer().fit(WORDS[:, 0])
    names = OneHotEncoder(handle_unknown="ignore").fit(WORDS)
    models += [
        to_onnx(texts, initial_types=[("X", StringTensorType([None, 1]))]),
        to_onnx(names, initial_types=[("X", StringTensorType([None, 1]))]),
    ]
    return [onnxruntime.InferenceSession(model.SerializeToString()) for model in models]


def use(sessions):
    feeds = [X] * len(ESTIMATORS) + [WORDS, WORDS]
    return [s.run(None, {"X": feed}) for s, feed in zip(sessions, feeds, strict=True)]
