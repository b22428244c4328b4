"""From a model to something that runs: each line of `compile` is a stage, and each a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.base.collector import Paused
from sardonyx.base.log import logger
from sardonyx.base.records import field, frozen, replace
from sardonyx.base.stages import Stages
from sardonyx.errors import FAULTS, ModelLoadCanceled, SardonyxError, ShapeError
from sardonyx.graph.graph import Graph
from sardonyx.graph.infer import Shapes, infer
from sardonyx.load import LoadOptions, load
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.memory import plan
from sardonyx.pack.errors import Broken
from sardonyx.pack.lookup import (
    Found,
    PackOptions,
    cache_path,
    find,
    may_have,
    serves,
)
from sardonyx.passes import lower, optimize
from sardonyx.passes.options import PassOptions
from sardonyx.place import Placement, Provider, Wishes, place
from sardonyx.program.emit import emit
from sardonyx.program.program import Program
from sardonyx.schedule import OrderOptions, schedule
from sardonyx.weights.layouts import Forms, PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx.save import SaveOptions


@frozen
class Options:
    """Everything that compiling may be told."""

    providers: Sequence[Provider]
    load: LoadOptions = field(default_factory=LoadOptions)
    passes: PassOptions = field(default_factory=PassOptions)
    save: SaveOptions | None = None
    pack: PackOptions | None = None  # None: packs are neither looked for nor written
    check: Callable[[], None] = lambda: None  # called before each stage; raises to end the load
    container: PrepackedWeightsContainer | None = None
    order: OrderOptions = field(default_factory=OrderOptions)
    shapes: Shapes | None = field(default_factory=dict)  # as `infer` takes them
    outputs: tuple[str, ...] = ()  # those to be computed; none named: all
    wishes: Wishes = field(default_factory=Wishes)


@frozen
class Compiled:
    """A program, with the model that it came from and what was decided on the way."""

    model: Model
    placement: Placement
    program: Program
    stages: Stages
    is_standalone: bool = False  # out of a pack, which is all that there is of the model


def compile(source: Any, options: Options) -> Compiled:
    """The whole line, from a file, bytes or buffers to a program."""
    with Paused():
        return _compile(source, options)


def _compile(source: Any, options: Options) -> Compiled:
    stages = Stages(options.check)
    given = given_bytes(source, options)
    made = _from_pack(given, options, stages)
    if made is None:
        found = Found(lowered(given, options, stages), Forms())
        made = _finished(_cached(given, found, options, stages), options, stages)
    return made


def _finished(found: Found, options: Options, stages: Stages) -> Compiled:
    placement, program = program_of(found.model, options, stages, found.forms)
    return Compiled(found.model, placement, program, stages, found.is_standalone)


def load_model(source: Any, options: LoadOptions | None = None) -> Model:
    """Load a model; its Gradient nodes become the nodes that compute the gradients."""
    model = load(source, options or LoadOptions())
    if model.has_gradient_nodes:
        from sardonyx.train.nodes import with_gradients  # few models have such nodes

        model = with_gradients(model)
    return model


def given_bytes(source: Any, options: Options) -> ModelBytes:
    """A model's bytes, read unless they were."""
    if isinstance(source, ModelBytes):
        return source
    load = options.load
    return read_model(source, load.folder, load.in_memory, load.copies)


def lowered(given: ModelBytes, options: Options, stages: Stages) -> Model:
    """The part of the line that a pack stands for.

    Where sizes contradict each other if dims of equal names are equal, names are taken for
    comments, as onnxruntime does: what runs feed is checked all the same.
    """
    try:
        return _lowered(given, options, stages)
    except ShapeError as error:
        if options.load.split_names:
            raise
        apart = replace(options, load=replace(options.load, split_names=True))
        try:
            return _lowered(given, apart, stages)
        except SardonyxError:
            raise error from None


def _lowered(given: ModelBytes, options: Options, stages: Stages) -> Model:
    with stages.stage("load"):
        model = load_model(given, options.load)
        if options.outputs:
            model = model.with_outputs(options.outputs)
    with stages.stage("infer"):
        model = _inferred(model, options)
        model.check_outputs(options.load.is_strict)
        options.wishes.mark(model.graph)
    with stages.stage("optimize"):
        optimize(model.graph, options.passes)
    if options.save is not None:
        from sardonyx.save import save  # the writer is not needed otherwise, and slow to import

        with stages.stage("save"):
            save(model, options.save)
    with stages.stage("lower"):
        lower(model.graph, options.passes)
    return model


def _inferred(model: Model, options: Options) -> Model:
    """The model with facts on its values; few models need more than `infer` for that."""
    assumes = not options.load.split_names
    if options.save is not None:  # what is saved must hold for all sizes
        infer(model.graph, assumes)
        return model
    infer(model.graph, assumes, options.shapes)
    if model.graph.scope.parted:
        from sardonyx.passes.sink import sunk

        again = sunk(model.graph, lambda graph: infer(graph, assumes, options.shapes))
        model = model if again is None else replace(model, graph=again)
    if model.graph.scope.loose:
        from sardonyx.passes.ranks import settle_ranks

        if not settle_ranks(model.graph):
            infer(model.graph, assumes, options.shapes, loosens=False)
    return model


def program_of(
    model: Model, options: Options, stages: Stages, forms: Forms | None = None
) -> tuple[Placement, Program]:
    """The part that every load takes."""
    with stages.stage("place"):
        placement = place(model.graph, options.providers, options.wishes, _host_lowering(options))
    with stages.stage("schedule"):
        order = schedule(placement, options.order)
    with stages.stage("memory"):
        memory = plan(order)
    with stages.stage("program"):
        forms = forms or Forms()
        forms.container = options.container
        return placement, emit(placement, order, memory, forms)


def _host_lowering(options: Options) -> Callable[[Graph], None] | None:
    """The passes for what devices leave to the CPU, where the graph is one for devices."""
    if not options.passes.for_device:
        return None
    from sardonyx.passes.device import widen_masks
    from sardonyx.passes.few_bits import part_few_bits

    passes = replace(options.passes, for_device=False)

    def run(graph: Graph) -> None:
        widen_masks(graph)
        part_few_bits(graph)
        lower(graph, passes)

    return run


def _from_pack(given: ModelBytes, options: Options, stages: Stages) -> Compiled | None:
    """The model out of its pack, if it has one that serves; one to be saved is made anew."""
    if options.pack is None or not _may_pack(given, options) or not may_have(given, options.pack):
        return None
    with stages.stage("pack"):
        found = find(given, lambda: settings_of(options), options.pack, options.check)
    if found is None:
        return None
    try:
        return _finished(found, options, stages)
    except ModelLoadCanceled:
        raise
    except (SardonyxError, AttributeError, *FAULTS) as error:
        # Its graph was inferred; what providers trip over only a hostile one has.
        logger.warning("the pack of %s is not used: %s", given.source.name, error)
        return None


def settings_of(options: Options) -> dict[str, Any]:
    """The options that a pack must have been made with."""
    from sardonyx.pack.identity import settings

    return settings(options.load, options.passes)


def _may_pack(given: ModelBytes, options: Options) -> bool:
    return options.save is None and not options.load.initializers and serves(given)


def _cached(given: ModelBytes, made: Found, options: Options, stages: Stages) -> Found:
    """The same model out of the pack that the cache was asked to keep; as it is if it cannot be."""
    if options.pack is None or options.pack.cache is None or not _may_pack(given, options):
        return made
    from sardonyx.compile.pack_model import Request, write
    from sardonyx.pack.read import read

    chosen = settings_of(options)
    path = cache_path(given, chosen, options.pack.cache)
    try:
        with stages.stage("write_pack"):
            write(Request(path), given, made.model, options)
        with stages.stage("pack"):
            return read(path, given, chosen, options.pack, options.check)
    except ModelLoadCanceled:
        raise
    except (SardonyxError, Broken, OSError) as error:
        what = error.what if isinstance(error, SardonyxError) else error
        logger.warning("the pack %s was not written, and the session does without: %s", path, what)
    return made
