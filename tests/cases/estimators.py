"""Cases of linear models and support vector machines."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.op_cases import Case, case, f32, f64, fails, i64, ints, of

ML = "ai.onnx.ml"
POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
LABELS = [10, 20, 30, 40]
WORDS = ["ten", "zwölf", "", "x"]
LOOSE = 256  # onnxruntime sums and transforms in float32


def numbers(*shape: int, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed + sum(shape))
    return [float(v) for v in rng.standard_normal(shape).astype(np.float32).reshape(-1)]


def regressor(x: Any, targets: int, **attrs: Any) -> Case:
    named = {"coefficients": numbers(3, targets), "targets": targets, **attrs}
    return case("LinearRegressor", x, domain=ML, ulps=LOOSE, attrs=named)


def classifier(x: Any, targets: int, **attrs: Any) -> Case:
    named = {"coefficients": numbers(3, targets), "intercepts": numbers(targets), **attrs}
    if "classlabels_strings" not in named:
        named["classlabels_ints"] = LABELS[: max(targets, 2)]
    return case("LinearClassifier", x, domain=ML, outputs=2, ulps=LOOSE, attrs=named)


LINEAR = [
    *(regressor(f32(5, 3), t, post_transform=p) for t in (1, 3) for p in POST[:4]),
    *(regressor(f32(5, 3), t, intercepts=numbers(t)) for t in (1, 4)),
    *(regressor(x, 2) for x in (f32(3), f32(0, 3), f32(1, 3))),
    *(
        case(
            "LinearRegressor",
            of([[1, 2], [3, 4]], dtype),
            domain=ML,
            coefficients=[1.0, 10.0],
            intercepts=[0.5],
            expect=(of([[21.5], [43.5]]),),
            why="onnxruntime takes only float32 here",
        )
        for dtype in (np.float64, np.int32, np.int64)
    ),
    *(classifier(f32(5, 3), t, post_transform=p) for t in (1, 2, 3) for p in POST[:4]),
    *(classifier(x, 1) for x in (f64(5, 3), i64(5, 3), ints(np.int32, 5, 3), f32(3), f32(0, 3))),
    *(classifier(f32(6, 3), t, classlabels_strings=WORDS[: max(t, 2)]) for t in (1, 3)),
    classifier(f32(4, 3), 4, multi_class=1, post_transform="SOFTMAX"),
    case(
        "LinearClassifier",
        of([[1.0], [-1.0]]),
        domain=ML,
        outputs=2,
        coefficients=[0.25],
        intercepts=[0.0],
        classlabels_ints=[7, 8],
        post_transform="PROBIT",
        expect=(of([8, 7], np.int64), of([[0.674574, -0.674574], [np.nan, np.nan]])),
        ulps=LOOSE,
        why="onnxruntime leaves a column unwritten",
    ),
    case(
        "LinearClassifier",
        of([[1.0, 3.0], [-1.0, 0.0]]),
        domain=ML,
        outputs=2,
        coefficients=[1.0, 0.0],
        classlabels_strings=["no", "yes"],
        expect=(of(["yes", "no"], object), of([[0.0, 1.0], [2.0, -1.0]])),
        why="onnxruntime wants intercepts",
    ),
    fails(
        "LinearRegressor",
        f32(2, 3),
        domain=ML,
        coefficients=[1.0, 2.0],
        match="one per feature and target",
    ),
    fails(
        "LinearRegressor",
        f32(2, 3),
        domain=ML,
        coefficients=numbers(3),
        intercepts=[1.0, 2.0],
        match="2 intercepts for 1 targets",
    ),
    fails(
        "LinearRegressor",
        f32(2, 3, 4),
        domain=ML,
        coefficients=numbers(4),
        match="rank 1 or 2, got f32",
    ),
    fails(
        "LinearClassifier",
        f32(2, 3),
        domain=ML,
        outputs=2,
        coefficients=numbers(3),
        intercepts=[0.0],
        classlabels_ints=[1, 2, 3],
        match="1 intercepts for 3 class labels",
    ),
    fails(
        "LinearClassifier",
        f32(2, 3),
        domain=ML,
        outputs=2,
        coefficients=numbers(3),
        intercepts=[0.0],
        match="0 integers and 0 strings",
    ),
]


def svr(x: Any, kernel: str, **attrs: Any) -> Case:
    named = {
        "coefficients": numbers(4), "support_vectors": numbers(4, 3), "n_supports": 4, "rho": [0.1],
        "kernel_type": kernel, "kernel_params": [0.5, 0.2, 3.0], **attrs,
    }  # fmt: skip
    return case("SVMRegressor", x, domain=ML, ulps=LOOSE, attrs=named)


def svc(x: Any, classes: int, kernel: str = "RBF", *, chances: bool = False, **attrs: Any) -> Case:
    sizes = [2, 3, 1, 2][:classes]
    count, pairs = sum(sizes), classes * (classes - 1) // 2
    named = {
        "coefficients": numbers(classes - 1, count), "support_vectors": numbers(count, 3, seed=1),
        "vectors_per_class": sizes, "rho": numbers(pairs, seed=2), "kernel_type": kernel,
        "kernel_params": [0.5, 0.2, 3.0], **attrs,
    }  # fmt: skip
    if "classlabels_strings" not in named:
        named["classlabels_ints"] = LABELS[:classes]
    if chances:
        named |= {"prob_a": [-abs(v) for v in numbers(pairs)], "prob_b": numbers(pairs, seed=3)}
    return case("SVMClassifier", x, domain=ML, outputs=2, ulps=LOOSE, attrs=named)


FLAT = {"coefficients": numbers(3), "rho": [0.25], "kernel_params": [0.0, 0.0, 0.0]}
MACHINES = [
    *(svr(f32(5, 3), k) for k in KERNELS),
    *(svr(f32(5, 3), "RBF", post_transform=p) for p in POST),
    svr(f32(5, 3), "LINEAR", one_class=1),
    svr(f32(0, 3), "POLY"),
    case("SVMRegressor", f32(5, 3), domain=ML, ulps=LOOSE, attrs=FLAT),
    *(svc(f32(7, 3), n, k, chances=c) for n in (2, 3, 4) for k in KERNELS for c in (False, True)),
    *(svc(f32(7, 3), n, post_transform=p) for n in (2, 3) for p in POST[:4]),
    svc(f32(7, 3), 3, post_transform="SOFTMAX", chances=True),
    *(svc(x, 3) for x in (f64(4, 3), i64(4, 3), ints(np.int32, 4, 3), f32(1, 3), f32(0, 3))),
    *(svc(f32(5, 3), n, classlabels_strings=WORDS[:n], chances=True) for n in (2, 4)),
    case(
        "SVMClassifier",
        f32(5, 3),
        domain=ML,
        outputs=2,
        ulps=LOOSE,
        attrs={**FLAT, "coefficients": numbers(3, 3), "classlabels_ints": [1, 2, 3]},
    ),
    case(
        "SVMClassifier",
        of([[1.0, 5.0], [-1.0, 2.0]]),
        domain=ML,
        outputs=2,
        coefficients=[1.0, 0.0, 0.0, 0.5],
        classlabels_ints=[4, 5],
        expect=(of([5, 5], np.int64), of([[1.0, 2.5], [-1.0, 1.0]])),
        why="onnxruntime looks only at the sign of the best score of two classes",
    ),
    fails("SVMRegressor", f32(2, 4), domain=ML, attrs=FLAT, match="features of the rows"),
    fails(
        "SVMRegressor", f32(2, 3), domain=ML, attrs={**FLAT, "n_supports": 5}, match="for 5 support"
    ),
    fails(
        "SVMRegressor",
        f32(2, 3),
        domain=ML,
        attrs={**FLAT, "kernel_type": "COSINE"},
        match="kernel_type must be .*got COSINE",
    ),
    fails(
        "SVMClassifier",
        f32(2, 3),
        domain=ML,
        outputs=2,
        coefficients=numbers(3),
        support_vectors=numbers(3, 3),
        vectors_per_class=[2, 1],
        classlabels_ints=[1, 2, 3],
        match="SVMClassifier of 3 classes has 2 vectors_per_class, and needs 3",
    ),
    fails(
        "SVMRegressor",
        f32(2, 0),
        n_supports=3,
        coefficients=[1.0, 2.0, 3.0],
        rho=[0.0],
        domain="ai.onnx.ml",
        match="0 numbers are not 3 support vectors",
    ),
]

CASES = [*LINEAR, *MACHINES]
