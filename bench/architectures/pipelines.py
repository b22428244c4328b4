"""Pipelines of scikit-learn, LightGBM and XGBoost with strings, missing values and encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import lightgbm
import numpy as np
import skl2onnx
import xgboost
from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
from skl2onnx.common import shape_calculator
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn import (
    cluster,
    compose,
    decomposition,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

_COLUMNS: Final = 12
_WORDS: Final = 4
_ROWS: Final = 64  # of the example
_LINEAR: Final = linear_model.LogisticRegression
# Transformers of the numbers, and models after them; every model also reads the encoded words.
TRANSFORMERS: Final[dict[str, Callable[[], Any]]] = {
    "mean": lambda: impute.SimpleImputer(),
    "median_scaled": lambda: pipeline.make_pipeline(
        impute.SimpleImputer(strategy="median"), preprocessing.RobustScaler()
    ),
    "bins": lambda: pipeline.make_pipeline(
        impute.SimpleImputer(), preprocessing.KBinsDiscretizer(5, encode="onehot-dense")
    ),
    "powers": lambda: pipeline.make_pipeline(
        impute.SimpleImputer(), preprocessing.PolynomialFeatures(2), preprocessing.StandardScaler()
    ),
    "principal": lambda: pipeline.make_pipeline(
        impute.SimpleImputer(), preprocessing.MinMaxScaler(), decomposition.PCA(5)
    ),
    "quantiles": lambda: pipeline.make_pipeline(
        impute.SimpleImputer(), preprocessing.QuantileTransformer(n_quantiles=50)
    ),
    "chosen": lambda: pipeline.make_pipeline(
        impute.SimpleImputer(),
        preprocessing.Normalizer(),
        feature_selection.VarianceThreshold(),
    ),
    "neighbours": lambda: impute.KNNImputer(n_neighbors=3),
}
MODELS: Final[dict[str, Callable[[], Any]]] = {
    "logistic": lambda: _LINEAR(max_iter=300),
    "sgd": lambda: linear_model.SGDClassifier(loss="modified_huber", random_state=0),
    "forest": lambda: ensemble.RandomForestClassifier(50, max_depth=8, random_state=0),
    "extra": lambda: ensemble.ExtraTreesClassifier(50, max_depth=8, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=50, random_state=0),
    "ada": lambda: ensemble.AdaBoostClassifier(n_estimators=20, random_state=0),
    "bagging": lambda: ensemble.BaggingClassifier(n_estimators=5, random_state=0),
    "voting": lambda: ensemble.VotingClassifier(
        [("a", _LINEAR(max_iter=300)), ("b", tree.DecisionTreeClassifier(max_depth=5))],
        voting="soft",
    ),
    "stacking": lambda: ensemble.StackingClassifier(
        [("a", naive_bayes.GaussianNB()), ("b", tree.DecisionTreeClassifier(max_depth=5))]
    ),
    "support": lambda: svm.SVC(probability=True, random_state=0),
    "neighbours": lambda: neighbors.KNeighborsClassifier(5),
    "bayes": lambda: naive_bayes.GaussianNB(),
    "layers": lambda: neural_network.MLPClassifier((64, 32), max_iter=50, random_state=0),
    "ridge": lambda: linear_model.RidgeCV(),
    "lasso": lambda: linear_model.Lasso(0.01),
    "process": lambda: gaussian_process.GaussianProcessRegressor(alpha=0.1),
    "regression_forest": lambda: ensemble.RandomForestRegressor(30, max_depth=8, random_state=0),
    "regression_support": lambda: svm.SVR(),
    "means": lambda: cluster.KMeans(4, n_init=3, random_state=0),
    "isolation": lambda: ensemble.IsolationForest(n_estimators=30, random_state=0),
    "lightgbm": lambda: lightgbm.LGBMClassifier(n_estimators=50, verbose=-1),
    "lightgbm_regression": lambda: lightgbm.LGBMRegressor(n_estimators=50, verbose=-1),
    "xgboost": lambda: xgboost.XGBClassifier(n_estimators=50, max_depth=4),
    "xgboost_regression": lambda: xgboost.XGBRegressor(n_estimators=50, max_depth=4),
}


def names() -> list[str]:
    """Return the pipelines: every model after the next transformer, with words encoded or not."""
    kinds = list(TRANSFORMERS)
    return [f"{model}-{kinds[i % len(kinds)]}" for i, model in enumerate(MODELS)]


def register_boosters() -> None:
    """Let skl2onnx convert LightGBM and XGBoost."""
    switch = [True, False]
    kinds = {
        "Classifier": (
            shape_calculator.calculate_linear_classifier_output_shapes,
            {"zipmap": switch, "nocl": switch},
        ),
        "Regressor": (
            shape_calculator.calculate_linear_regressor_output_shapes, {"split": None},
        ),
    }  # fmt: skip
    boosters = (lightgbm, "LGBM", convert_lightgbm), (xgboost, "XGB", convert_xgboost)
    for module, prefix, convert in boosters:
        for kind, (shape, options) in kinds.items():
            alias = prefix + kind
            skl2onnx.update_registered_converter(
                getattr(module, alias), alias, shape, convert, options=options
            )


def export(name: str) -> tuple[bytes, dict[str, np.ndarray[Any, Any]]]:
    """Return the model of a pipeline that is trained on made-up rows, and an example of inputs."""
    kind, _, transformer = name.partition("-")
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((600, _COLUMNS)).astype(np.float32)
    words = rng.choice(["red", "green", "blue", "grey"], (600, _WORDS))
    scores = numbers[:, 0] + (words[:, 0] == "red") - 0.5 * numbers[:, 1]
    numbers[rng.random(numbers.shape) < 0.05] = np.nan
    columns = compose.ColumnTransformer([
        ("numbers", TRANSFORMERS[transformer](), list(range(_COLUMNS))),
        ("words", preprocessing.OneHotEncoder(handle_unknown="ignore", sparse_output=False),
         list(range(_COLUMNS, _COLUMNS + _WORDS))),
    ])  # fmt: skip
    model = pipeline.make_pipeline(columns, MODELS[kind]())
    is_classifier = hasattr(model[-1], "classes_") or getattr(
        model[-1], "_estimator_type", ""
    ) == "classifier" or "Class" in type(model[-1]).__name__  # fmt: skip
    is_classifier |= isinstance(model[-1], (_LINEAR, svm.SVC, naive_bayes.GaussianNB))
    targets = (scores > 0).astype(int) + (scores > 1) if is_classifier else scores
    model.fit(np.hstack([numbers.astype(object), words.astype(object)]), targets)
    proto = skl2onnx.convert_sklearn(
        model,
        initial_types=[
            ("numbers", FloatTensorType([None, _COLUMNS])),
            ("words", StringTensorType([None, _WORDS])),
        ],
        target_opset={"": 20, "ai.onnx.ml": 3},
        options={id(model): {"zipmap": False}} if is_classifier else None,
    )
    return proto.SerializeToString(), {"numbers": numbers[:_ROWS], "words": words[:_ROWS]}
