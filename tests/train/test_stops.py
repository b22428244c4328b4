"""No op drops a gradient silently: it has a rule, is listed in autodiff/stops.py, or fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.autodiff.backward import Backward, backpropagate
from sardonyx.autodiff.dependence import takes_gradients
from sardonyx.autodiff.stops import NO_GRADIENT, STOPS, stops_at_input, stops_at_output
from sardonyx.errors import NotImplemented
from sardonyx.graph.dtype import BOOL, F32, FLOATS, I32, I64, INTS
from sardonyx.graph.fact import Fact, OptionalFact, SequenceFact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.infer import infer, infer_node
from sardonyx.graph.op import GRADIENT, INTERNAL, ML, ONNX, PREVIEW, TRAINING, Op, allowed, always
from sardonyx.load import LoadOptions, load
from sardonyx.load.source import read_model
from sardonyx.ops import all_ops, family_of, lookup
from sardonyx.ops.gradient_rules import rule_of
from tests.op_cases import Array, Case, case, case_modules
from tests.oracle import model_of
from tests.train.gradient_cases import apart

N_CASES = 8  # of an op: they differ in attributes, types and the inputs that are there


def cases() -> Iterator[Case]:
    for module in case_modules():
        yield from module.CASES


BY_OP: dict[tuple[str, str], list[Case]] = {}
for _case in cases():
    if _case.fails is None and any(isinstance(x, np.ndarray) for x in _case.inputs):
        BY_OP.setdefault((_case.domain, _case.op), []).append(_case)


def as_floats(graph: Graph, value: Value) -> Value | None:
    """A tensor of floats that depends on a value, or None where no op makes one of it."""
    if takes_gradients(value):
        return value
    fact = value.fact
    if isinstance(fact, Fact) and (fact.dtype in INTS or fact.dtype is BOOL):
        return made(graph, "Cast", value, to=F32.onnx)
    if isinstance(fact, SequenceFact):
        position = Value("position", Fact(I64, ()))
        graph.inputs.append(position)
        return as_floats(graph, made(graph, "SequenceAt", value, position))
    if isinstance(fact, OptionalFact):
        return as_floats(graph, made(graph, "OptionalGetElement", value))
    return None


def made(graph: Graph, name: str, *inputs: Value, **attrs: Any) -> Value:
    op = lookup("", name)
    assert op is not None
    node = graph.add(op, inputs, {**op.defaults, **attrs})
    infer_node(graph.scope, node)
    return node.outputs[0]


def gradient_reaches(case: Case, position: int) -> bool | None:
    """Whether a gradient of all outputs arrives at an input; None where no path may carry one."""
    graph = load(read_model(model_of(case)), LoadOptions()).graph
    infer(graph, assumes=False)
    wanted = next(v for v in graph.inputs if v.name == f"x{position}")
    if not takes_gradients(wanted) or not wanted.is_used:
        return None
    depends = {wanted}
    for node in graph.sorted_nodes():
        depends.update(dependents(node, depends))
    ends = [y for v in graph.outputs if v in depends and (y := as_floats(graph, v)) is not None]
    if not ends:
        return None
    seeds = {y: Value("seed", y.fact) for y in ends}
    return wanted in backpropagate(Backward(graph), graph.sorted_nodes(), seeds, [wanted])


def dependents(node: Node, values: set[Value]) -> list[Value]:
    """The outputs of a node that depend on values by paths that the table does not list."""
    slots = [i for i, v in enumerate(node.inputs) if v in values and not stops_at_input(node, i)]
    captured = any(v in values for _, body in node.subgraphs for v in body.captures())
    is_read = bool(slots) or captured
    return [v for i, v in enumerate(node.outputs) if is_read and not stops_at_output(node, i)]


@pytest.mark.parametrize("key", BY_OP, ids=lambda key: key[1])
def test_no_gradient_is_dropped(key: tuple[str, str]) -> None:
    for c in BY_OP[key][:N_CASES]:
        for position, x in enumerate(c.inputs):
            if not isinstance(x, np.ndarray):
                continue
            with contextlib.suppress(NotImplemented):
                is_there = gradient_reaches(c, position)
                assert is_there is not False, f"{c} drops the gradient of x{position}"


def op_named(name: str) -> Op:
    domain, _, short = name.rpartition(".")
    op = lookup(domain, short)
    assert op is not None, name
    return op


# Their stops apply to some nodes only.
SOMETIMES = ("Cast", "CastLike", "ai.onnx.ml.SVMRegressor")


def test_stops_are_declared_ops_without_a_rule() -> None:
    for name, stops in STOPS.items():
        op = op_named(name)
        is_whole = any(
            s.inputs is None and s.outputs is None and name not in SOMETIMES for s in stops
        )
        assert not (is_whole and rule_of(op) is not None), f"{name} has a rule that is never used"


def test_ops_with_a_reason_have_no_gradient() -> None:
    for name in NO_GRADIENT:
        op = op_named(name)
        assert name not in STOPS
        assert rule_of(op) is None or op.gradient_rule is None
        assert op.decomposition is None or op.decomposition.when is not always


# Ops with bodies and of sequences are in test_flow.py.
OTHER_FAMILIES = ("control", "sequence")
WITH_BODIES = ("FlexAttention",)


def test_every_standard_op_of_floats_has_a_gradient_or_a_reason() -> None:
    missing = [
        str(op)
        for op in all_ops()
        if op.domain in (ONNX, ML, PREVIEW, TRAINING)
        and any(not allowed(op, slot).isdisjoint(FLOATS) for slot in op.inputs)
        and family_of(*op.key) not in OTHER_FAMILIES
        and op.name not in WITH_BODIES
        and rule_of(op) is None
        and str(op) not in STOPS
        and str(op) not in NO_GRADIENT
    ]
    assert missing == []


def test_the_reason_is_in_the_error() -> None:
    c = case("BitCast", _X.astype(np.float32), to=I32.onnx)
    with pytest.raises(NotImplemented, match="reinterpreting bits is not differentiable"):
        gradient_reaches(c, 0)


# Ops without a case that feeds a tensor. Those with bodies and sequences are in test_gradient.py.
NOT_ASKED = (
    "BeamSearch CastMap ConcatFromSequence DictVectorizer GreedySearch If Loop RandomNormal "
    "RandomUniform Sampling Scan SequenceEmpty SequenceLength SequenceMap SparseToDenseMatMul "
    "WhisperBeamSearch"
)


def test_every_op_of_a_model_is_checked() -> None:
    """Ops that lowering makes are in no model when gradients are asked for."""
    ours = (INTERNAL, GRADIENT)
    missing = {op.name for op in all_ops() if op.domain not in ours} - {n for _, n in BY_OP}
    assert sorted(missing) == NOT_ASKED.split()


# Numbers away from the places where they step.
_X, _Y = apart(3, 4), apart(3, 4)[::-1] + 0.1
STEPPED = [
    *(case(op, _X) for op in ("Ceil", "Floor", "Round", "Sign", "Hardmax", "NonZero")),
    *(case(op, _X) for op in ("ArgMax", "ArgMin", "IsNaN", "IsInf", "Shape", "Size", "EyeLike")),
    *(case(op, _X, _Y) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    case("Cast", _X, to=I64.onnx),
]


@pytest.mark.parametrize("case", STEPPED, ids=str)
def test_stopped_ops_are_locally_constant(case: Case) -> None:
    session = sardonyx.InferenceSession(model_of(case))
    feeds = {f"x{i}": x for i, x in enumerate(case.inputs)}
    before = session.run(None, feeds)[0]
    for name, x in feeds.items():
        after: Array = session.run(None, {**feeds, name: x + 1e-4})[0]
        np.testing.assert_array_equal(after, before)
