"""Executes a program: resolves dims from the inputs, checks guards, runs the segments in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np

from sardonyx.base.records import replace
from sardonyx.errors import InvalidArgument, SardonyxError, as_sardonyx_error
from sardonyx.graph.const import Const
from sardonyx.graph.fact import AnyFact, Fact
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.place.provider import HOST
from sardonyx.program.native import NativeSegment
from sardonyx.program.program import Program, PythonSegment, Run
from sardonyx.program.region import RegionSegment

_OTHERS: Final = 3  # wrong inputs that an error lists besides the first


def bind(program: Program, values: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the named dims of the inputs; raise if a shape does not fit."""
    dims: dict[str, int] = {}
    wrong: list[InvalidArgument] = []
    for spec in program.inputs:
        value = values.get(spec.name, spec.default)
        # Sequences, maps and optionals have no shape.
        if not isinstance(value, (np.ndarray, Const)) and spec.device == HOST:
            continue
        if value is None:
            continue
        shape = tuple(value.shape)
        if isinstance(spec.fact, Fact) and spec.fact.shape is not None:
            error = wrong_shape(spec.name, spec.fact, shape)
            if error is not None:
                wrong.append(error)
                continue
        if wrong:
            continue
        for axis, name in spec.sizes:
            if dims.setdefault(name, shape[axis]) != shape[axis]:
                raise AssumptionFailed(f"the dims named {name} differ in size")
    if wrong:
        raise _all_of(wrong)
    return dims


def _all_of(wrong: Sequence[InvalidArgument]) -> InvalidArgument:
    """Return the first of the errors about inputs, with the others in its context."""
    first, *others = wrong
    if others:
        also = [error.what for error in others[:_OTHERS]]
        if len(others) > _OTHERS:
            also.append(f"and {len(others) - _OTHERS} more inputs")
        first.where["also"] = "; ".join(also)
    return first


def check_shape(name: str, fact: Fact, shape: tuple[int, ...]) -> None:
    """Raise if the shape of an input has another rank or another fixed size than its fact."""
    error = wrong_shape(name, fact, shape)
    if error is not None:
        raise error


def wrong_shape(name: str, fact: Fact, shape: tuple[int, ...]) -> InvalidArgument | None:
    """Return an error that names every dim of an input that contradicts its fact."""
    expected = fact.dims
    if len(shape) != len(expected):
        what = f"input {name} has rank {len(shape)}, but the model expects rank {len(expected)}"
    else:
        pairs = enumerate(zip(shape, expected, strict=True))
        wrong = [(i, n, d) for i, (n, d) in pairs if isinstance(d, int) and n != d]
        if not wrong:
            return None
        dims, sizes, wanted = (_listed(column) for column in zip(*wrong, strict=True))
        noun = "dims" if len(wrong) > 1 else "dim"
        what = f"input {name} has {sizes} in {noun} {dims}, but the model expects {wanted}"
    return InvalidArgument(what, got=list(shape), wanted=fact)


def _listed(numbers: Sequence[object]) -> str:
    """Return numbers as `1, 2 and 3`."""
    *rest, last = map(str, numbers)
    return f"{', '.join(rest)} and {last}" if rest else last


def execute(program: Program, run: Run) -> list[Any]:
    """Run a program and return its outputs; inputs and captures must be in the frame."""
    dims = run.dims
    for guard in program.guards:
        guard.check(dims)
    for limit in program.limits:
        limit.check(dims)
    for segment in program.segments:
        run.check()
        if isinstance(segment, NativeSegment):
            _run_native(program, segment, run)
        else:
            _run_python(segment, run)
        for slot in segment.frees:
            run.frame[slot] = None
    for guard in program.final_guards:
        guard.check(dims)
    return [run.frame[o.slot] for o in program.outputs]


def _run_python(segment: PythonSegment | RegionSegment, run: Run) -> None:
    dims, frame = run.dims, run.frame
    for guard in segment.guards:
        guard.check(dims)
    started = perf_counter()
    results = _call(segment, [frame[i] for i in segment.inputs], run)
    for slot, value in zip(segment.outputs, results, strict=False):
        frame[slot] = value
    # Before the checks, which evaluate sizes by these names.
    for position, axis, name in segment.binds:
        shape = getattr(results[position], "shape", ())
        if axis < len(shape):
            dims[name] = int(shape[axis])
    for expected in segment.expects:
        expected.check(results[expected.position], dims, segment.node)
    if run.on_step is not None:
        run.on_step(segment, run, started)


def _run_native(program: Program, segment: NativeSegment, run: Run) -> None:
    segment.prepare(program.layouts, run.settings, run.pool)  # does nothing but the first time
    times = segment.run(
        run.frame, run.dims, run.stop, run.on_native is not None, run.output_buffers
    )
    if run.on_native is not None:
        run.on_native(segment, times)


def _call(segment: PythonSegment | RegionSegment, arrays: list[Any], run: Run) -> Sequence[Any]:
    """Call a step; errors name its node."""
    try:
        if isinstance(segment, RegionSegment):
            return segment(arrays, run)
        return segment.call(arrays, run)
    except SardonyxError as error:
        raise error.add_context(node=segment.node) from None
    except AssumptionFailed:  # the caller compiles the model again without the assumption
        raise
    except Exception as error:
        raise as_sardonyx_error(
            error, f"running {segment.node.op}", node=segment.node, **_shapes(arrays)
        ) from error


def _shapes(arrays: Sequence[Any]) -> dict[str, object]:
    shown = (
        f"{a.dtype}{list(a.shape)}" if isinstance(a, np.ndarray) else type(a).__name__
        for a in arrays
    )
    return {"inputs": ", ".join(shown)}


class PythonBody:
    """A body of control flow that runs in Python: arrays in, list of values out."""

    __slots__ = ("_program", "_run")

    def __init__(self, program: Program, run: Run) -> None:
        self._program = program
        self._run = run

    @property
    def zero_trip_facts(self) -> list[AnyFact]:
        """The facts of the outputs if the body never runs, for empty results."""
        return [
            o.fact if o.zero_trip_fact is None else o.zero_trip_fact for o in self._program.outputs
        ]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in order."""
        return [i.name for i in self._program.inputs]

    @property
    def input_facts(self) -> list[AnyFact]:
        """The facts of the inputs."""
        return [i.fact for i in self._program.inputs]

    def __call__(self, *values: Any) -> list[Any]:
        program, outer = self._program, self._run
        outer.check()  # a body without segments would make an endless Loop unstoppable
        frame, dims = program.frame(), dict(outer.dims)
        for outer_slot, slot in program.captures:
            frame[slot] = outer.frame[outer_slot]
        for spec, value in zip(program.inputs, values, strict=True):
            frame[spec.slot] = value
            shape = getattr(value, "shape", ())
            for axis, name in spec.sizes:
                if axis < len(shape):
                    dims[name] = int(shape[axis])
        for expected in program.expects:
            expected.check(values[expected.position], dims, None)
        # Preallocated outputs and aliases are those of the outer program's slots.
        inner = replace(outer, dims=dims, frame=frame, output_buffers={}, shared={}, is_bound=False)
        return execute(program, inner)
