"""InferenceSession: onnxruntime's interface over a compiled program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from sardonyx.base.locks import NonReentrantLock
from sardonyx.base.log import at_severity, of_session
from sardonyx.base.records import frozen, replace
from sardonyx.compile import Compiled, Options, compile
from sardonyx.errors import (
    EPFail,
    Fail,
    InternalError,
    InvalidArgument,
    InvalidGraph,
    RuntimeException,
    SardonyxError,
    as_ours,
)
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.load import LoadOptions
from sardonyx.load.source import read_model
from sardonyx.ort.options import RunOptions, SessionOptions
from sardonyx.pack.lookup import SUFFIX
from sardonyx.place import HOST, has_device
from sardonyx.program.program import Run
from sardonyx.program.run import bind, execute
from sardonyx.providers import resolve
from sardonyx.reports.trace import Profile
from sardonyx.session import model_metadata_options as config
from sardonyx.session.block_pools import pool_for, wants_shrinking
from sardonyx.session.bound_memory import Bound
from sardonyx.session.feeds import (
    as_tensors,
    check_feed,
    describe,
    hand_out,
    raise_fault,
    settle,
    taken,
)
from sardonyx.session.order_options import warn_of_hints
from sardonyx.session.program_cache import PROGRAMS, Shared, key_of, shared
from sardonyx.session.run_variants import Ways
from sardonyx.session.settings import (
    NODE_STATS,
    PACK_SAVE,
    behind_device,
    check_fallback,
    checked_container,
    compile_options,
    defers,
    device_options,
    flushing,
    graph_id,
    run_settings,
    wants_tensors,
    wishes,
)
from sardonyx.weights.layouts import PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx.graph.infer import Shapes
    from sardonyx.reports.node_memory import NodeStats
    from sardonyx.session.io_binding import IOBinding
    from sardonyx.session.variants import Variants

T = TypeVar("T")
_DEFAULT_RUN: Final = RunOptions()
_ATTEMPTS: Final = 4  # the first program, names apart, branches chosen, and one to spare
_COMPILING: Final = "compiling the session again"


@frozen
class _Asked:
    """What a run is asked for."""

    values: dict[str, Any]
    options: RunOptions
    bound: Bound | None
    wanted: Sequence[int]  # outputs, by number
    stays: bool  # tensors are wanted where they lie


class InferenceSession(Ways):
    """A model, ready to run. Many threads may call `run` at once."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        prepacked_weights_container: PrepackedWeightsContainer | None = None,
        **kwargs: Any,
    ) -> None:
        """Compiles a model from a path, bytes, any buffer, a binary file or an onnx.ModelProto.

        What `sardonyx.train.gradient` makes is taken as it is.
        """
        self._container = checked_container(prepacked_weights_container)
        self._options = SessionOptions() if sess_options is None else sess_options
        if not isinstance(self._options, SessionOptions):
            raise TypeError(f"sess_options is a SessionOptions, not {type(sess_options).__name__}")
        self._disabled = frozenset(kwargs.get("disabled_optimizers") or ())
        if config.is_wanted(kwargs):
            given = read_model(path_or_bytes)
            self._options = config.with_config_of(given, self._options)
            if given.files.model_path is None and given.model is None:
                path_or_bytes = given.source.data  # a file object is at its end by now
        self._begin(path_or_bytes)
        if providers is None and self._options.has_providers():
            providers = self._options._chosen_providers(lambda: config.described(self._source))
        elif self._options.has_providers():
            self._logger.warning("providers given to the session replace those of its options")
        self.set_providers(providers, provider_options)

    def _begin(self, model: Any) -> None:
        """Everything before the model is compiled."""
        self._paths: dict[tuple[str, ...], InferenceSession] = {}
        self._logger = of_session(self._options.log_severity_level)
        self._lock = NonReentrantLock(_COMPILING)
        profiles, prefix = self._options.enable_profiling, self._options.profile_file_prefix
        self._profile = Profile(prefix) if profiles else None
        self._settings = run_settings(self._options)
        self._node_stats: NodeStats | None = None
        self._base = compile_options(self._options, self._disabled, self._container)
        load = self._load = self._base.load
        # Read once: a file object is at its end by then, and a path may be gone.
        self._source = read_model(model, load.folder, load.in_memory, load.copies)
        if NODE_STATS in self._options._entries:
            self._node_stats = self._collected(self._options._entries[NODE_STATS])

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Compiles the model for these providers, again if it was compiled for others."""
        with self._lock:  # runs in other threads may be compiling for their shapes
            rest = self._try_providers(providers, provider_options)
        if rest:  # outside of the handler: the error keeps alive what it met
            self.set_providers(rest)
            return
        check_fallback(self._options, self._compiled.placement)
        self._announce(self._current())

    def _try_providers(self, providers: Any, provider_options: Any) -> list[Any]:
        """Compiles for these providers; where their device fails, those that come after it."""
        self._provider_options, self._providers = resolve(providers, provider_options, self._logger)
        self._wishes = wishes(self._options, self._providers)
        self._paths = {}
        self._variants: Variants | None = None
        try:
            self._use(self._compile(self._current()))
        except EPFail as error:
            rest = behind_device(self._options, self._provider_options, providers)
            if not rest:
                raise
            self._logger.warning("%s is used instead, as %s", rest[0][0], error)
            return rest
        return []

    def _compile(self, options: Options) -> Shared:
        """The program for these options, its own or one that other sessions have."""
        key = None
        if self._profile is None and not defers(self._options):
            providers = tuple(
                (name, *sorted(given.items())) for name, given in self._provider_options.items()
            )
            key = key_of(self._source, options, self._settings, providers)
        return PROGRAMS.share(key, lambda: self._make(options))

    def _use(self, made: Shared) -> None:
        """Runs begin with this program from now on."""
        self._shared = made
        self._compiled: Compiled = made.compiled
        model, program = self._compiled.model, self._compiled.program
        is_watched = self._profile is not None or self._node_stats is not None
        self._fast = None if is_watched else program.fast_path
        self._inputs = {i.name: i for i in program.inputs}
        self._fixed = {d.name for d in model.overridable} - self._inputs.keys()
        self._required = [i.name for i in program.inputs if i.default is None]
        self._output_names = [o.name for o in model.outputs]

    def _announce(self, options: Options) -> None:
        """Says what was made of the model, and keeps what is to be kept of it."""
        model, program = self._compiled.model, self._compiled.program
        warn_of_hints(options.order, (*model.inputs, *model.overridable), self._logger)
        if options.save is not None and self._options._entries.get(PACK_SAVE) == "1":
            self._pack_saved(options)
        if self._profile is not None:
            self._profile.add_stages(self._compiled.stages, model.origin)
        steps = ", ".join(
            f"{k} {v * 1e3:.1f} ms" for k, v in self._compiled.stages.seconds().items()
        )
        self._logger.info("session ready: %d steps; %s", len(program.segments), steps)
        for given in self._providers:
            if has_device(given) and given.device not in self._compiled.placement.devices:
                self._logger.warning(
                    "no node runs on %s: see why by `sardonyx info --why`", given.device
                )
        for node, provider, kernel in program.nodes():
            self._logger.debug("%s runs on %s (%s)", node, provider, kernel)

    def _make(self, options: Options) -> Shared:
        """Compiles, and brings the weights into the forms that kernels read."""
        try:
            with at_severity(self._options.log_severity_level):
                compiled = compile(self._source, options)
        except MemoryError as error:
            raise RuntimeException(f"out of memory while compiling: {error}") from None
        except RecursionError as error:
            raise InvalidGraph(f"the model nests too deep: {error}") from None
        pool = pool_for(self._settings)
        if not defers(self._options):
            with compiled.stages.stage("weights"), compiled.program.forms.checking(options.check):
                compiled.program.prepare(self._settings, pool)
            self._source.read_ahead()
        return shared(compiled, self._source, pool)

    def _collected(self, value: str) -> NodeStats:
        """Where the memory of each node is written to."""
        from sardonyx.reports.node_memory import NodeStats, target  # few sessions want it

        return NodeStats(target(value, self._source.files.model_path))

    def _pack_saved(self, options: Options) -> None:
        """Writes the pack of the optimized model beside it."""
        from sardonyx.compile.pack_model import Request, pack  # only who writes a pack needs it

        assert options.save is not None
        path = options.save.path
        plain = LoadOptions(
            dims_by_name=options.load.dims_by_name,
            dims_by_denotation=options.load.dims_by_denotation,
        )
        try:
            pack(
                path,
                Options(self._providers, plain, options.passes),
                Request(f"{path}{SUFFIX}", any_level=True),
            )
        except (SardonyxError, OSError) as error:
            what = error.what if isinstance(error, SardonyxError) else error
            self._logger.warning("the optimized model %s has no pack: %s", path, what)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs (all of them where no names are given) for these inputs."""
        fast = self._fast  # read once: another thread may change programs
        if (
            fast is not None
            and output_names is None
            and run_options is None
            and type(input_feed) is dict
        ):
            outputs = fast.call(input_feed)
            if outputs.__class__ is list:
                return outputs
            if outputs is not None:
                raise_fault(fast, outputs, input_feed)  # type: ignore[arg-type]  # an Outcome
        options = _DEFAULT_RUN if run_options is None else run_options
        if not wants_tensors(options):
            return self._run(output_names, input_feed, options)
        return as_tensors(self._run(output_names, input_feed, options, stays=True))

    def _run_in_place(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None,
    ) -> list[Any]:
        """The outputs where they are made: arrays, or tensors on devices."""
        if self._compiled.program.devices:
            options = _DEFAULT_RUN if run_options is None else run_options
            return self._run(output_names, input_feed, options, stays=True)
        return self.run(output_names, input_feed, run_options)

    def _run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        options: RunOptions,
        bound: Bound | None = None,
        stays: bool = False,
    ) -> list[Any]:
        """The checked path: results are arrays, or lie where they were made if each `stays`.

        What is `bound` is the feed, or was before adapters came to it.
        """
        if options.only_execute_path_to_fetches and output_names:
            path = self._path_to(output_names)
            if path is not self:
                return path._run(output_names, input_feed, options, None, stays)
        shrinks = wants_shrinking(options, self._settings)
        wanted = self._wanted(output_names)
        if options._adapters:
            known = self._inputs.keys() | self._fixed
            input_feed = {**input_feed, **options._adapter_feed(known)}
        self._check_required(input_feed)
        if not self._fixed.isdisjoint(input_feed):
            self._open_defaults()
        started = time.perf_counter()
        if bound is None or bound.feed is not input_feed or bound.specs is not self._inputs:
            values = check_feed(self._inputs, input_feed)
            bound = None if bound is None else Bound(values, bound.places, self._inputs)
        else:
            values = bound.feed
        try:
            asked = _Asked(values, options, bound, wanted, stays)
            results = self._execute(asked)
            if (profile := self._profile) is not None:  # another thread may end it
                profile.add("Session", "model_run", started, time.perf_counter())
            if bound is None:
                return hand_out(results, lambda: taken(values.values()))
            return hand_out(results, bound.taken, bound.places)
        except InvalidArgument as error:
            raise error.at(fed=describe(values)) from None
        except (MemoryError, OSError) as error:
            raise as_ours(error, "making room for weights or outputs") from None
        finally:
            if shrinks:
                self._shared.pool.release_cached()

    def _check_required(self, input_feed: Mapping[str, Any]) -> None:
        if not isinstance(input_feed, Mapping):
            raise TypeError(f"input_feed is a dict by name, not a {type(input_feed).__name__}")
        missing = [n for n in self._required if n not in input_feed]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(input_feed)})."
            )

    def _path_to(self, names: Sequence[str]) -> InferenceSession:
        """The session with these outputs alone, so that nothing else is computed for them."""
        self._wanted(names)
        key = tuple(dict.fromkeys(names))
        if len(key) == len(self._output_names) or self._compiled.is_standalone:
            return self
        with self._lock:
            if key not in self._paths:
                path = object.__new__(InferenceSession)
                lock = NonReentrantLock(_COMPILING)
                path.__dict__.update(self.__dict__, _lock=lock, _paths={}, _variants=None)
                path._base = replace(self._base, outputs=key, pack=None, save=None)
                path._use(path._compile(path._current()))
                self._paths[key] = path
            return self._paths[key]

    def _current(self) -> Options:
        """What compiling is told as things stand."""
        return replace(
            self._base,
            providers=self._providers,
            load=self._load,
            **device_options(self._base, self._providers, self._wishes),
        )

    def _run_into(self, bound: Bound, run_options: RunOptions | None) -> list[Any]:
        """All outputs for what is bound, in their places as far as they can lie there."""
        fast = self._fast
        if fast is not None and fast.call_into is not None and run_options is None:
            outputs = fast.call_into(bound.feed, bound.alone)
            if isinstance(outputs, list):
                return outputs
            if outputs is not None:
                raise_fault(fast, outputs, bound.feed)
        return self._run(None, bound.feed, run_options or _DEFAULT_RUN, bound, stays=True)

    def _execute(self, asked: _Asked) -> list[Any]:
        return self._with_program(
            lambda made: self._attempt(made, asked),
            lambda: {n: v.shape for n, v in asked.values.items() if hasattr(v, "shape")},
        )

    def _with_program(self, attempt: Callable[[Shared], T], shapes: Callable[[], Shapes]) -> T:
        """What an attempt gives with a program that takes inputs of these shapes."""
        made = self._shared
        for _ in range(_ATTEMPTS):
            try:
                return attempt(made)
            except AssumptionFailed as failed:
                made = self._other(made, failed, shapes())
        raise InternalError("programs made for these inputs do not take them")

    def _other(self, tried: Shared, failed: AssumptionFailed, shapes: Shapes) -> Shared:
        """A program for runs of these shapes, which `tried` was not made for."""
        from sardonyx.session.variants import Variants  # most sessions have one program

        self._logger.info("%s: compiling again, unless there is a program for that", failed)
        with self._lock:
            if self._variants is None:
                self._variants = Variants(self._shared, self._current())
            made = self._variants.other(tried, failed, shapes, self._compile)
            if made is not self._variants.general:
                self._use(made)
            return made

    def _open_defaults(self) -> None:
        """Compiles with inputs where constants were: one that has a default is fed after all."""
        with self._lock:
            if not self._load.fixes_defaults:  # another thread was here before
                return
            self._load = replace(self._load, fixes_defaults=False)
            self._variants = None
            base = self._base
            self._use(
                self._compile(
                    Options(
                        self._providers,
                        self._load,
                        self._current().passes,
                        container=base.container,
                        order=base.order,
                        outputs=base.outputs,
                        wishes=self._wishes,
                    )
                )
            )

    def _attempt(self, made: Shared, asked: _Asked) -> list[Any]:
        program, values, options = made.compiled.program, asked.values, asked.options
        plan = None if asked.bound is None else asked.bound.plan(program)
        dims = bind(program, values) if plan is None else plan.dims.copy()
        frame = program.frame()
        for spec in program.inputs:
            value = values.get(spec.name)
            if value is None and spec.default is not None:
                value = spec.default.read()
            if spec.device != HOST and isinstance(value, np.ndarray):
                value = program.devices[spec.device].to_device(value)
            frame[spec.slot] = value
        run = Run(dims, frame, _stopper(options), self._settings, options._stop, made.pool)
        run.graph_id = graph_id(options)
        if (profile := self._profile) is not None:
            run.on_step, run.on_native = profile.add_step, profile.add_native
        if plan is not None:
            run.into, run.shared, run.is_bound = plan.into, plan.shared, True
        with flushing(self._settings.flushes):
            results = execute(program, run)
        if self._node_stats is not None:
            try:
                self._node_stats.add(made.compiled.model.graph, program, run.dims)
            except OSError as error:  # the run went well
                self._logger.warning("%s is not written: %s", NODE_STATS, error)
        places = asked.bound.places if asked.bound is not None else ()
        return settle(program, results, asked.wanted, asked.stays, places)

    def _wanted(self, names: Sequence[str] | None) -> list[int]:
        if not names:
            return list(range(len(self._output_names)))
        if isinstance(names, str):
            raise InvalidArgument(f"output names are a list: [{names!r}], not {names!r}")
        try:
            return [self._output_names.index(name) for name in names]
        except ValueError:
            wrong = next(n for n in names if n not in self._output_names)
            raise InvalidArgument(
                f"Invalid output name: {wrong}; the model has {', '.join(self._output_names)}"
            ) from None

    def io_binding(self) -> IOBinding:
        """A binding of inputs and outputs to memory, for `run_with_iobinding`."""
        from sardonyx.session.io_binding import IOBinding

        return IOBinding(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """By the model's path, else by its bytes, and by options; packed weights are made anew."""
        path = self._source.files.model_path
        model: Any = self._source.model
        if model is None:
            data = self._source.source.data
            model = bytes(data) if path is None else os.path.abspath(path)
        providers = list(self._provider_options.items())
        return _rebuilt, (type(self), model, self._options, providers, self._disabled)


def _rebuilt(
    kind: type[InferenceSession],
    model: Any,
    options: SessionOptions,
    providers: list[tuple[str, dict[str, str]]],
    disabled: frozenset[str],
) -> InferenceSession:
    made = kind.__new__(kind)
    made._container, made._options, made._disabled = None, options, disabled
    made._begin(model)
    made.set_providers(providers)
    return made


def _stopper(options: RunOptions) -> Any:
    def check() -> None:
        if options.terminate:
            raise Fail("the run was ended by RunOptions.terminate")

    return check
