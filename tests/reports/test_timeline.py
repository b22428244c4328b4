"""Memory timelines: the simulation, and timelines of real models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

import sardonyx
from sardonyx.base.records import replace
from sardonyx.compile import Compiled, Options, compile
from sardonyx.errors import InternalError, InvalidArgument
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.memory import peak_live_bytes
from sardonyx.memory.offsets import ArenaLayout, LiveRange, assign_offsets, check_offsets
from sardonyx.models import DIGITS
from sardonyx.providers.reference import Reference
from sardonyx.reports.timeline import (
    OWN,
    Arena,
    KernelCall,
    Kind,
    Tensor,
    Timeline,
    is_internal,
    new_timeline,
    simulate,
    takes_over,
)
from sardonyx.reports.timeline_builder import open_sizes, timeline


def tensor(
    size: int, start: int, end: int, offset: int = 0, kind: Kind = "value", part: int = 0
) -> Tensor:
    part = -1 if offset == OWN else part
    return Tensor(f"t{size}", "node", kind, size, start, start, end, offset, part, "f32", None, 0)


def check_timeline(planned: Timeline) -> None:
    """Check a timeline by `check_offsets`, which compares every pair of live ranges."""
    for part, arena in enumerate(planned.arenas):
        lives: list[LiveRange] = []
        offsets: dict[int, int] = {}
        for number, chain in enumerate(_chains(planned.tensors, part)):
            first, last = chain[0], chain[-1]
            lives.append(LiveRange(number, first.bytes, first.start, last.end))
            offsets[number] = first.offset
        check_offsets(lives, ArenaLayout(offsets, arena.bytes))


def _chains(tensors: Iterable[Tensor], part: int) -> Iterator[list[Tensor]]:
    """Yield the tensors of an arena; those computed in place over each other form one chain."""
    chains: dict[tuple[int, int], list[list[Tensor]]] = {}
    inside = (t for t in tensors if is_internal(t) and t.part == part and t.offset != OWN)
    for new in sorted(inside, key=lambda t: (t.start, t.end)):
        at_offset = chains.setdefault((new.offset, new.bytes), [])
        chain = next((c for c in at_offset if takes_over(new, c[-1])), None)
        if chain is None:
            at_offset.append([new])
        else:
            chain.append(new)
    for at_offset in chains.values():
        yield from at_offset


SIMULATED = {
    "nothing": ([], [0], [0, 0, 0]),
    "one": ([tensor(8, 0, 1)], [8], [8, 8, 0]),
    "beside": ([tensor(8, 0, 1), tensor(4, 1, 2, 8)], [12], [8, 12, 4]),
    "after": ([tensor(8, 0, 0), tensor(8, 1, 2)], [8], [8, 8, 8]),
    "a gap": ([tensor(8, 0, 0), tensor(4, 0, 2, 64)], [68], [12, 4, 4]),
    "in place": ([tensor(8, 0, 1), tensor(8, 1, 2)], [8], [8, 8, 8]),
    "in place twice": ([tensor(8, 0, 1), tensor(8, 1, 2), tensor(8, 2, 2)], [8], [8, 8, 8]),
    "scratch": ([tensor(8, 0, 2), tensor(16, 1, 1, 8, "scratch")], [24], [8, 24, 8]),
    "a block": ([tensor(8, 0, 1), tensor(5, 1, 2, OWN)], [8], [8, 13, 5]),
    "whose": ([tensor(8, 0, 2, OWN, "output"), tensor(4, 0, 2, OWN, "input")], [0], [0, 0, 0]),
    "empty": ([tensor(8, 0, 2), tensor(0, 0, 2)], [8], [8, 8, 8]),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_simulation(name: str) -> None:
    tensors, reach, needs = SIMULATED[name]
    found = simulate(tensors, 3, 1)
    assert (list(found.reach), list(found.needs)) == (reach, needs)


OVERLAPS = {
    "inside": [tensor(64, 0, 2), tensor(8, 1, 1, 16)],
    "from below": [tensor(64, 0, 2), tensor(32, 1, 1, 48)],
    "from above": [tensor(64, 0, 2, 32), tensor(48, 1, 1)],
    "in place, and still needed": [tensor(64, 0, 2), tensor(64, 1, 2)],
    "in place, and smaller": [tensor(64, 0, 1), tensor(32, 1, 2)],
    "two in one place": [tensor(64, 0, 1), tensor(64, 1, 2), tensor(64, 1, 1)],
    "made at once": [tensor(64, 1, 1), tensor(64, 1, 2)],
    "scratch in place": [tensor(64, 0, 1), tensor(64, 1, 1, 0, "scratch")],
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_are_an_error(name: str) -> None:
    with pytest.raises(InternalError, match="share bytes in step 1"):
        simulate(OVERLAPS[name], 3, 1)
    with pytest.raises(InternalError, match="share bytes"):
        check_timeline(_unproven(OVERLAPS[name], 128))


def test_segments_have_their_own_arenas() -> None:
    tensors = [tensor(8, 0, 1), tensor(16, 1, 1, part=1)]
    assert simulate(tensors, 2, 2).reach == (8, 16)


def _unproven(tensors: list[Tensor], size: int) -> Timeline:
    steps = (KernelCall("node", "Op", "kernel", 0),) * 40
    return Timeline("", steps, tuple(tensors), (Arena(size, 0),), size, size, 0, 0, 0, 0, (0,) * 40)


lives = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 30), st.integers(0, 8)), min_size=1, max_size=30
).map(lambda rows: [LiveRange(i, n, start, start + k) for i, (n, start, k) in enumerate(rows)])


@given(lives)
@settings(max_examples=100, deadline=None)
def test_simulation_agrees_with_the_planner(values: list[LiveRange]) -> None:
    layout = assign_offsets(values, align=1)
    tensors = [tensor(x.size, x.start, x.end, layout.offsets[x.value]) for x in values]
    found = simulate(tensors, 40, 1)
    assert found.reach == (layout.size,)
    assert max(found.needs) == peak_live_bytes(values)
    check_timeline(_unproven(tensors, layout.size))


@given(lives, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_simulation_agrees_with_the_checker(values: list[LiveRange], chance: Any) -> None:
    tensors = [tensor(x.size, x.start, x.end, chance.randrange(0, 3000)) for x in values]
    assert _fails(lambda: simulate(tensors, 40, 1)) == _fails(
        lambda: check_timeline(_unproven(tensors, 10_000))
    )


def _fails(call: Any) -> bool:
    try:
        call()
    except InternalError:
        return True
    return False


def test_an_arena_larger_than_needed_is_an_error() -> None:
    step = KernelCall("node", "Op", "kernel", 0)
    with pytest.raises(InternalError, match=r"the plan says .*16.*need .*8"):
        new_timeline("", [step], [tensor(8, 0, 0)], [Arena(16, 8)], 0)


HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
PRODUCTS = """
g (float[n, 8] x, float[8, 16] u, float[16, 4] v, float[4, 32] w) => (float[n, 32] y)
{ a = MatMul (x, u)  b = MatMul (a, v)  y = MatMul (b, w) }
"""


def model(text: str) -> bytes:
    """A model in ONNX's text form; inputs u, v and w become weights of ones."""
    graph = (proto := onnx.parser.parse_model(HEAD + text)).graph
    for i in [i for i in graph.input if i.name in "uvw"]:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), i.name))
        graph.input.remove(i)
    return bytes(proto.SerializeToString())


def session(text: str) -> Compiled:
    return sardonyx.InferenceSession(model(text))._compiled


def lived(found: Timeline, kind: str) -> dict[str, tuple[int, int, int]]:
    return {t.name: (t.bytes, t.start, t.end) for t in found.tensors if t.kind == kind}


def test_values_computed_by_hand() -> None:
    found = timeline(session(PRODUCTS).program, {"n": 4}, "some order")
    check_timeline(found)
    assert found.order == "some order"
    assert [s.op for s in found.steps] == ["sardonyx.MatMul"] * 3
    assert lived(found, "input") == {"x": (128, 0, 0)}
    assert lived(found, "value") == {"b": (64, 1, 2)}
    assert lived(found, "part") == {"a": (256, 0, 1)}  # where y will be
    assert lived(found, "output") == {"y": (512, 2, 2)}
    assert found.output_bytes == 512
    scratch = {t.start: t.bytes for t in found.tensors if t.kind == "scratch"}
    made = [0, 64, 64]
    assert list(found.needs) == [n + scratch.get(i, 0) for i, n in enumerate(made)]
    assert found.lower_bound == max(found.needs) == found.needs[found.peak_step]
    assert found.peak_bytes == found.arena_bytes >= found.lower_bound
    assert found.arena_bytes < found.lower_bound + 64 * 3  # alignment
    assert [t.name for t in found.alive(1) if t.kind == "value"] == ["b"]
    assert {t.name: t.shape for t in found.tensors}["a"] == (4, 16)


def test_idle_steps_are_counted() -> None:
    text = """g (float[8, 8] x) => (float[8, 8] y) {
        a = Softmax (x)  b = MatMul (x, x)  c = MatMul (b, x)  d = MatMul (c, x)
        e = MatMul (d, x)  y = MatMul (e, a) }"""
    found = timeline(session(text).program, {})
    (a,) = (t for t in found.tensors if t.name == "a")
    assert a.idle == a.end - a.start - 1
    (c,) = (t for t in found.tensors if t.name == "c")
    assert c.idle == 0


def test_views_and_outputs_share_blocks() -> None:
    text = """g (float[n, 8] x) => (float[m] y, float[n, 8] z) {
        a = Softmax (x)  s = Constant <value_ints = [-1]> ()  y = Reshape (a, s)
        z = MatMul (a, x) }""".replace("MatMul (a, x)", "Softmax <axis = 0> (a)")
    found = timeline(session(text).program, {"n": 4})
    assert sorted(lived(found, "output").items()) == [("y", (128, 0, 1)), ("z", (128, 1, 1))]
    assert lived(found, "value") == {}
    assert found.arena_bytes == sum(t.bytes for t in found.tensors if t.kind == "scratch")


def test_python_steps_have_blocks() -> None:
    compiled = compile(model(PRODUCTS), Options((Reference(),)))
    assert compiled.program.python_steps == 3
    found = timeline(compiled.program, {"n": 4})
    assert found.arena_bytes == 0
    assert list(found.needs) == [256, 256 + 64, 64]
    assert found.peak_bytes == found.lower_bound == 320
    assert {t.offset for t in found.tensors} == {OWN}
    assert {s.kernel for s in found.steps} == {"numpy"}


def test_outputs_that_are_copies() -> None:
    text = """g (float[n, 8] x) => (float[n, 8] a, float[n, 8] b, float[n, 8] c) {
        a = Softmax (x)  b = Identity (a)  c = Identity (x) }"""
    found = timeline(session(text).program, {"n": 4})
    assert [t.bytes for t in found.tensors if t.kind == "output"] == [128] * 3
    copies = timeline(session(text.replace("Softmax", "Identity")).program, {"n": 4})
    assert {step.kernel for step in copies.steps} == {"copy"}
    assert copies.output_bytes == 3 * 128


DATA = """g (float[n] x) => (int64[1, k] y) {
    a = Softmax (x)  i = NonZero (a)  y = Neg (i) }"""


def test_sizes_that_only_a_run_knows() -> None:
    program = session(DATA).program
    (name,) = open_sizes(program)
    with pytest.raises(InvalidArgument, match=name):
        timeline(program, {"n": 4})
    few, many = (timeline(program, {"n": 4, name: k}) for k in (1, 3))
    assert few.output_bytes == 8
    assert many.output_bytes == 24
    assert len(few.steps) == 3
    assert [s.part for s in few.steps] != [0, 0, 0]  # a part begins where a size is settled


BRANCH = """g (bool c, float[n, 8] x, float[8, 8] w) => (float[n, 8] y) {
    y = If (c) <then_branch = t () => (float[n, 8] p) {
                  q = MatMul (x, w)  p = MatMul (q, w) },
                else_branch = e () => (float[n, 8] r) { r = Softmax (x) }> }"""


def test_bodies_are_scratch_of_their_node() -> None:
    found = timeline(session(BRANCH).program, {"n": 4})
    assert len(found.steps) == 1
    inside = [t for t in found.tensors if t.kind == "scratch"]
    assert len(inside) == 1
    assert inside[0].bytes >= 2 * 4 * 8 * 4  # values between its matmuls, and its output
    assert found.output_bytes == 128


def test_guards_are_checked() -> None:
    text = "g (float[n, 8] x, float[m, 8] z) => (float[k, 8] y) { y = Add (x, z) }"
    program = session(text).program
    sizes = [name for i in program.inputs for _, name in i.sizes]
    assert timeline(program, dict.fromkeys(sizes, 3)).output_bytes == 96
    with pytest.raises((InvalidArgument, AssumptionFailed)):
        timeline(program, {n: 3 + 2 * i for i, n in enumerate(sizes)})


def test_the_built_in_model() -> None:
    compiled = sardonyx.InferenceSession(DIGITS)._compiled
    one, many = (timeline(compiled.program, {"batch": n}) for n in (1, 64))
    for found in (one, many):
        check_timeline(found)
        assert found.peak_bytes == found.arena_bytes
        assert 0 < found.lower_bound <= found.arena_bytes
    assert many.output_bytes == 64 * one.output_bytes
    assert many.lower_bound > 8 * one.lower_bound  # weights that a run transforms are there once


def test_timelines_are_compared_by_value() -> None:
    program = session(PRODUCTS).program
    assert timeline(program, {"n": 4}) == timeline(program, {"n": 4})
    assert timeline(program, {"n": 4}) != replace(timeline(program, {"n": 4}), order="other")


@st.composite
def networks(draw: st.DrawFn) -> str:
    """Branches of products, activations, views and joins over rows of 8, which all meet."""
    lines, loose = [], ["x"]
    for i in range(draw(st.integers(1, 24))):
        a, b = (draw(st.sampled_from(loose[-5:])) for _ in range(2))
        lines.append(
            draw(
                st.sampled_from(
                    (
                        f"v{i} = MatMul ({a}, w)",
                        f"v{i} = Softmax ({a})",
                        f"v{i} = Relu ({a})",
                        f"v{i} = Concat <axis = 0> ({a}, {b})",
                        f"v{i} = Transpose <perm = [1, 0]> ({a})  v{i}b = Transpose (v{i})",
                        f"v{i}, v{i}b = Split <axis = 1> ({a})",
                        f"v{i}a = Exp ({a})  v{i}b = Softmax <axis = 0> (v{i}a)",
                    )
                )
            )
        )
        loose.append(f"v{i}b" if f"v{i}b =" in lines[-1] else f"v{i}")
        if "Split" in lines[-1]:
            loose[-1] = f"v{i}c"
            lines.append(f"v{i}c = Concat <axis = 1> (v{i}b, v{i})")
    ends = draw(st.lists(st.sampled_from(loose[1:]), min_size=1, max_size=3, unique=True))
    lines += [f"y{i} = Tanh ({end})" for i, end in enumerate(ends)]
    outputs = ", ".join(f"float[m{i}, 8] y{i}" for i in range(len(ends)))
    inside = "\n".join(lines)
    return f"g (float[n, 8] x, float[8, 8] w) => ({outputs}) {{\n{inside} }}"


@given(networks(), st.sampled_from(("least_peak", "reverse_depth_first", "priority_based")))
@settings(max_examples=60, deadline=None)
def test_random_networks(text: str, order: str) -> None:
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.execution_order", order)
    made = sardonyx.InferenceSession(model(text), options)
    program = made._compiled.program
    for n in (3, 50, 1):
        outputs = made.run(None, {"x": np.ones((n, 8), np.float32)})
        found = timeline(program, {"n": n}, order)
        check_timeline(found)
        assert found.peak_bytes == found.arena_bytes
        assert found.output_bytes == sum(y.nbytes for y in outputs)
        assert sorted(s.name for s in found.steps) == sorted(
            node.name or node.op.name for node, *_ in program.nodes()
        )
