"""Ops of ai.onnx.ml."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import numpy_helper

from bench.sweep.case import Case
from bench.sweep.draw import ML, Draw, Family, rows
from bench.sweep.families.text import words


def _linear_model(d: Draw, op: str) -> Case:
    count, width = d.table()
    classes = d.pick((1, 3, 10)) if op == "LinearRegressor" else d.pick((2, 10))
    weights = (
        [float(v) for v in d.array((classes * width,))]
        if width < 5000
        else [0.5] * (classes * width)
    )
    attrs: dict[str, Any] = {"coefficients": weights, "intercepts": [0.1] * classes}
    if op == "LinearClassifier":
        attrs |= {"classlabels_ints": list(range(classes)), "post_transform": "SOFTMAX"}
        return Case(op, [d.array((count, width))], attrs, domain=ML, n_outputs=2)
    return Case(op, [d.array((count, width))], attrs | {"targets": classes}, domain=ML)


def _row_op(d: Draw, op: str) -> Case:
    count, width = d.table()
    attrs: dict[str, Any] = {
        "Scaler": {"offset": [0.1] * width, "scale": [2.0] * width},
        "Normalizer": {"norm": d.pick(("L1", "L2", "MAX"))},
        "Imputer": {"imputed_value_floats": [0.5] * width, "replaced_value_float": float("nan")},
        "Binarizer": {"threshold": 0.5},
    }[op]
    return Case(op, [d.array((count, width))], attrs, domain=ML)


def _label_encoder(d: Draw, op: str) -> Case:
    count = {"tiny": 3, "typical": 1000, "large": 50_000}[d.size]
    words = np.array([f"word{i}" for i in range(200)], object)
    x = words[d.array((count, 1), "int64", 0, 200)]
    attrs = {"keys_strings": list(words), "values_int64s": list(range(200)), "default_int64": -1}
    return Case(op, [x], attrs, domain=ML)


def _one_hot_encoder(d: Draw, op: str) -> Case:
    count = {"tiny": 3, "typical": 1000, "large": 50_000}[d.size]
    return Case(
        op, [d.array((count, 3), "int64", 0, 20)], {"cats_int64s": list(range(18))}, domain=ML
    )


def _feature_vectorizer(d: Draw, op: str) -> Case:
    count = {"tiny": 3, "typical": 1000, "large": 50_000}[d.size]
    widths = [1, 5, 20]
    return Case(op, [d.array((count, n)) for n in widths], {"inputdimensions": widths}, domain=ML)


def _extractor(d: Draw, op: str) -> Case:
    count, width = d.table()
    index = d.array((min(width, 4),), "int64", 0, width)
    return Case(op, [d.array((count, width)), index], {}, frozenset({1}), ML)


def _support_vectors(d: Draw, op: str) -> Case:
    count, width = d.pick([(1, 4), (100, 30), (1000, 20)])
    vectors, classes = d.pick((10, 200)), 3
    attrs: dict[str, Any] = {
        "kernel_type": d.pick(("RBF", "LINEAR", "POLY")),
        "kernel_params": [0.1, 0.0, 3.0],
        "support_vectors": [float(v) for v in d.array((classes * vectors * width,))],
    }
    if op == "SVMRegressor":
        attrs |= {
            "coefficients": [float(v) for v in d.array((classes * vectors,))],
            "n_supports": classes * vectors,
            "rho": [0.1],
        }
        return Case(op, [d.array((count, width))], attrs, domain=ML)
    attrs |= {
        "coefficients": [float(v) for v in d.array((2 * classes * vectors,))],
        "vectors_per_class": [vectors] * classes,
        "classlabels_ints": [0, 1, 2],
        "rho": [0.1, 0.2, 0.3],
    }
    return Case(op, [d.array((count, width))], attrs, domain=ML, n_outputs=2)


def _trees(d: Draw, op: str) -> Case:
    """Complete trees of equal depth over random features and thresholds."""
    count, width = d.pick([(1, 4), (1, 30), (1000, 30), (10_000, 13), (100, 100)])
    trees, depth = d.pick(((10, 3), (100, 4), (100, 6)))
    inner, nodes = 2**depth - 1, 2 ** (depth + 1) - 1
    branches, leaves = list(range(inner)), list(range(inner, nodes))
    no_child = [0] * len(leaves)
    kind = "class" if op == "TreeEnsembleClassifier" else "target"
    attrs: dict[str, Any] = {
        "nodes_treeids": np.repeat(range(trees), nodes).tolist(),
        "nodes_nodeids": (branches + leaves) * trees,
        "nodes_featureids": [int(v) for v in d.array((trees * nodes,), "int64", 0, width)],
        "nodes_values": [float(v) for v in d.array((trees * nodes,))],
        "nodes_modes": (["BRANCH_LEQ"] * len(branches) + ["LEAF"] * len(leaves)) * trees,
        "nodes_truenodeids": ([2 * n + 1 for n in branches] + no_child) * trees,
        "nodes_falsenodeids": ([2 * n + 2 for n in branches] + no_child) * trees,
        f"{kind}_treeids": np.repeat(range(trees), len(leaves)).tolist(),
        f"{kind}_nodeids": leaves * trees,
        f"{kind}_ids": [n % 3 if kind == "class" else 0 for n in leaves] * trees,
        f"{kind}_weights": [float(v) for v in d.array((trees * len(leaves),))],
    }
    if kind == "class":
        attrs["classlabels_int64s"] = [0, 1, 2]
        return Case(op, [d.array((count, width))], attrs, domain=ML, n_outputs=2)
    return Case(op, [d.array((count, width))], attrs | {"n_targets": 1}, domain=ML)


def _grams(d: Draw, op: str) -> Case:
    count, length = {"tiny": (1, 8), "typical": (100, 50), "large": (1000, 200)}[d.size]
    attrs = {
        "mode": d.pick(("TF", "IDF", "TFIDF")),
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 0,
        "ngram_counts": [0, 50],
        "ngram_indexes": list(range(100)),
        "weights": [0.5] * 100,
        "pool_int64s": [*range(50), *(n for i in range(50) for n in (i, i + 1))],
    }
    return Case(op, [d.array((count, length), "int64", 0, 60)], attrs)


def _category_mapper(d: Draw, op: str) -> Case:
    known = [f"Word{i}" for i in range(200)]
    attrs = {"cats_strings": known, "cats_int64s": list(range(200)), "default_int64": -1}
    return Case(op, [words(d)], attrs, domain=ML)


def _zip_map(d: Draw, op: str) -> Case:
    count = {"tiny": 1, "typical": 64, "large": 1000}[d.size]
    labels: dict[str, Any] = {"classlabels_int64s": [0, 1, 2]}
    if d.chance(0.5):
        labels = {"classlabels_strings": ["a", "b", "c"]}
    return Case(op, [d.array((count, 3))], labels, domain=ML)


def _tree_ensemble(d: Draw, op: str) -> Case:
    """Complete trees in the form of opset 5: branches and leaves apart."""
    count, width = d.pick([(1, 4), (1, 30), (1000, 30), (10_000, 13)])
    trees, depth = d.pick(((10, 3), (100, 4), (100, 6)))
    inner, leaves, last = 2**depth - 1, 2**depth, 2 ** (depth - 1) - 1
    true, false, is_last = [], [], []
    for t in range(trees):
        for n in range(inner):
            at_leaves = n >= last
            base = t * leaves + 2 * (n - last) if at_leaves else t * inner + 2 * n + 1
            true.append(base)
            false.append(base + 1)
            is_last.append(int(at_leaves))
    attrs: dict[str, Any] = {
        "n_targets": 1,
        "tree_roots": [t * inner for t in range(trees)],
        "nodes_featureids": [int(v) for v in d.array((trees * inner,), "int64", 0, width)],
        "nodes_splits": numpy_helper.from_array(d.array((trees * inner,))),
        "nodes_modes": numpy_helper.from_array(np.zeros(trees * inner, np.uint8)),
        "nodes_truenodeids": true,
        "nodes_falsenodeids": false,
        "nodes_trueleafs": is_last,
        "nodes_falseleafs": is_last,
        "leaf_targetids": [0] * (trees * leaves),
        "leaf_weights": numpy_helper.from_array(d.array((trees * leaves,))),
    }
    return Case(op, [d.array((count, width))], attrs, domain=ML)


FAMILIES: Final[dict[str, Family]] = {
    **rows("LinearClassifier LinearRegressor", _linear_model),
    **rows("Scaler Normalizer Imputer Binarizer", _row_op),
    **rows("SVMClassifier SVMRegressor", _support_vectors),
    **rows("TreeEnsembleClassifier TreeEnsembleRegressor", _trees),
    "LabelEncoder": _label_encoder,
    "OneHotEncoder": _one_hot_encoder,
    "FeatureVectorizer": _feature_vectorizer,
    "ArrayFeatureExtractor": _extractor,
    "TfIdfVectorizer": _grams,
    "CategoryMapper": _category_mapper,
    "ZipMap": _zip_map,
    "TreeEnsemble": _tree_ensemble,
}
