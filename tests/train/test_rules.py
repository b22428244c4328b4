"""Every gradient rule against finite differences: random directions, float64, all sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.graph.dtype import F16, F64
from sardonyx.graph.op import GRADIENT, ML, PREVIEW, allowed, always
from sardonyx.graph.verify import verify
from sardonyx.ops import all_ops, family_of, lookup
from sardonyx.ops.gradient_rules import rule_of
from sardonyx.train import gradient
from tests.op_cases import Array, Case
from tests.oracle import feeds_of, model_of
from tests.train import layers, sampling, tensors
from tests.train.gradient_cases import Rule

RULES = [*tensors.RULES, *layers.RULES, *sampling.RULES]
STEP = 1e-5
N_DIRECTIONS = 3


def wanted(rule: Rule) -> list[str]:
    """The names of inputs to differentiate by."""
    positions = range(len(rule.case.inputs)) if rule.by is None else rule.by
    inputs = rule.case.inputs
    return [
        f"x{i}" for i in positions
        if i not in rule.fixed and inputs[i] is not None and inputs[i].dtype.kind == "f"
    ]  # fmt: skip


@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule(rule: Rule, is_open: bool) -> None:
    if is_open and not rule.is_open:
        pytest.skip("sizes must be known")
    constants, weights = ([f"x{i}" for i in places] for places in (rule.fixed, rule.weights))
    proto = model_of(rule.case, constants=[*constants, *weights], symbolic=is_open)
    names, of = wanted(rule), [f"y{i}" for i in rule.of]
    made = gradient(proto, of, names, seeds=True)
    verify(made.graph)
    plain = sardonyx.InferenceSession(model_of(rule.case, constants=constants))
    full = sardonyx.InferenceSession(made)
    feeds = {n: x for n, x in feeds_of(rule.case).items() if n not in constants}
    rng = np.random.default_rng(1)
    before = dict(zip(of, plain.run(of, feeds), strict=True))
    seeds = {f"{n}_grad": rng.standard_normal(y.shape) for n, y in before.items()}
    fed = {n: x for n, x in feeds.items() if n in names or n not in weights}
    outputs = full.run([*of, *(f"{n}_grad" for n in names)], fed | seeds)
    for name, y in zip(of, outputs, strict=False):
        np.testing.assert_allclose(y, before[name], rtol=1e-6, atol=1e-9)
    grads = dict(zip(names, outputs[len(of) :], strict=True))
    for name in names:
        assert grads[name].shape == feeds[name].shape
        assert grads[name].dtype == feeds[name].dtype
        for _ in range(N_DIRECTIONS):
            check(plain, feeds, seeds, (name, grads[name]), rng)


def check(
    session: Any, feeds: dict[str, Any], seeds: dict[str, Array], found: tuple[str, Array], rng: Any
) -> None:
    """The change along a direction is the gradient times the direction."""
    name, grad = found
    x = feeds[name]
    direction = rng.standard_normal(x.shape)
    of = [n.removesuffix("_grad") for n in seeds]
    ends = [session.run(of, feeds | {name: x + s * STEP * direction}) for s in (1, -1)]
    pairs = zip(*ends, seeds.values(), strict=True)
    change = sum(float(np.sum((a - b) * seed)) for a, b, seed in pairs) / (2 * STEP)
    expected = float(np.sum(grad * direction))
    scale = max(1.0, float(np.abs(grad * direction).sum()))
    assert abs(change - expected) < 2e-6 * scale, f"{name}: {change} and {expected}"


# The last case of each op, which is seldom the simplest.
HALVES = list({
    r.case.op: r
    for r in RULES
    if (op := lookup(r.case.domain, r.case.op)) is not None and F16 in allowed(op, op.inputs[0])
}.values())  # fmt: skip


@pytest.mark.parametrize("rule", HALVES, ids=str)
def test_gradients_in_float16(rule: Rule) -> None:
    """They have the type of their inputs, and are those in float64 at the same numbers."""
    rounded = [_as(np.float64, _as(np.float16, x)) for x in rule.case.inputs]
    names = wanted(rule)
    wide, half = (
        gradients(rule, replace(rule.case, inputs=tuple(_as(dtype, x) for x in rounded)), names)
        for dtype in (np.float64, np.float16)
    )
    for expected, actual in zip(wide, half, strict=True):
        assert actual.dtype == np.float16
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        assert np.abs(actual - expected).max(initial=0) < 0.03 * scale


def _as(dtype: Any, x: Any) -> Any:
    is_float = x is not None and x.dtype in (np.float16, np.float64)
    return x.astype(dtype) if is_float else x


def gradients(rule: Rule, case: Case, names: list[str]) -> list[Array]:
    """The gradients of a case by some inputs, for random gradients of its outputs."""
    constants, of = [f"x{i}" for i in rule.fixed], [f"y{i}" for i in rule.of]
    feeds = {n: x for n, x in feeds_of(case).items() if n not in constants}
    proto, rng = model_of(case, constants=constants), np.random.default_rng(1)
    results = sardonyx.InferenceSession(proto).run(of, feeds)
    seeds = {
        f"{n}_grad": rng.standard_normal(y.shape).astype(y.dtype)
        for n, y in zip(of, results, strict=True)
    }
    session = sardonyx.InferenceSession(gradient(proto, of, names, seeds=True))
    found: list[Array] = session.run([f"{n}_grad" for n in names], feeds | seeds)
    return found


def test_every_rule_has_a_case() -> None:
    known = {(r.case.domain, r.case.op) for r in RULES}
    # Differences are taken in float64. A decomposition that lowering uses has cases of its own, and
    # ops of ai.onnx.ml and ai.onnx.preview have those of test_cases.py.
    needed = [
        op
        for op in all_ops()
        if rule_of(op) is not None
        and op.domain not in (GRADIENT, ML, PREVIEW)  # torch differentiates those of training
        and not (op.decomposition and op.decomposition.when is always)
        and F64 in allowed(op, op.inputs[0])
        and family_of(*op.key) != "sequence"  # in test_flow.py
    ]
    missing = [f"add a case of {op} to tests/train" for op in needed if op.key not in known]
    # It is RMSNormalization under another name, with the same rule.
    assert missing == ["add a case of SimplifiedLayerNormalization to tests/train"], "\n".join(
        missing
    )
