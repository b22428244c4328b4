"""Validation of programs at the native boundary: malformed ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sardonyx._native as native
from sardonyx._native import ControlKind, GuardKind, MalformedProgram, SizeKind, Storage
from tests.native import programs

F32, ROW = 1, "copy"


def segment() -> native.SegmentSpec:
    """x -> copy -> y, of [N, 4] floats."""
    made = native.SegmentSpec(0, [0], 0, False)
    made.add_size(SizeKind.NAME, 0, 0, 0)
    made.add_size(SizeKind.NUMBER, 0, 0, 4)
    made.add_value(Storage.SLOT, F32, 0, 0, [0, 1], [])
    made.add_value(Storage.EXPORTED, F32, 1, 0, [0, 1], [])
    return made


def step(spec: native.SegmentSpec, inputs: list[int], outputs: list[int], **other: Any) -> None:
    given = {"ints": [], "floats": [], "shares": [], "permutation": [], "joins": False, **other}
    spec.add_step(given.pop("row", ROW), inputs, outputs, *given.values())


def sequence(spec: native.SegmentSpec) -> native.ProgramSpec:
    made = native.ProgramSpec(2, 1)
    made.add_input(0, 2, F32, -1)
    made.add_name(0, 0, 0)
    made.add_size(0, 1, 4)
    made.add_output(1)
    made.add_segment(spec, [])
    return made


def runnable(made: native.ProgramSpec) -> native.Runnable:
    return programs.runnable(made, {"x": np.float32}, [np.float32])


def test_a_program_that_is_well_formed_runs() -> None:
    spec = segment()
    step(spec, [0], [1])
    made = runnable(sequence(spec))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (got,) = made.run_fast({"x": x})
    np.testing.assert_array_equal(got, x)
    result = made.run([-1], [x], None, False)
    np.testing.assert_array_equal(result.outputs[0], x)
    assert result.names == [3]


def test_readers_run_before_an_update() -> None:
    """In any order that the search finds."""
    spec = segment()
    spec.add_value(Storage.UPDATED, F32, 0, 0, [0, 1], [])
    step(spec, [0], [1])
    step(spec, [0], [2])
    made = runnable(sequence(spec))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (got,) = made.run_fast({"x": x})
    np.testing.assert_array_equal(got, x)
    x.flags.writeable = False
    assert made.run_fast({"x": x}) is None


@pytest.mark.parametrize(
    ("x", "names"),
    [
        (np.ones((3, 4), np.float32), [2]),
        (np.ones((3, 5), np.float32), [3]),
        (np.ones((3, 4, 1), np.float32), [3]),
        (np.ones(3, np.float32), [3]),
        (np.ones((3, 4), np.float64), [3]),
        (None, [3]),
    ],
    ids=["name", "size", "high rank", "low rank", "type", "none"],
)
def test_feeds_that_contradict_the_program(x: Any, names: list[int]) -> None:
    spec = segment()
    step(spec, [0], [1])
    made = runnable(sequence(spec))
    assert made.run_fast({"x": x}) is None or names == [2]
    if isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype == np.float32:
        assert made.run(names, [x], None, False).fault is native.Fault.NAME
        return
    with pytest.raises(ValueError, match="of its type and rank"):
        made.run(names, [x], None, False)


def control(kind: ControlKind = ControlKind.BRANCH, **lists: list[int]) -> native.ControlSpec:
    return native.ControlSpec(kind, 0, lists.get("inputs", [0]), lists.get("outputs", [1]))


def body(n_inputs: int = 0, n_outputs: int = 1) -> native.ProgramSpec:
    made = native.ProgramSpec(max(n_inputs, 1), 0)
    for slot in range(n_inputs):
        made.add_input(slot, 0, F32, -1)
    for _ in range(n_outputs):
        made.add_output(0)
    return made


def two_bodies(spec: native.ControlSpec, made: Callable[[], native.ProgramSpec] = body) -> None:
    for _ in range(2):
        spec.add_body(made(), [], [])


def updating(s: native.SegmentSpec, *steps: tuple[list[int], list[int]], source: int = 0) -> None:
    """Add values 2 and 3, which are written over an input, and steps."""
    for _ in range(2):
        s.add_value(Storage.UPDATED, F32, source, 0, [0, 1], [])
    for inputs, outputs in steps:
        step(s, inputs, outputs)


SEGMENTS: dict[str, tuple[str, Callable[[native.SegmentSpec], Any]]] = {
    "a register to come": ("register", lambda s: s.add_size(SizeKind.ADD, 0, 2, 0)),
    "a register below 0": ("register", lambda s: s.add_size(SizeKind.MUL, -1, 0, 0)),
    "a name": ("name 1 is outside", lambda s: s.add_size(SizeKind.NAME, 1, 0, 0)),
    "a guard": ("register", lambda s: s.add_guard(GuardKind.EQUAL, 0, 2)),
    "a slot": ("slot 2 is outside", lambda s: s.add_value(Storage.SLOT, F32, 2, 0, [], [])),
    "a dim": ("register", lambda s: s.add_value(Storage.ARENA, F32, 0, 0, [2], [])),
    "a rank": ("rank 11", lambda s: s.add_value(Storage.ARENA, F32, 0, 0, [1] * 11, [])),
    "a type": ("type", lambda s: s.add_value(Storage.ARENA, 99, 0, 0, [], [])),
    "a view of itself": ("value", lambda s: s.add_value(Storage.RESHAPED, F32, 2, 0, [0, 1], [])),
    "a view of bytes": ("type", lambda s: s.add_value(Storage.RESHAPED, 2, 0, 0, [0, 1], [])),
    "axes": ("twice", lambda s: s.add_value(Storage.PERMUTED, F32, 0, 0, [0, 1], [1, 1])),
    "an axis": ("axis", lambda s: s.add_value(Storage.PERMUTED, F32, 0, 0, [0, 1], [0, 2])),
    "starts": ("slice", lambda s: s.add_value(Storage.SLICED, F32, 0, 0, [0, 1], [0, 0])),
    "fewer axes": ("fewer", lambda s: s.add_value(Storage.EXPANDED, F32, 0, 0, [1], [])),
    "a part of itself": (
        "view each other", lambda s: s.add_value(Storage.CONCAT_SLICE, F32, 2, 0, [0, 1], [0]),
    ),
    "capacity": ("axis", lambda s: s.add_value(Storage.EXPORTED, F32, 1, 0, [0, 1], [2, 0])),
    "an input": ("value 2 is outside", lambda s: step(s, [2], [1])),
    "no output": ("value -1", lambda s: step(s, [0], [-1])),
    "writing an input": ("exists already", lambda s: step(s, [0], [0])),
    "reading too early": ("before it is written", lambda s: step(s, [1], [1])),
    "an attribute": ("register", lambda s: step(s, [0], [1], ints=[2])),
    "sharing": ("input 1 is outside", lambda s: step(s, [0], [1], shares=[(1, 0)])),
    "a permutation": ("permutation", lambda s: step(s, [0], [1], permutation=[0])),
    "a Concat": ("Concat", lambda s: step(s, [0], [1], joins=True)),
    "a kernel": ("no kernel", lambda s: step(s, [0], [1], row="no such row")),
    "a name that is not defined": ("step 0 is outside", lambda s: s.add_resolved(0, 0, 0, 0)),
    "updating an output": ("not an input", lambda s: updating(s, source=1)),
    "updating unread": ("does not read", lambda s: updating(s, ([0], [1]), ([1], [2]))),
    "updating twice": ("after it was updated", lambda s: updating(s, ([0], [2]), ([0], [3]))),
    "reading the old": ("after it was updated", lambda s: updating(s, ([0], [2]), ([0], [1]))),
    "an alias": ("not exported", lambda s: s.add_alias(1, 0)),
    "a growth": ("slot", lambda s: s.add_growth(0, 2, 0, 0, 0, 0, False)),
}  # fmt: skip


@pytest.mark.parametrize("what", SEGMENTS)
def test_malformed_segments(what: str) -> None:
    match, spoil = SEGMENTS[what]
    spec = segment()
    with pytest.raises(MalformedProgram, match=match):  # noqa: PT012 - either call refuses
        spoil(spec)
        sequence(spec)


def _bodies_of(kind: ControlKind, n: int, **lists: list[int]) -> native.ControlSpec:
    spec = control(kind, **lists)
    for _ in range(n):
        spec.add_body(body(), [], [])
    return spec


def _with_stacked(**given: Any) -> native.ControlSpec:
    spec = control(ControlKind.LOOP, inputs=[-1, -1], outputs=[1])
    spec.add_body(body(2, 2), [], [])
    spec.add_scan_output(given.get("dtype", F32), given.get("dims", []), given.get("axis", 0),
                     False, False, False)  # fmt: skip
    return spec


CONTROLS: dict[str, tuple[str, Callable[[], native.ControlSpec]]] = {
    "one branch": ("bodies", lambda: _bodies_of(ControlKind.BRANCH, 1)),
    "no condition": ("inputs of If", lambda: _bodies_of(ControlKind.BRANCH, 2, inputs=[])),
    "a slot": ("slot 5", lambda: _bodies_of(ControlKind.BRANCH, 2, outputs=[5])),
    "outputs": ("outputs of a body", lambda: _bodies_of(ControlKind.BRANCH, 2, outputs=[1, 1])),
    "a loop's inputs": ("inputs of a body", lambda: _bodies_of(ControlKind.LOOP, 1, outputs=[])),
    "nothing scanned": ("scan inputs", lambda: _bodies_of(ControlKind.SCAN, 1)),
    "an axis": ("axis 1 is outside", lambda: _with_stacked(axis=1)),
    "a rank": ("rank 11", lambda: _with_stacked(dims=[1] * 10)),
    "a high rank": ("rank 40", lambda: _with_stacked(dims=[1] * 40)),
}


@pytest.mark.parametrize("what", CONTROLS)
def test_malformed_control_flow(what: str) -> None:
    match, make = CONTROLS[what]
    sequence = native.ProgramSpec(2, 1)
    with pytest.raises(MalformedProgram, match=match):
        sequence.add_control(make(), [], [])


@pytest.mark.parametrize(
    ("match", "spoil"),
    [
        ("slot", lambda s: s.add_output(2)),
        ("slot", lambda s: s.add_name(2, 0, 0)),
        ("axis", lambda s: s.add_name(0, 10, 0)),
        ("name", lambda s: s.add_name(0, 0, 1)),
        ("axis", lambda s: s.add_size(0, -1, 3)),
        ("rank 12", lambda s: s.add_constant(0, F32, [1] * 12, 0)),
        ("another number", lambda s: s.add_input(0, 2, F32, -1)),
    ],
)
def test_malformed_sequences(match: str, spoil: Callable[[native.ProgramSpec], Any]) -> None:
    spec = segment()
    step(spec, [0], [1])
    made = sequence(spec)
    with pytest.raises(MalformedProgram, match=match):  # noqa: PT012 - either call refuses
        spoil(made)
        runnable(made)
