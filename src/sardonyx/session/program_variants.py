"""The programs of one session, compiled for different shapes.

A program rests on assumptions about sizes: equal dim names are equal, an If takes a certain branch.
A run that breaks one raises AssumptionFailed before any kernel runs; `ProgramVariants.for_shapes`
then returns a program for its shapes, compiled on demand. Not thread-safe: the session's lock
guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from sardonyx.base.records import replace
from sardonyx.compile import Compiled, Options
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.graph.guard import AssumptionFailed, ChoiceFailed
from sardonyx.graph.infer import Shapes
from sardonyx.program.program import Input
from sardonyx.session.program_cache import SharedProgram

# Attempts to compile for chosen branches. Each costs a compilation in the middle of a run; after
# these, runs use the general program, which decides every If while it runs.
_MAX_ATTEMPTS: Final = 8


class ProgramVariants:
    """Programs of one model, each for runs that satisfy its assumptions."""

    __slots__ = ("_attempts", "_is_split", "_options", "_programs", "general")

    def __init__(self, first: SharedProgram, options: Options) -> None:
        """`first` was compiled with these options, before any shapes were seen."""
        self._options = options
        self._programs = [first]
        self._attempts: int = 0
        self.general: SharedProgram | None = None  # accepts all inputs the model accepts; slower
        self._is_split: bool = options.load.split_names

    def for_shapes(
        self,
        tried: SharedProgram,
        failed: AssumptionFailed,
        shapes: Shapes,
        compile: Callable[[Options], SharedProgram],
    ) -> SharedProgram:
        """Return a program for runs of these shapes, which `tried` does not accept.

        `compile` is a bound method of the session that owns this object, so it is not stored: that
        would be a reference cycle.
        """
        _refuse_standalone(tried, failed)
        if not isinstance(failed, ChoiceFailed):
            self._split_names(tried, failed)
        for program in self._programs:
            if program is not tried and _accepts(program.compiled, shapes):
                return program
        if self._attempts < _MAX_ATTEMPTS:
            self._attempts += 1
            try:
                program = compile(self._options_for(shapes))
            except SardonyxError:
                pass  # the error may be in a branch that these runs do not take: use the general
            else:
                self._programs.append(program)
                return program
        if self.general is None:
            self.general = compile(self._options_for(None))
        return self.general

    def _split_names(self, tried: SharedProgram, failed: AssumptionFailed) -> None:
        """Stop to assume that dims of equal names are equal, and drop programs that do."""
        if not self._is_split:
            self._is_split, self.general = True, None
            self._programs.clear()
        elif any(program is tried for program in (*self._programs, self.general)):
            # Equal sizes were assumed when the model itself was written: there is no other program.
            raise InvalidArgument(
                f"{failed}, and the model was exported for equal sizes",
                hint="feed equal sizes, or give the dims different names in the exported model",
            )

    def _options_for(self, shapes: Shapes | None) -> Options:
        """Return the compile options for these shapes; None: no branch is chosen."""
        load = replace(self._options.load, split_names=self._is_split)
        return self._options.for_variant(load=load, shapes=shapes)


def _refuse_standalone(tried: SharedProgram, failed: AssumptionFailed) -> None:
    """Raise an error for a standalone pack, whose model cannot be compiled again."""
    if not tried.compiled.is_standalone:
        return
    others = "the first branch" if isinstance(failed, ChoiceFailed) else "equal sizes"
    raise InvalidArgument(
        f"{failed}, and the model was packed for {others}",
        hint="use the model from which the pack was written",
    )


def _accepts(compiled: Compiled, shapes: Shapes) -> bool:
    """Return whether runs of these shapes take the branches that a program was compiled for."""
    dims = sizes_of(compiled.program.inputs, shapes)
    guards = (guard for graph in compiled.model.graph.family() for guard in graph.scope.guards)
    chosen = (guard for guard in guards if guard.kind == "chosen")
    return all(guard.symbols <= dims.keys() and guard.holds(dims) for guard in chosen)


def sizes_of(inputs: Iterable[Input], shapes: Shapes) -> dict[str, int]:
    """Return the symbolic sizes that inputs of these shapes have; others have their defaults."""
    dims: dict[str, int] = {}
    for spec in inputs:
        shape = shapes.get(spec.name, () if spec.default is None else spec.default.shape)
        dims.update((name, shape[axis]) for axis, name in spec.sizes if axis < len(shape))
    return dims
