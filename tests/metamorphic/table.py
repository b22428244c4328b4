"""Every transform by its name."""

from __future__ import annotations

from random import Random

from tests.metamorphic import declared, rewritten, wrapped
from tests.metamorphic.isas import ISAS
from tests.metamorphic.settings import at, on_isa, only_arrays, only_steady, overridden, packed
from tests.metamorphic.variant import Transform

_DECLARED: tuple[Transform, ...] = (
    declared.ranks_open, declared.names_apart, declared.names_by_size, declared.names_lie,
    declared.constants_all, declared.constants_some, declared.inputs_all, declared.inputs_some,
    declared.feeds_strided,
)  # fmt: skip
_WRAPPED: tuple[Transform, ...] = (
    wrapped.if_then, wrapped.if_else, wrapped.if_known, wrapped.loop_once, wrapped.loop_stacked,
    wrapped.loop_carried, wrapped.scan_once, wrapped.scan_twice, wrapped.function,
)  # fmt: skip
_REWRITTEN: tuple[Transform, ...] = (
    rewritten.renamed, rewritten.identities, rewritten.shown, rewritten.reordered, rewritten.twice,
)  # fmt: skip

# Those that change the model, and may follow one another.
FORMS: dict[str, Transform] = {t.__name__: t for t in (*_DECLARED, *_WRAPPED, *_REWRITTEN)}
# Those that change how it is run. Parts of a step and the order of steps do not change a bit.
SETTINGS: dict[str, Transform] = {
    "unoptimized": at(False, "Not optimized at all.", level="ORT_DISABLE_ALL"),
    "basic": at(False, "Optimized a little.", level="ORT_ENABLE_BASIC"),
    "extended": at(False, "Optimized but for layouts.", level="ORT_ENABLE_EXTENDED"),
    "threads": at(True, "By two threads.", threads=2),
    "parallel": at(True, "By two threads that take nodes of their own.", threads=2, parallel=True),
    "no_arena": at(True, "Without an arena.", arena=False),
    "packed": packed,
    "saved": at(False, "Out of the optimized model that is saved.", stored="saved"),
    "external": at(True, "With constants in a file of their own.", stored="external"),
    "after_invalid_feeds": at(
        True, "After runs with feeds that do not fit.", way="after_invalid_feeds"
    ),
    "at_once": only_steady(at(True, "By several threads in one session.", way="at_once")),
    "each_output": at(False, "Each output by itself.", way="each_output"),
    "bound": only_arrays(at(True, "With inputs and outputs bound.", way="binding")),
    "ort_values": only_arrays(at(True, "With OrtValues.", way="ort_values")),
    "overridden": overridden,
    **{isa: on_isa(isa) for isa in ISAS},
}
TRANSFORMS: dict[str, Transform] = {**FORMS, **SETTINGS}


def drawn(rng: Random) -> list[str]:
    """Some transforms to follow one another: up to three forms, and perhaps a setting."""
    forms = rng.sample(list(FORMS), rng.choice((0, 1, 1, 2, 2, 3)))
    settings_ = [rng.choice(list(SETTINGS))] if not forms or rng.random() < 0.3 else []
    return [*forms, *settings_]
