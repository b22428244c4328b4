"""The programs of one session: others are made when a run's sizes break what one assumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from sardonyx.base.records import replace
from sardonyx.compile import Compiled, Options
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.graph.graph import Graph
from sardonyx.graph.guard import AssumptionFailed, ChoiceFailed, Guard
from sardonyx.graph.infer import Shapes
from sardonyx.session.program_cache import Shared

_MOST: Final = 8  # programs that are made, or tried to be, for branches that runs take


class Variants:
    """Programs of one model, by what their runs have in common."""

    __slots__ = ("_is_apart", "_made", "_options", "_tries", "general")

    def __init__(self, first: Shared, options: Options) -> None:
        """`first` was made with these options, before any run was looked at."""
        self._options = options
        self._made = [first]
        self._tries: int = 0
        self.general: Shared | None = None  # takes whatever the model takes, and is slow
        self._is_apart: bool = options.load.split_names

    def other(
        self,
        tried: Shared,
        failed: AssumptionFailed,
        shapes: Shapes,
        make: Callable[[Options], Shared],
    ) -> Shared:
        """A program for runs of these shapes, in place of one that did not take them.

        `make` is a method of the session, which owns this: kept here, it would make a cycle.
        """
        _refuse_standalone(tried, failed)
        if not isinstance(failed, ChoiceFailed):
            known = (*self._made, self.general)
            if self._is_apart and any(made is tried for made in known):
                raise InvalidArgument(  # of equal names, which the making of a model relied on
                    f"{failed}, and the model was made for equal ones",
                    hint="feed equal sizes, or name the dims apart where the model is made",
                )
            if not self._is_apart:
                self._is_apart, self.general = True, None
                self._made.clear()
        for made in self._made:
            if made is not tried and _suits(made.compiled, shapes):
                return made
        if self._tries < _MOST:
            self._tries += 1
            try:
                made = make(self._for(shapes))
            except SardonyxError:
                pass  # of a branch that such runs may never come to, or else meet when they do
            else:
                self._made.append(made)
                return made
        if self.general is None:
            self.general = make(self._for(None))
        return self.general

    def _for(self, shapes: Shapes | None) -> Options:
        """What a session saves, and its pack, belong to the first program only."""
        given = self._options
        return Options(
            given.providers,
            replace(given.load, split_names=self._is_apart),
            given.passes,
            container=given.container,
            order=given.order,
            shapes=shapes,
            outputs=given.outputs,
            wishes=given.wishes,
        )


def _refuse_standalone(tried: Shared, failed: AssumptionFailed) -> None:
    if not tried.compiled.is_standalone:
        return
    others = "those that take the first" if isinstance(failed, ChoiceFailed) else "equal ones"
    raise InvalidArgument(
        f"{failed}, and the model was packed for {others}",
        hint="use the model that the pack was made of",
    )


def _suits(compiled: Compiled, shapes: Shapes) -> bool:
    """Whether runs of these shapes take the branches that a program was made for."""
    dims: dict[str, int] = {}
    for spec in compiled.program.inputs:
        default = () if spec.default is None else spec.default.shape
        shape = shapes.get(spec.name, default)
        dims.update((name, shape[axis]) for axis, name in spec.sizes if axis < len(shape))
    choices = list(_choices(compiled.model.graph))
    return all(guard.symbols <= dims.keys() and guard.holds(dims) for guard in choices)


def _choices(graph: Graph) -> Iterator[Guard]:
    """The guards on chosen branches, of a graph and its bodies."""
    for each in graph.family():
        yield from (guard for guard in each.scope.found if guard.kind == "chosen")
