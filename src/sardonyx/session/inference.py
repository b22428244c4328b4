"""InferenceSession: onnxruntime's interface over a compiled program.

From `run` to the first kernel:

1. Fast path: if the feed is a dict, without output names and RunOptions, and if the session has one
   (its program is one native segment, no output is sparse, and there is neither a profile nor node
   statistics). `FastPath.call` reads plain arrays, specializes the plan for their sizes or finds it
   cached, checks the guards, runs the kernels and returns the outputs. It returns None, before any
   kernel runs, for feeds that it does not accept: other values, types, names or layouts.
2. Checked path, `_run`. `check_feed` validates and converts every value and raises the errors;
   `new_run` binds the sizes and copies inputs to devices; `program.run.execute` checks the guards.
3. A guard that is only an assumption of the program raises AssumptionFailed. `_with_program` then
   repeats the attempt with another variant (session/program_variants.py), compiled if necessary.
4. `requested_results` and `unshared` (session/results.py) return memory that belongs to the caller.

Thread-safety: any number of threads may call `run` simultaneously. `_lock` guards everything that
compiles: the providers, `_program` and what `_use` derives from it, `_variants`, `_load` and
`_partial_sessions`. Runs take no lock: they read `_program` and `_fast_path` once and finish with
the program they began with. `_lock` is not re-entrant: a custom op that makes its own session
compile gets an error instead of a deadlock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sardonyx.base.locks import NonReentrantLock
from sardonyx.base.log import at_severity, session_logger
from sardonyx.base.records import replace
from sardonyx.compile import Compiled, Options, compile
from sardonyx.errors import (
    EPFail,
    InternalError,
    InvalidArgument,
    InvalidGraph,
    RuntimeException,
    SardonyxError,
    as_sardonyx_error,
)
from sardonyx.graph.fact import OptionalFact
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.load.source import read_model
from sardonyx.ort.config_keys import Keys
from sardonyx.ort.options import RunOptions, SessionOptions
from sardonyx.place import has_device
from sardonyx.program.run import execute
from sardonyx.providers import check_names, resolve
from sardonyx.reports.trace import Profile
from sardonyx.session import embedded_options
from sardonyx.session.block_pools import pool_for, shrinks_arena
from sardonyx.session.bound_memory import BoundMemory
from sardonyx.session.checked_run import RunRequest, new_run
from sardonyx.session.compile_config import (
    check_container,
    compile_options,
    defers_prepacking,
    warn_unknown_hints,
)
from sardonyx.session.feeds import check_feed, describe
from sardonyx.session.placement_config import (
    check_cpu_fallback,
    device_options,
    fallback_providers,
    placement_preferences,
)
from sardonyx.session.program_cache import PROGRAMS, SharedProgram, cache_key
from sardonyx.session.results import as_tensors, memory_owners, requested_results, unshared
from sardonyx.session.run_config import flushing_denormals, returns_tensors, run_settings
from sardonyx.session.run_methods import Feed, OutputNames, RunMethodsMixin
from sardonyx.session.sparse_outputs import sparse_outputs, with_sparse
from sardonyx.weights.layouts import PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx._native import TensorExchange
    from sardonyx.graph.infer import Shapes
    from sardonyx.reports.node_memory import NodeStats
    from sardonyx.session.io_binding import IOBinding
    from sardonyx.session.program_variants import ProgramVariants

T = TypeVar("T")
_DEFAULT_RUN: Final = RunOptions()
# Programs tried for one run: the first, one with split dim names, one for the branches that the
# shapes choose, and one more for a variant that another thread replaced meanwhile.
_MAX_ATTEMPTS: Final = 4


class InferenceSession(RunMethodsMixin):
    """A model, ready to run. Thread-safe: many threads may call `run` simultaneously."""

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
        """Compile a model from a path, bytes, any buffer, a binary file or an onnx.ModelProto.

        The result of `sardonyx.train.gradient` is accepted as well.
        """
        check_container(prepacked_weights_container)
        self._container = prepacked_weights_container
        self._options = SessionOptions() if sess_options is None else sess_options
        if not isinstance(self._options, SessionOptions):
            kind = type(sess_options).__name__
            raise TypeError(f"sess_options must be a SessionOptions, got {kind}")
        self._disabled = frozenset(kwargs.get("disabled_optimizers") or ())
        if embedded_options.are_enabled(kwargs):
            source = read_model(path_or_bytes)
            self._options = embedded_options.merged(source, self._options)
            if source.files.model_path is None and source.model is None:
                path_or_bytes = source.given.data  # a file object is at its end by now
        self._prepare(path_or_bytes)
        if providers is None and self._options.has_providers():
            providers = self._options._chosen_providers(
                lambda: embedded_options.metadata(self._source)
            )
        elif self._options.has_providers():
            self._logger.warning("providers passed to the session replace those of its options")
        self._set_providers(providers, provider_options)

    def _prepare(self, model: Any) -> None:
        """Parse the options and read the model's bytes: everything before compiling."""
        self._partial_sessions: dict[tuple[str, ...], InferenceSession] = {}
        self._logger = session_logger(self._options.log_severity_level)
        self._lock = _compile_lock()
        profiles, prefix = self._options.enable_profiling, self._options.profile_file_prefix
        self._profile = Profile(prefix) if profiles else None
        self._settings = run_settings(self._options)
        self._node_stats: NodeStats | None = None
        self._base = compile_options(self._options, self._disabled, self._container)
        load = self._load = self._base.load
        # Read once: later a file object is at its end, and a path may be gone.
        self._source = read_model(model, load.folder, load.in_memory, load.copies)
        if Keys.NODE_STATS in self._options._entries:
            from sardonyx.reports.node_memory import NodeStats, target  # few sessions need it

            name = self._options._entries[Keys.NODE_STATS]
            self._node_stats = NodeStats(target(name, self._source.files.model_path))

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Compile the model for these providers; a name that onnxruntime lacks too is an error."""
        check_names(providers or (), provider_options)
        self._set_providers(providers, provider_options)

    def _set_providers(self, providers: Any, provider_options: Any = None) -> None:
        with self._lock:  # runs in other threads may be compiling for their shapes
            fallback = self._try_providers(providers, provider_options)
        if fallback:  # outside of the handler: the error keeps alive what its frames refer to
            self._set_providers(fallback)
            return
        check_cpu_fallback(self._options, self._compiled.placement)
        self._finish_load(self._compile_options())

    def _try_providers(self, providers: Any, provider_options: Any) -> list[Any]:
        """Compile for these providers; return those to fall back to if their device fails."""
        self._provider_options, self._providers = resolve(providers, provider_options, self._logger)
        self._preferences = placement_preferences(self._options, self._providers)
        self._partial_sessions = {}
        self._variants: ProgramVariants | None = None
        try:
            self._use(self._compile(self._compile_options()))
        except EPFail as error:
            fallback = fallback_providers(self._options, self._provider_options, providers)
            if not fallback:
                raise
            self._logger.warning("%s is used instead, as %s", fallback[0][0], error)
            return fallback
        return []

    def _compile(self, options: Options) -> SharedProgram:
        """Return the program for these options, compiled or from the process-wide cache."""
        # A profile shows the stages of its own session's load, and a program whose weights are
        # packed by its first run is not ready to be shared.
        key = None
        if self._profile is None and not defers_prepacking(self._options):
            providers = tuple(
                (name, *sorted(values.items())) for name, values in self._provider_options.items()
            )
            key = cache_key(self._source, options, self._settings, providers)
        return PROGRAMS.share(key, lambda: self._compile_uncached(options))

    def _use(self, program: SharedProgram) -> None:
        """Use this program for subsequent runs."""
        self._program = program
        self._compiled: Compiled = program.compiled
        model, inputs = self._compiled.model, self._compiled.program.inputs
        is_observed = self._profile is not None or self._node_stats is not None
        self._sparse_outputs = sparse_outputs(model.outputs, self._compiled.program)
        is_checked = is_observed or bool(self._sparse_outputs)
        self._fast_path = None if is_checked else self._compiled.program.fast_path
        self._inputs = {i.name: i for i in inputs}
        self._fixed_defaults = {d.name for d in model.overridable} - self._inputs.keys()
        needed = [i for i in inputs if i.default is None]
        self._optional = [i.name for i in needed if isinstance(i.fact, OptionalFact)]
        self._required = [i.name for i in needed if i.name not in self._optional]
        self._output_names = [o.name for o in model.outputs]

    def _finish_load(self, options: Options) -> None:
        """Log what was compiled, warn of options without effect, and write the pack."""
        model, program = self._compiled.model, self._compiled.program
        warn_unknown_hints(options.order, (*model.inputs, *model.overridable), self._logger)
        if options.save is not None and self._options._entries.get(Keys.SAVE_PACK) == "1":
            self._pack_saved_model(options)
        if self._profile is not None:
            self._profile.add_stages(self._compiled.stages, model.origin)
        times = self._compiled.stages.seconds().items()
        stages = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in times)
        self._logger.info("session ready: %d segments; %s", len(program.segments), stages)
        for provider in self._providers:
            if has_device(provider) and provider.device not in self._compiled.placement.devices:
                text = "no node runs on %s: see why by `sardonyx info --why`"
                self._logger.warning(text, provider.device)
        for node, name, kernel in program.nodes():
            self._logger.debug("%s runs on %s (%s)", node, name, kernel)

    def _compile_uncached(self, options: Options) -> SharedProgram:
        """Compile the model, and pack the weights into the layouts that kernels read."""
        try:
            with at_severity(self._options.log_severity_level):
                compiled = compile(self._source, options)
        except MemoryError as error:
            raise RuntimeException(f"out of memory while compiling: {error}") from None
        except RecursionError as error:
            raise InvalidGraph(f"the model nests too deep: {error}") from None
        pool = pool_for(self._settings)
        if not defers_prepacking(self._options):
            with compiled.stages.stage("weights"), compiled.program.layouts.checking(options.check):
                compiled.program.prepare(self._settings, pool)
            # Loading reads few bytes of the mapped files, here and there; runs read most, in order.
            self._source.read_ahead()
        files = tuple(self._source.files.states().items())
        return SharedProgram(compiled, self._source, pool, files)

    def _pack_saved_model(self, options: Options) -> None:
        """Write the pack of the optimized model beside it; log a warning if that fails."""
        from sardonyx.compile.pack_model import pack_saved  # needed only to write a pack

        assert options.save is not None
        try:
            pack_saved(options, self._providers)
        except (SardonyxError, OSError) as error:
            what = error.what if isinstance(error, SardonyxError) else error
            self._logger.warning("the optimized model %s has no pack: %s", options.save.path, what)

    def run(
        self, output_names: OutputNames, input_feed: Feed, run_options: RunOptions | None = None
    ) -> list[Any]:
        """Return the outputs of these names (all outputs if None) for these inputs."""
        fast = self._fast_path  # read once: another thread may change programs
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
                fast.raise_error(outputs, describe, input_feed)  # type: ignore[arg-type]  # an Outcome
        options = _DEFAULT_RUN if run_options is None else run_options
        if not returns_tensors(options):
            return self._run(output_names, input_feed, options)
        return as_tensors(self._run(output_names, input_feed, options, on_device=True))

    def _run_tensors(self, feed: dict[str, Any], exchange: TensorExchange) -> list[Any] | None:
        """Return all outputs for a feed of tensors of another library, as tensors of it.

        Return None, before anything runs, unless the fast path accepts the feed.
        """
        fast = self._fast_path
        if fast is None or fast.call_tensors is None:
            return None
        outputs = fast.call_tensors(feed, exchange)
        if outputs is not None and not isinstance(outputs, list):
            fast.raise_error(outputs, describe, feed)
            return None
        return outputs

    def _run_on_device(
        self, output_names: OutputNames, input_feed: Feed, run_options: RunOptions | None
    ) -> list[Any]:
        """Return the outputs where they were computed: arrays, or tensors on devices."""
        if self._compiled.program.devices:
            options = _DEFAULT_RUN if run_options is None else run_options
            return self._run(output_names, input_feed, options, on_device=True)
        return self.run(output_names, input_feed, run_options)

    def _run(
        self,
        output_names: OutputNames,
        input_feed: Feed,
        options: RunOptions,
        bound: BoundMemory | None = None,
        on_device: bool = False,
    ) -> list[Any]:
        """Run on the checked path; return arrays or, if `on_device`, values where they are.

        If `bound` is set, `input_feed` is its feed.
        """
        if options.only_execute_path_to_fetches and output_names:
            session = self._session_for(output_names)
            if session is not self:
                return session._run(output_names, input_feed, options, None, on_device)
        shrinks = shrinks_arena(options, self._settings)
        indices = self._output_indices(output_names)
        input_feed = self._completed(input_feed, options)
        started = time.perf_counter()
        # Bound values were checked when they were bound, unless the program or the feed changed.
        inputs = self._inputs  # read once: another thread may change programs
        if bound is None or bound.feed is not input_feed or bound.specs is not inputs:
            values = check_feed(inputs, input_feed)
            bound = None if bound is None else BoundMemory(values, bound.output_buffers, inputs)
        else:
            values = bound.feed
        try:
            return self._execute(RunRequest(values, options, bound, indices, on_device, started))
        except InvalidArgument as error:
            raise error.add_context(fed=describe(values)) from None
        except (MemoryError, OSError) as error:
            raise as_sardonyx_error(error, "allocating weights or outputs") from None
        finally:
            if shrinks:
                self._program.pool.release_cached()

    def _completed(self, feed: Feed, options: RunOptions) -> Feed:
        """Return the feed with adapters and absent optionals; the same object if it has all."""
        if options._adapters:
            known = self._inputs.keys() | self._fixed_defaults
            feed = {**feed, **options._adapter_feed(known)}
        self._check_required(feed)
        if self._optional:
            feed = {**dict.fromkeys(self._optional), **feed}
        if not self._fixed_defaults.isdisjoint(feed):
            self._unfix_defaults()
        return feed

    def _session_for(self, names: Sequence[str]) -> InferenceSession:
        """Return a session that computes these outputs alone, for only_execute_path_to_fetches."""
        self._output_indices(names)
        key = tuple(dict.fromkeys(names))
        if len(key) == len(self._output_names) or self._compiled.is_standalone:
            return self
        with self._lock:
            if key not in self._partial_sessions:
                # A shallow copy with its own lock and caches; `_use` replaces the program.
                session = object.__new__(InferenceSession)
                session.__dict__.update(
                    self.__dict__, _lock=_compile_lock(), _partial_sessions={}, _variants=None
                )
                session._base = replace(self._base, outputs=key, pack=None, save=None)
                session._use(session._compile(session._compile_options()))
                self._partial_sessions[key] = session
            return self._partial_sessions[key]

    def _compile_options(self) -> Options:
        """Return the compile options for the providers in use."""
        return replace(
            self._base,
            providers=self._providers,
            load=self._load,
            **device_options(self._base, self._providers, self._preferences),
        )

    def _run_into(self, bound: BoundMemory, run_options: RunOptions | None) -> list[Any]:
        """Return all outputs for bound inputs, in their bound buffers where that is possible."""
        fast = self._fast_path
        if fast is not None and fast.call_into is not None and run_options is None:
            outputs = fast.call_into(bound.feed, bound.disjoint_output_buffers)
            if isinstance(outputs, list):
                return outputs
            if outputs is not None:
                fast.raise_error(outputs, describe, bound.feed)
        return self._run(None, bound.feed, run_options or _DEFAULT_RUN, bound, on_device=True)

    def _execute(self, request: RunRequest) -> list[Any]:
        """Run the request with a program for its shapes; the results belong to the caller."""
        values, bound = request.values, request.bound
        results = self._with_program(
            lambda program: self._attempt(program, request),
            lambda: {n: v.shape for n, v in values.items() if hasattr(v, "shape")},
        )
        if (profile := self._profile) is not None:  # another thread may end it
            profile.add("Session", "model_run", request.started, time.perf_counter())
        if bound is None:
            results = unshared(results, lambda: memory_owners(values.values()))
        else:
            results = unshared(results, bound.owners, bound.output_buffers)
        return with_sparse(results, request.output_indices, self._sparse_outputs)

    def _with_program(
        self, attempt: Callable[[SharedProgram], T], shapes: Callable[[], Shapes]
    ) -> T:
        """Return the result of `attempt` with a program that accepts inputs of these shapes."""
        program = self._program
        for _ in range(_MAX_ATTEMPTS):
            try:
                return attempt(program)
            except AssumptionFailed as failed:
                program = self._variant(program, failed, shapes())
        raise InternalError("programs compiled for these inputs do not accept them")

    def _variant(
        self, tried: SharedProgram, failed: AssumptionFailed, shapes: Shapes
    ) -> SharedProgram:
        """Return a program for runs of these shapes, whose assumption failed for `tried`."""
        from sardonyx.session.program_variants import ProgramVariants  # most sessions need none

        self._logger.info("%s: compiling again, unless there is a program for that", failed)
        with self._lock:
            if self._variants is None:
                self._variants = ProgramVariants(self._program, self._compile_options())
            program = self._variants.for_shapes(tried, failed, shapes, self._compile)
            if program is not self._variants.general:
                self._use(program)  # runs of similar shapes tend to follow
            return program

    def _unfix_defaults(self) -> None:
        """Compile again with the defaults of inputs as inputs: a run feeds one of them.

        Until then they are constants, which passes may fold.
        """
        with self._lock:
            if not self._load.fixes_defaults:  # another thread did it
                return
            self._load = replace(self._load, fixes_defaults=False)
            self._variants = None
            self._use(self._compile(self._compile_options().for_variant()))

    def _attempt(self, shared: SharedProgram, request: RunRequest) -> list[Any]:
        """Run one program; raise AssumptionFailed, before any kernel, if it does not fit."""
        program, bound = shared.compiled.program, request.bound
        run = new_run(shared, request, self._settings)
        if (profile := self._profile) is not None:
            run.on_step, run.on_native = profile.add_step, profile.add_native
        with flushing_denormals(self._settings.flushes_denormals):
            results = execute(program, run)
        if self._node_stats is not None:
            try:
                self._node_stats.add(shared.compiled.model.graph, program, run.dims)
            except OSError as error:  # the run itself succeeded
                self._logger.warning("%s is not written: %s", Keys.NODE_STATS, error)
        buffers = () if bound is None else bound.output_buffers
        indices = request.output_indices
        return requested_results(program, results, indices, request.on_device, buffers)

    def _output_indices(self, names: Sequence[str] | None) -> list[int]:
        if not names:
            return list(range(len(self._output_names)))
        if isinstance(names, str):
            raise InvalidArgument(f"output names must be a list: [{names!r}], got {names!r}")
        try:
            return [self._output_names.index(name) for name in names]
        except ValueError:
            wrong = next(n for n in names if n not in self._output_names)
            raise InvalidArgument(
                f"Invalid output name: {wrong}; the model has {', '.join(self._output_names)}"
            ) from None

    def io_binding(self) -> IOBinding:
        """Return a new binding of inputs and outputs to memory, for `run_with_iobinding`."""
        from sardonyx.session.io_binding import IOBinding

        return IOBinding(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model's path, else its bytes, and the options; the copy compiles again."""
        path = self._source.files.model_path
        model: Any = self._source.model
        if model is None:
            data = self._source.given.data
            model = bytes(data) if path is None else os.path.abspath(path)
        providers = list(self._provider_options.items())
        return _unpickled, (type(self), model, self._options, providers, self._disabled)


def _unpickled(
    kind: type[InferenceSession],
    model: Any,
    options: SessionOptions,
    providers: list[tuple[str, dict[str, str]]],
    disabled: frozenset[str],
) -> InferenceSession:
    session = kind.__new__(kind)
    session._container, session._options, session._disabled = None, options, disabled
    session._prepare(model)
    session._set_providers(providers)
    return session


def _compile_lock() -> NonReentrantLock:
    return NonReentrantLock("compiling the session again")
