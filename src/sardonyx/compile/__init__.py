"""The compiler pipeline, from a model file to a program.

    load -> infer -> optimize (-> save) -> lower    `_load_and_lower`, or all of it from a pack
    -> place -> schedule -> memory -> program       `emit_program`

infer is in `graph/`, optimize and lower are in `passes/`; the other stages are packages of that
name. A stage takes the result of the one before and imports no later one. Stateless and
thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.base.gc_pause import GcPause
from sardonyx.base.log import logger
from sardonyx.base.records import field, frozen, replace
from sardonyx.base.stages import Stages
from sardonyx.errors import UNEXPECTED_ERRORS, ModelLoadCanceled, SardonyxError, ShapeError
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import Shapes, infer
from sardonyx.load import LoadOptions, load
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.memory import plan
from sardonyx.pack.errors import InvalidPack
from sardonyx.pack.lookup import (
    LoweredModel,
    PackOptions,
    cache_path,
    can_have_pack,
    find_pack,
    may_have_pack,
)
from sardonyx.passes import lower, optimize
from sardonyx.passes.options import PassOptions
from sardonyx.place import Placement, PlacementPreferences, Provider, place
from sardonyx.program.emit import emit
from sardonyx.program.program import Program
from sardonyx.schedule import OrderOptions, schedule
from sardonyx.weights.layouts import LayoutCache, PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx.save import SaveOptions


@frozen
class Options:
    """The options of `compile`, by stage."""

    providers: Sequence[Provider]
    load: LoadOptions = field(default_factory=LoadOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    save: SaveOptions | None = None
    pack: PackOptions | None = None  # None: packs are neither read nor written
    check: Callable[[], None] = lambda: None  # called before each stage; raises to cancel
    container: PrepackedWeightsContainer | None = None
    order: OrderOptions = field(default_factory=OrderOptions)
    shapes: Shapes | None = field(default_factory=dict)  # shapes of inputs, see `infer`
    outputs: tuple[str, ...] = ()  # names of those to compute; empty: all
    preferences: PlacementPreferences = field(default_factory=PlacementPreferences)

    def for_variant(self, **changes: Any) -> Options:
        """Return the options to compile the same model once more, for other runs.

        The saved model, the pack and the cancellation of the load belong to the first program.
        """
        return replace(self, save=None, pack=None, check=lambda: None, **changes)


@frozen
class Compiled:
    """A program, with its lowered model, placement and the times of the stages."""

    model: Model
    placement: Placement
    program: Program
    stages: Stages
    is_standalone: bool = False  # from a standalone pack: there is no model to compile again


def compile(source: Any, options: Options) -> Compiled:
    """Compile a model from a file, bytes or buffers."""
    with GcPause():
        stages = Stages(options.check)
        model_bytes = read_source(source, options)
        compiled = _from_pack(model_bytes, options, stages)
        if compiled is not None:
            return compiled
        lowered = LoweredModel(load_and_lower(model_bytes, options, stages), LayoutCache())
        return _emit(_through_cache(model_bytes, lowered, options, stages), options, stages)


def _emit(lowered: LoweredModel, options: Options, stages: Stages) -> Compiled:
    placement, program = emit_program(lowered.model, options, stages, lowered.layouts)
    return Compiled(lowered.model, placement, program, stages, lowered.is_standalone)


def load_model(source: Any, options: LoadOptions | None = None) -> Model:
    """Load a model, with Gradient nodes replaced by the nodes that compute the gradients."""
    model = load(source, options or LoadOptions())
    if model.has_gradient_nodes:
        from sardonyx.autodiff.nodes import with_gradients  # few models have them

        model = with_gradients(model)
    return model


def read_source(source: Any, options: Options) -> ModelBytes:
    """Return the model's bytes; a source that is already loaded is returned unchanged."""
    if isinstance(source, ModelBytes):
        return source
    load = options.load
    return read_model(source, load.folder, load.in_memory, load.copies)


def load_and_lower(source: ModelBytes, options: Options, stages: Stages) -> Model:
    """Run the stages from load to lower, whose result a pack stores.

    If the assumption that dims of equal names are equal contradicts the shapes, compile again
    without it: onnxruntime treats names as comments. Fed shapes are checked in both cases.
    """
    try:
        return _load_and_lower(source, options, stages)
    except ShapeError as error:
        if options.load.split_names:
            raise
        # A second error may be due to the missing assumption: the first one is reported.
        split = replace(options, load=replace(options.load, split_names=True))
        try:
            return _load_and_lower(source, split, stages)
        except SardonyxError:
            raise error from None


def _load_and_lower(source: ModelBytes, options: Options, stages: Stages) -> Model:
    with stages.stage("load"):
        model = load_model(source, options.load)
        if options.outputs:
            model = model.with_outputs(options.outputs)
    with stages.stage("infer"):
        model = _inferred(model, options)
        model.check_outputs(options.load.is_strict)
        options.preferences.mark(model.graph)
    with stages.stage("optimize"):
        optimize(model.graph, options.passes)
    if options.save is not None:
        from sardonyx.save import save  # rarely needed, and slow to import

        with stages.stage("save"):
            save(model, options.save, source.files.sources())
    with stages.stage("lower"):
        lower(model.graph, options.passes)
    return model


def _inferred(model: Model, options: Options) -> Model:
    """Infer facts for all values; change the model where open ranks would leave it slow."""
    assumes = not options.load.split_names
    if options.save is not None:  # a saved model must be valid for all sizes
        infer(model.graph, assumes)
        return model
    infer(model.graph, assumes, options.shapes)
    if model.graph.scope.undecided_ifs:
        # An If whose branches differ in rank: sink its readers into the branches.
        from sardonyx.passes.sink_into_branches import sink_into_branches

        graph = sink_into_branches(model.graph, lambda graph: infer(graph, assumes, options.shapes))
        model = model if graph is None else replace(model, graph=graph)
    if model.graph.scope.ambiguous_ranks:
        # A scalar in one branch, a vector of one element in the other: make both vectors.
        from sardonyx.passes.rank_unification import unify_ranks

        if not unify_ranks(model.graph):
            infer(model.graph, assumes, options.shapes, unify_ranks=False)
    return model


def emit_program(
    model: Model, options: Options, stages: Stages, layouts: LayoutCache | None = None
) -> tuple[Placement, Program]:
    """Run the stages from place to program, with or without a pack."""
    with stages.stage("place"):
        lowering = _host_lowering(options)
        placement = place(model.graph, options.providers, options.preferences, lowering)
    with stages.stage("schedule"):
        order = schedule(placement, options.order)
    with stages.stage("memory"):
        memory = plan(order)
    with stages.stage("program"):
        layouts = layouts or LayoutCache()
        layouts.container = options.container
        return placement, emit(placement, order, memory, layouts)


def _host_lowering(options: Options) -> Callable[[Graph], None] | None:
    """Return the passes for the nodes left to the CPU, if the graph was lowered for a device."""
    if not options.passes.for_device:
        return None
    from sardonyx.passes.device import widen_masks
    from sardonyx.passes.nbits.fuse import unfuse_nbits_matmul

    passes = replace(options.passes, for_device=False)

    def run(graph: Graph) -> None:
        widen_masks(graph)
        unfuse_nbits_matmul(graph)
        lower(graph, passes)

    return run


def _from_pack(source: ModelBytes, options: Options, stages: Stages) -> Compiled | None:
    """Compile from a matching pack; None: there is none, or the model is to be saved."""
    if (
        options.pack is None
        or not _may_pack(source, options)
        or not may_have_pack(source, options.pack)
    ):
        return None
    with stages.stage("pack"):
        lowered = find_pack(source, lambda: pack_settings(options), options.pack, options.check)
    if lowered is None:
        return None
    try:
        return _emit(lowered, options, stages)
    except ModelLoadCanceled:
        raise
    except (SardonyxError, AttributeError, *UNEXPECTED_ERRORS) as error:
        # The graph passed inference; only a hostile one has what providers do not expect.
        logger.warning("the pack of %s is not used: %s", source.source.name, error)
        return None


def pack_settings(options: Options) -> dict[str, Any]:
    """Return the options that a pack must have been written with."""
    from sardonyx.pack.identity import settings

    return settings(options.load, options.passes)


def _may_pack(source: ModelBytes, options: Options) -> bool:
    return options.save is None and not options.load.initializers and can_have_pack(source)


def _through_cache(
    source: ModelBytes, lowered: LoweredModel, options: Options, stages: Stages
) -> LoweredModel:
    """Write the model to the pack cache, if there is one, and return it as read from the pack."""
    if options.pack is None or options.pack.cache is None or not _may_pack(source, options):
        return lowered
    from sardonyx.compile.pack_model import Request, write
    from sardonyx.pack.read import read_pack

    settings = pack_settings(options)
    path = cache_path(source, settings, options.pack.cache)
    try:
        with stages.stage("write_pack"):
            write(Request(path), source, lowered.model, options)
        with stages.stage("pack"):
            return read_pack(path, source, settings, options.pack, options.check)
    except ModelLoadCanceled:
        raise
    except (SardonyxError, InvalidPack, OSError) as error:
        what = error.what if isinstance(error, SardonyxError) else error
        logger.warning("the pack %s was not written; the session runs without it: %s", path, what)
    return lowered
