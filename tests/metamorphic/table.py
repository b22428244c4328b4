"""Every transform by its name."""

from __future__ import annotations

from random import Random

from tests.metamorphic import declared, rewritten, settings, wrapped
from tests.metamorphic.settings import at, only_arrays
from tests.metamorphic.variant import Transform, Variant

ISAS = ("base", "avx2", "avx512", "avx512vnni")


def _isa(name: str) -> Transform:
    def transform(v: Variant, rng: Random) -> Variant | None:
        """By the kernels of another CPU, whose vectors are shorter."""
        there = name in settings.isas()
        return at(False, "", isa=name)(v, rng) if there else None

    return transform


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
    "packed": at(True, "Out of a pack.", pack=True),
    "bound": only_arrays(at(True, "With inputs and outputs bound.", way="binding")),
    "ort_values": only_arrays(at(True, "With OrtValues.", way="ort_values")),
    **{isa: _isa(isa) for isa in ISAS},
}
TRANSFORMS: dict[str, Transform] = {**FORMS, **SETTINGS}


def drawn(rng: Random) -> list[str]:
    """Some transforms to follow one another: up to three forms, and perhaps a setting."""
    forms = rng.sample(list(FORMS), rng.choice((0, 1, 1, 2, 2, 3)))
    settings_ = [rng.choice(list(SETTINGS))] if not forms or rng.random() < 0.3 else []
    return [*forms, *settings_]
