"""Cases of tree ensembles."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.forests import MODES, Branch, Leaf, Tree, by_ids, by_positions, stump
from tests.op_cases import Case, case, f32, f64, fails, i64, of

nan, inf = np.nan, np.inf
ML = "ai.onnx.ml"
POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
TWO = {"classlabels_int64s": [10, 20]}
X = of([[0.0], [0.5], [1.0]])
EDGES = of([[-inf], [-1.0], [-0.0], [0.0], [0.5], [np.nextafter(np.float32(0.5), 0)], [inf], [nan]])


# Sums over trees are rounded after each in onnxruntime, and its transforms are in float32.
LOOSE = 64


def regressor(*inputs: Any, trees: list[Tree], **attrs: Any) -> Case:
    made = by_ids(trees, "target", **{"n_targets": 1, **attrs})
    return case("TreeEnsembleRegressor", *inputs, domain=ML, opset=3, ulps=LOOSE, attrs=made)


def classifier(*inputs: Any, trees: list[Tree], **attrs: Any) -> Case:
    options = {"domain": ML, "opset": 3, "outputs": 2, "ulps": LOOSE}
    return case("TreeEnsembleClassifier", *inputs, **options, attrs=by_ids(trees, "class", **attrs))


def ensemble(*inputs: Any, trees: list[Branch], dtype: Any = np.float32, **attrs: Any) -> Case:
    made = by_positions(trees, dtype, **attrs)
    return case("TreeEnsemble", *inputs, domain=ML, ulps=LOOSE, attrs=made)


def deep(seed: int, targets: int, features: int = 4, depth: int = 5) -> Tree:
    """A tree of random shape."""
    rng = np.random.default_rng(seed)

    def grow(level: int) -> Tree:
        if level == depth or (level and rng.random() < 0.2):
            return Leaf([(int(rng.integers(targets)), float(rng.standard_normal()))])
        value = float(np.round(rng.standard_normal(), 1))
        mode = str(rng.choice(MODES[:4]))
        true, false = grow(level + 1), grow(level + 1)
        return Branch(
            int(rng.integers(features)), value, true, false, mode, bool(rng.random() < 0.5)
        )

    return grow(0)


FOREST = [deep(seed, 3) for seed in range(7)]
PAIR = [stump([(0, 0.2), (1, 0.6)], [(0, 0.7), (1, 0.1)]), stump([(0, 0.1)], [(0, -0.3), (1, 0.4)])]
ONE = [stump([(0, 0.2)], [(0, 0.7)]), stump([(0, 0.1)], [(0, -0.3)], value=0.2)]
SOME_NAN = np.where(np.arange(36).reshape(9, 4) % 5 == 0, nan, f32(9, 4)).astype(np.float32)


def tensor(values: list[float]) -> TensorProto:
    return helper.make_tensor("", TensorProto.DOUBLE, [len(values)], values)


def doubles(attrs: dict[str, Any], *names: str) -> dict[str, Any]:
    """The attributes with some lists given as tensors of doubles."""
    for name in names:
        attrs[f"{name}_as_tensor"] = tensor(attrs.pop(name))
    return attrs


REGRESSORS = [
    *(
        regressor(EDGES, trees=[stump([(0, 1.0)], [(0, 2.0)], v, mode=m)])
        for m in MODES
        for v in (0.5, 0.0)
    ),
    *(
        regressor(EDGES, trees=[stump([(0, 1.0)], [(0, 2.0)], mode=m, nan_true=True)])
        for m in MODES
    ),
    *(
        regressor(EDGES, trees=[stump([(0, 1.0)], [(0, 2.0)], v, mode=m)])
        for m in MODES
        for v in (inf, -inf, nan)
    ),
    *(regressor(X, trees=ONE, aggregate_function=a) for a in ("SUM", "AVERAGE", "MIN", "MAX")),
    *(
        regressor(X, trees=ONE, aggregate_function=a, base_values=[0.25])
        for a in ("SUM", "AVERAGE", "MIN", "MAX")
    ),
    *(regressor(X, trees=ONE, post_transform=p) for p in POST),
    *(
        regressor(X, trees=PAIR, n_targets=2, base_values=[0.1, 0.2], post_transform=p)
        for p in POST
    ),
    *(
        regressor(x, trees=FOREST, n_targets=3)
        for x in (f32(9, 4), f64(3, 4), f32(1, 6), f32(0, 4), SOME_NAN)
    ),
    regressor(f32(300, 4), trees=FOREST * 9, n_targets=3, aggregate_function="AVERAGE"),
    regressor(X, trees=[Leaf([(0, 3.0)]), stump([(0, 1.0)], [(0, 2.0)])]),
    regressor(X, trees=[stump([(0, 1.0)], [])]),
    case(
        "TreeEnsembleRegressor",
        f64(6, 1),
        domain=ML,
        opset=3,
        attrs=doubles(by_ids(ONE, "target", n_targets=1), "nodes_values", "target_weights"),
    ),
    case(
        "TreeEnsembleRegressor",
        X,
        domain=ML,
        opset=3,
        attrs=by_ids([stump([(0, 1.0), (0, 2.0)], [(0, 4.0)])], "target", n_targets=1),
        expect=(of([[3.0], [3.0], [4.0]]),),
        why="onnxruntime counts only the first vote of a leaf where there is one target",
    ),
    case(
        "TreeEnsembleRegressor",
        X,
        domain=ML,
        opset=3,
        attrs=by_ids(
            [stump([(0, 1.0)], [(1, 2.0)])], "target", n_targets=2, base_values=[8.0, 16.0]
        ),
        expect=(of([[9.0, 16.0], [9.0, 16.0], [8.0, 18.0]]),),
        why="onnxruntime forgets the base value of a target that gets no vote",
    ),
    *(
        case(
            "TreeEnsembleRegressor",
            of([[0], [1], [2**24 + 1]], dtype),
            domain=ML,
            opset=3,
            attrs=by_ids([stump([(0, 1.0)], [(0, 2.0)], 2.0**24)], "target", n_targets=1),
            expect=(of([[1.0], [1.0], [2.0]]),),
            why="onnxruntime takes no integers here",
        )
        for dtype in (np.int32, np.int64)
    ),
    case("TreeEnsembleRegressor", X, domain=ML, opset=1, attrs=by_ids(ONE, "target", n_targets=1)),
]

CLASSIFIERS = [
    *(
        classifier(X, trees=[stump([(0, low)], [(0, 0.7)])], post_transform=p, **TWO, **base)
        for low in (0.2, -0.2)
        for p in POST[:4]
        for base in ({}, {"base_values": [0.3]})
    ),
    *(
        classifier(X, trees=[stump([(1, low)], [(1, 0.7)])], post_transform=p, **TWO)
        for low in (0.2, -0.2)
        for p in POST
    ),
    *(
        classifier(
            X, trees=[stump([(0, -0.2)], [(0, 0.7)])], post_transform=p, classlabels_int64s=[1]
        )
        for p in POST
    ),
    *(
        classifier(f32(9, 4), trees=FOREST, classlabels_int64s=[5, -6, 7], post_transform=p)
        for p in POST[:4]
    ),
    classifier(
        SOME_NAN, trees=FOREST, classlabels_strings=["a", "b", "ü"], base_values=[0.5, 0.0, 1.0]
    ),
    classifier(f64(4, 4), trees=FOREST, classlabels_strings=["a", "b", "c", "never"]),
    classifier(i64(4, 4), trees=FOREST, classlabels_int64s=[0, 1, 2]),
    classifier(f32(0, 4), trees=FOREST, classlabels_int64s=[0, 1, 2]),
    case(
        "TreeEnsembleClassifier",
        X,
        domain=ML,
        opset=3,
        outputs=2,
        attrs=by_ids([stump([(0, 0.2), (1, 0.8)], [(0, 0.7), (1, 0.3)])], "class", **TWO),
        expect=(of([20, 20, 10], np.int64), of([[0.2, 0.8], [0.2, 0.8], [0.7, 0.3]])),
        why="onnxruntime answers 1 here, which is not a label",
    ),
    case(
        "TreeEnsembleClassifier",
        X,
        domain=ML,
        opset=3,
        outputs=2,
        attrs=by_ids([stump([(1, 1.0)], [(1, 5.0)])], "class", base_values=[3.0, 1.0], **TWO),
        expect=(of([10, 10, 20], np.int64), of([[3.0, 2.0], [3.0, 2.0], [3.0, 6.0]])),
        why="onnxruntime drops the votes here",
    ),
    case(
        "TreeEnsembleClassifier",
        X,
        domain=ML,
        opset=1,
        outputs=2,
        attrs=by_ids(ONE, "class", **TWO),
    ),
    case(
        "TreeEnsembleClassifier",
        f64(5, 1),
        domain=ML,
        opset=3,
        outputs=2,
        attrs=doubles(
            by_ids(ONE, "class", base_values=[0.1], **TWO),
            "nodes_values",
            "class_weights",
            "base_values",
        ),
    ),
]


def chosen(members: list[float], **how: Any) -> Branch:
    return Branch(0, 0.0, Leaf([(0, 1.0)]), Leaf([(1, 2.0)]), members=members, **how)


GROWN = [t for t in FOREST if isinstance(t, Branch)]
ENSEMBLES = [
    *(ensemble(EDGES, trees=[stump([(0, 1.0)], [(0, 2.0)], mode=m)], n_targets=1) for m in MODES),
    *(
        ensemble(of([[1.0], [2.0], [3.5], [9.0], [nan], [inf]]), trees=[chosen(m)], n_targets=2)
        for m in ([1.0], [9.0, 2.0], [3.5, 1.0, 3.5, 7.0, 2.0])
    ),
    case(
        "TreeEnsemble",
        of([[1.0], [5.0], [nan]]),
        domain=ML,
        attrs=by_positions([chosen([4.0, 5.0, 6.0], nan_true=True)], n_targets=2),
        expect=(of([[0.0, 2.0], [1.0, 0.0], [1.0, 0.0]]),),
    ),
    ensemble(
        X, trees=[chosen([0.5]), chosen([1.0, 0.0]), stump([(0, 1.0)], [(1, 2.0)])], n_targets=2
    ),
    *(ensemble(f32(9, 4), trees=GROWN, n_targets=3, aggregate_function=a) for a in (1, 2, 3)),
    ensemble(f32(9, 4), trees=GROWN, n_targets=3, post_transform=3),
    *(
        case(
            "TreeEnsemble",
            X,
            domain=ML,
            attrs=by_positions([stump([(0, 1.0)], [(1, 2.0)])], n_targets=2, post_transform=p),
            expect=(of(want),),
            why="onnxruntime has the numbers of SOFTMAX and LOGISTIC the other way round",
        )
        for p, want in (
            (1, [[0.7310586, 0.26894143]] * 2 + [[0.11920292, 0.880797]]),
            (2, [[0.7310586, 0.5]] * 2 + [[0.5, 0.880797]]),
        )
    ),
    ensemble(f64(9, 4), trees=GROWN, dtype=np.float64, n_targets=3),
    case(
        "TreeEnsemble",
        of([[0.0], [1.0]], np.float16),
        domain=ML,
        attrs=by_positions([stump([(0, 1.5)], [(0, 2.0)])], np.float16, n_targets=1),
        expect=(of([[1.5], [2.0]], np.float16),),
    ),
]


def broken(match: str, *inputs: Any, **changes: Any) -> Case:
    attrs = by_ids([stump([(0, 1.0)], [(0, 2.0)])], "target", n_targets=1)
    return fails(
        "TreeEnsembleRegressor",
        *inputs or (X,),
        domain=ML,
        opset=3,
        attrs={**attrs, **changes},
        match=match,
    )


def astray(match: str, **changes: Any) -> Case:
    attrs = by_positions([stump([(0, 1.0)], [(0, 2.0)])], n_targets=1)
    return fails("TreeEnsemble", X, domain=ML, attrs={**attrs, **changes}, match=match)


LOOP = {"nodes_trueleafs": [0], "nodes_truenodeids": [0]}
WRONG = [
    broken("true child of a node is node 7 of tree 0", nodes_truenodeids=[7, 0, 0]),
    broken("the trees have a cycle", nodes_truenodeids=[0, 0, 0]),
    broken("tree 0 has two nodes with the id 1", nodes_nodeids=[0, 1, 1]),
    broken("nodes_modes must be .*got BRANCH_NO", nodes_modes=["BRANCH_NO", "LEAF", "LEAF"]),
    broken("nodes_modes has 3 entries, and nodes_values has 2", nodes_values=[0.5, 0.0]),
    broken("nodes_featureids has the negative number -1", nodes_featureids=[-1, 0, 0]),
    broken("reads feature 3", nodes_featureids=[3, 0, 0]),
    broken(r"target_ids has 5, which is outside \[0, 1\)", target_ids=[0, 5]),
    broken("target_nodeids is node 9 of tree 0", target_nodeids=[1, 9]),
    broken("2 base_values, and needs 1", base_values=[1.0, 2.0]),
    broken("n_targets is 0", n_targets=0),
    broken("post_transform must be .*got TWICE", post_transform="TWICE"),
    broken("aggregate_function must be .*got MEDIAN", aggregate_function="MEDIAN"),
    broken("rank 1 or 2", f32(2, 3, 4)),
    fails(
        "TreeEnsembleClassifier",
        X,
        domain=ML,
        opset=3,
        outputs=2,
        attrs=by_ids(ONE, "class"),
        match="0 integers and 0 strings",
    ),
    astray("the trees have a cycle", **LOOP),
    astray(r"nodes_truenodeids of leaves has 9, which is outside \[0, 2\)", nodes_truenodeids=[9]),
    astray(r"tree_roots has 4, which is outside \[0, 1\)", tree_roots=[4]),
    astray(r"leaf_targetids has 3, which is outside \[0, 1\)", leaf_targetids=[0, 3]),
    astray(r"aggregate_function is 9", aggregate_function=9),
    astray("membership_values has 1 sets for 2", **{
        **by_positions([chosen([1.0]), chosen([2.0])], n_targets=2),
        "membership_values": helper.make_tensor("", TensorProto.FLOAT, [1], [1.0]),
    }),
]  # fmt: skip

CASES = [*REGRESSORS, *CLASSIFIERS, *ENSEMBLES, *WRONG]
