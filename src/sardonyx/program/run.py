"""Runs a program: binds the sizes that inputs give, checks guards, then walks the segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

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


def bind(program: Program, values: Mapping[str, Any]) -> dict[str, int]:
    """The size of every name that the inputs' shapes give; a shape that misfits is an error."""
    dims: dict[str, int] = {}
    for spec in program.inputs:
        value = values.get(spec.name, spec.default)
        if not isinstance(value, (np.ndarray, Const)) and spec.device == HOST:
            continue
        if value is None:
            continue
        shape = tuple(value.shape)
        if isinstance(spec.fact, Fact) and spec.fact.shape is not None:
            check_shape(spec.name, spec.fact, shape)
        for axis, name in spec.sizes:
            if dims.setdefault(name, shape[axis]) != shape[axis]:
                raise AssumptionFailed(f"the dims named {name} differ in size")
    return dims


def check_shape(name: str, fact: Fact, shape: tuple[int, ...]) -> None:
    """Raises an error where an input of this type has another rank, or another size somewhere."""
    wanted = fact.dims
    if len(shape) != len(wanted):
        raise InvalidArgument(
            f"input {name} has rank {len(shape)}, and the model wants rank {len(wanted)}",
            got=list(shape),
            wanted=fact,
        )
    for axis, (size, want) in enumerate(zip(shape, wanted, strict=True)):
        if isinstance(want, int) and size != want:
            raise InvalidArgument(
                f"input {name} has {size} in dim {axis}, and the model wants {want}",
                got=list(shape),
                wanted=fact,
            )


def execute(program: Program, run: Run) -> list[Any]:
    """The values of the program's outputs; inputs and captured values are in the frame already."""
    dims, frame = run.dims, run.frame
    for guard in program.guards:
        guard.check(dims)
    for limit in program.limits:
        limit.check(dims)
    for segment in program.segments:
        run.check()
        if isinstance(segment, NativeSegment):
            _run_native(program, segment, run)
            continue
        for guard in segment.guards:
            guard.check(dims)
        started = perf_counter()
        results = _call(segment, [frame[i] for i in segment.inputs], run)
        for slot, value in zip(segment.outputs, results, strict=False):
            frame[slot] = value
        for position, axis, name in segment.binds:
            shape = getattr(results[position], "shape", ())
            if axis < len(shape):
                dims[name] = int(shape[axis])
        for expected in segment.expects:
            expected.check(results[expected.position], dims, segment.node)
        if run.on_step is not None:
            run.on_step(segment, run, started)
        for slot in segment.frees:
            frame[slot] = None
    for guard in program.closing:
        guard.check(dims)
    return [frame[o.slot] for o in program.outputs]


def _run_native(program: Program, segment: NativeSegment, run: Run) -> None:
    segment.prepare(program.forms, run.settings, run.pool)
    times = segment.run(run.frame, run.dims, run.stop, run.on_native is not None, run.into)
    if run.on_native is not None:
        run.on_native(segment, times)
    for slot in segment.frees:
        run.frame[slot] = None


def _call(segment: PythonSegment | RegionSegment, arrays: list[Any], run: Run) -> Sequence[Any]:
    """One step; whatever goes wrong names its node."""
    try:
        if isinstance(segment, RegionSegment):
            return segment(arrays, run)
        return segment.call(arrays, run)
    except SardonyxError as error:
        raise error.at(node=segment.node) from None
    except AssumptionFailed:
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


class Body:
    """A body as the reference of its node calls it: arrays in, list of values out."""

    __slots__ = ("_program", "_run")

    def __init__(self, program: Program, run: Run) -> None:
        self._program = program
        self._run = run

    @property
    def unrun_facts(self) -> list[AnyFact]:
        """What the outputs stand for where the body never ran; for empty tensors alone."""
        return [o.fact if o.unrun is None else o.unrun for o in self._program.outputs]

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in their order."""
        return [i.name for i in self._program.inputs]

    @property
    def input_facts(self) -> list[AnyFact]:
        """What is known of the inputs."""
        return [i.fact for i in self._program.inputs]

    def __call__(self, *values: Any) -> list[Any]:
        program, outer = self._program, self._run
        outer.check()  # a body may have no step that does
        frame, dims = program.frame(), dict(outer.dims)
        for there, here in program.captures:
            frame[here] = outer.frame[there]
        for spec, value in zip(program.inputs, values, strict=True):
            frame[spec.slot] = value
            shape = getattr(value, "shape", ())
            for axis, name in spec.sizes:
                if axis < len(shape):
                    dims[name] = int(shape[axis])
        for expected in program.expects:
            expected.check(values[expected.position], dims, None)
        inner = replace(outer, dims=dims, frame=frame, into={}, shared={}, is_bound=False)
        return execute(program, inner)
