"""From a model to something that runs: each line of `compile` is a stage, and each a folder."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sardonyx.graph.infer import infer
from sardonyx.load import LoadOptions, load
from sardonyx.load.model import Model
from sardonyx.memory import plan
from sardonyx.passes import PassOptions, lower, optimize
from sardonyx.place import Placement, Provider, place
from sardonyx.program.emit import emit
from sardonyx.program.program import Program
from sardonyx.schedule import schedule
from sardonyx.trace import Stages
from sardonyx.weights.forms import Forms, PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx.save import SaveOptions


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that compiling may be told."""

    providers: Sequence[Provider]
    load: LoadOptions = field(default_factory=LoadOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    save: SaveOptions | None = None
    check: Callable[[], None] = lambda: None  # called before each stage; raises to end the load
    container: PrepackedWeightsContainer | None = None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A program, with the model that it came from and what was decided on the way."""

    model: Model
    placement: Placement
    program: Program
    stages: Stages


def compile(source: Any, options: Options) -> Compiled:
    """The whole line, from a file, bytes or buffers to a program."""
    with _no_collection():
        return _compile(source, options)


def _compile(source: Any, options: Options) -> Compiled:
    stages = Stages(options.check)
    with stages.stage("load"):
        model = load(source, options.load)
    with stages.stage("infer"):
        infer(model.graph, assumes=not options.load.split_names)
        model.check_outputs()
    with stages.stage("optimize"):
        optimize(model.graph, options.passes)
    if options.save is not None:
        from sardonyx.save import save  # the writer is not needed otherwise, and slow to import

        with stages.stage("save"):
            save(model, options.save)
    with stages.stage("lower"):
        lower(model.graph, options.passes)
    with stages.stage("place"):
        placement = place(model.graph, options.providers)
    with stages.stage("schedule"):
        order = schedule(placement)
    with stages.stage("memory"):
        memory = plan(order)
    with stages.stage("program"):
        program = emit(placement, order, memory, Forms(options.container))
    return Compiled(model, placement, program, stages)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Puts off the collector: a graph under construction holds no garbage, only work to look at."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
