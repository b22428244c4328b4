"""One run on the checked path: the request, and the Run that `program.run.execute` works on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.base.records import frozen
from sardonyx.errors import Fail
from sardonyx.ort.options import RunOptions
from sardonyx.place import HOST
from sardonyx.program.native import RunSettings
from sardonyx.program.program import Program, Run
from sardonyx.program.run import bind
from sardonyx.session.bound_memory import BoundMemory
from sardonyx.session.program_cache import SharedProgram
from sardonyx.session.run_config import graph_id


@frozen
class RunRequest:
    """What a run computes; its inputs have been checked."""

    values: dict[str, Any]
    options: RunOptions
    bound: BoundMemory | None
    output_indices: Sequence[int]
    on_device: bool  # results stay on the devices that computed them
    started: float  # time.perf_counter, for profiles


def new_run(shared: SharedProgram, request: RunRequest, settings: RunSettings) -> Run:
    """Bind the sizes and inputs of a request to a program.

    Raise AssumptionFailed if the program's assumptions do not hold for these sizes.
    """
    program, options, bound = shared.compiled.program, request.options, request.bound
    slots = None if bound is None else bound.slots(program)
    # A copy: the run adds data-dependent sizes to its dims.
    dims = bind(program, request.values) if slots is None else slots.dims.copy()
    frame = _input_frame(program, request.values)
    check = _termination_check(options)
    run = Run(dims, frame, check, settings, options._stop, shared.pool)
    run.graph_id = graph_id(options)
    if slots is not None:
        run.output_buffers, run.shared, run.is_bound = slots.output_buffers, slots.shared, True
    return run


def _input_frame(program: Program, values: Mapping[str, Any]) -> list[Any]:
    """Return a frame with the inputs filled in, on the devices that read them."""
    frame = program.frame()
    for spec in program.inputs:
        value = values.get(spec.name)
        if value is None and spec.default is not None:
            value = spec.default.read()
        if spec.device != HOST and isinstance(value, np.ndarray):
            value = program.devices[spec.device].to_device(value)
        frame[spec.slot] = value
    return frame


def _termination_check(options: RunOptions) -> Callable[[], None]:
    """Return a function that raises once RunOptions.terminate is set."""

    def check() -> None:
        if options.terminate:
            raise Fail("the run was ended by RunOptions.terminate")

    return check
