"""InferenceSession: onnxruntime's interface over a compiled program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

import sardonyx._native as native
from sardonyx.compile import Compiled, Options, compile
from sardonyx.errors import (
    Fail,
    InternalError,
    InvalidArgument,
    InvalidGraph,
    ModelLoadCanceled,
    NoSuchFile,
    RuntimeException,
    SardonyxError,
)
from sardonyx.feeds import check_feed, describe, hand_out
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.load import LoadOptions
from sardonyx.load.source import read_model
from sardonyx.locks import Lock
from sardonyx.log import at_severity, of_session
from sardonyx.nodearg import ModelMetadata, NodeArg, node_arg
from sardonyx.options import RunOptions, SessionOptions, byte_count, one_of
from sardonyx.ordering import order_options, warn_of_hints
from sardonyx.pass_options import PassOptions
from sardonyx.pools import limit_of, pool_for, wants_shrinking
from sardonyx.program.limit import LIMIT
from sardonyx.program.native import RunSettings
from sardonyx.program.program import Run
from sardonyx.program.run import bind, execute
from sardonyx.programs import PROGRAMS, Shared, key_of, shared
from sardonyx.providers import resolve
from sardonyx.trace import Profile
from sardonyx.weights.forms import PrepackedWeightsContainer
from sardonyx.weights.pack.find import SUFFIX, PackOptions

if TYPE_CHECKING:
    from sardonyx.graph.infer import Shapes
    from sardonyx.memory.stats import NodeStats
    from sardonyx.save import SaveOptions
    from sardonyx.variants import Variants

T = TypeVar("T")
_DEFAULT_RUN: Final = RunOptions()
_ATTEMPTS: Final = 4  # the first program, names apart, branches chosen, and one to spare
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_FOLD_LIMIT: Final = "optimization.constant_folding_max_output_size_in_bytes"
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_DATA_MIN: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
_PACK_FOLDER: Final = "sardonyx.pack_cache"
_PACK_VERIFY: Final = "sardonyx.pack_verify"
_PACK_USE: Final = "sardonyx.use_pack"
_PACK_SAVE: Final = "session.save_external_prepacked_constant_initializers"
_DEFER: Final = "sardonyx.defer_weights"  # to the first run
_WEIGHTS: Final = "sardonyx.weights"
_KEPT: Final = {"mapped": False, "copied": True}
_FLAGS: Final = {"0": False, "1": True}
_WEIGHT_LEVEL: Final = "session.qdq_matmulnbits_accuracy_level"
_WEIGHT_BLOCK: Final = "session.qdq_matmulnbits_block_size"
_IN_PLACE: Final = "sardonyx.grow_in_place"  # caches of keys and values that are fed back
_SPINNING: Final = "session.intra_op.allow_spinning"
_AFFINITIES: Final = "session.intra_op_thread_affinities"
_SHARED: Final = "session.use_env_allocators"
_NODE_STATS: Final = "session.collect_node_memory_stats_to_file"
_DISABLED: Final = "optimization.disable_specified_optimizers"


class InferenceSession:
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
        self._container = _checked_container(prepacked_weights_container)
        self._options = SessionOptions() if sess_options is None else sess_options
        if not isinstance(self._options, SessionOptions):
            raise TypeError(f"sess_options is a SessionOptions, not {type(sess_options).__name__}")
        self._logger = of_session(self._options.log_severity_level)
        self._lock = Lock()  # held while compiling again
        profiles, prefix = self._options.enable_profiling, self._options.profile_file_prefix
        self._profile = Profile(prefix) if profiles else None
        self._settings = _run_settings(self._options)
        self._node_stats: NodeStats | None = None
        self._base = self._compile_options(frozenset(kwargs.get("disabled_optimizers") or ()))
        load = self._base.load
        # Read once: a file object is at its end by then, and a path may be gone.
        self._source = read_model(path_or_bytes, load.folder, load.in_memory, load.copies)
        if _NODE_STATS in self._options._entries:
            self._node_stats = self._collected(self._options._entries[_NODE_STATS])
        if providers is None and self._options.has_providers():
            providers = list(self._options._providers.items())
        self.set_providers(providers, provider_options)

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Compiles the model for these providers, again if it was compiled for others."""
        self._provider_options, self._providers = resolve(providers, provider_options, self._logger)
        self._variants: Variants | None = None
        options = replace(self._base, providers=self._providers)
        self._use(self._compile(options))
        self._announce(options)

    def _compile(self, options: Options) -> Shared:
        """The program for these options, its own or one that other sessions have."""
        key = None
        if self._profile is None and self._options._entries.get(_DEFER) != "1":
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
        self._quick = None if is_watched else program.quick
        self._inputs = {i.name: i for i in program.inputs}
        self._required = [i.name for i in program.inputs if i.default is None]
        self._output_names = [o.name for o in model.outputs]

    def _announce(self, options: Options) -> None:
        """Says what was made of the model, and keeps what is to be kept of it."""
        model, program = self._compiled.model, self._compiled.program
        warn_of_hints(options.order, (*model.inputs, *model.overridable), self._logger)
        if options.save is not None and self._options._entries.get(_PACK_SAVE) == "1":
            self._pack_saved(options)
        if self._profile is not None:
            self._profile.add_stages(self._compiled.stages, model.origin)
        steps = ", ".join(
            f"{k} {v * 1e3:.1f} ms" for k, v in self._compiled.stages.seconds().items()
        )
        self._logger.info("session ready: %d steps; %s", len(program.segments), steps)
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
        if self._options._entries.get(_DEFER) != "1":
            with compiled.stages.stage("weights"):
                compiled.program.prepare(self._settings, pool)
            self._source.read_ahead()
        return shared(compiled, self._source, pool)

    def _collected(self, value: str) -> NodeStats:
        """Where the memory of each node is written to."""
        from sardonyx.memory.stats import NodeStats, target  # few sessions want it

        return NodeStats(target(value, self._source.files.model_path))

    def _pack_saved(self, options: Options) -> None:
        """Writes the pack of the optimized model beside it."""
        from sardonyx.packing import Request, pack  # only who writes a pack needs it

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

    def _compile_options(self, disabled: frozenset[str]) -> Options:
        options, entries = self._options, self._options._entries
        folder = entries.get(_FOLDER)
        if folder is not None and not os.path.isdir(folder):
            raise NoSuchFile(f"{_FOLDER} is {folder!r}, which is no folder")
        disabled |= {n for n in entries.get(_DISABLED, "").split(";") if n}
        limit = entries.get(_FOLD_LIMIT)
        return Options(
            providers=(),
            load=LoadOptions(
                folder=folder,
                in_memory=dict(options._files),
                initializers=dict(options._initializers),
                dims_by_name=dict(options._dims_by_name),
                dims_by_denotation=dict(options._dims_by_denotation),
                # What is saved must hold for sizes that this session may never see.
                split_names=bool(options.optimized_model_filepath),
                copies=one_of(_WEIGHTS, entries.get(_WEIGHTS, "mapped"), _KEPT),
            ),
            passes=PassOptions(
                level=options.graph_optimization_level,
                disabled=frozenset(name for part in disabled for name in part.split(",")),
                weight_level=_weight_level(entries.get(_WEIGHT_LEVEL, "0")),
                weight_block=_weight_block(entries.get(_WEIGHT_BLOCK, "0")),
                **({} if limit is None else {"fold_limit_bytes": _size(_FOLD_LIMIT, limit)}),
            ),
            save=self._save_options() if options.optimized_model_filepath else None,
            pack=self._pack_options(),
            check=_cancel_check(options),
            container=self._container,
            order=order_options(options),
        )

    def _pack_options(self) -> PackOptions | None:
        entries = self._options._entries
        if not one_of(_PACK_USE, entries.get(_PACK_USE, "1"), _FLAGS):
            return None
        folder = entries.get(_PACK_FOLDER)
        if folder is not None and not os.path.isdir(folder):
            raise NoSuchFile(f"{_PACK_FOLDER} is {folder!r}, which is no folder")
        return PackOptions(folder, one_of(_PACK_VERIFY, entries.get(_PACK_VERIFY, "0"), _FLAGS))

    def _save_options(self) -> SaveOptions:
        from sardonyx.save import SaveOptions

        entries = self._options._entries
        return SaveOptions(
            path=os.fspath(self._options.optimized_model_filepath),
            data_file=entries.get(_DATA_FILE),
            min_bytes=_size(_DATA_MIN, entries.get(_DATA_MIN, "1024")),
        )

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """The outputs (all of them where no names are given) for these inputs."""
        if (
            self._quick is not None
            and output_names is None
            and run_options is None
            and type(input_feed) is dict
        ):
            outputs = self._quick(input_feed)
            if outputs is not None:
                return outputs  # type: ignore[return-value]  # a list, by native/bind/exec.cc
        options = _DEFAULT_RUN if run_options is None else run_options
        shrinks = wants_shrinking(options, self._settings)
        wanted = self._wanted(output_names)
        missing = [n for n in self._required if n not in input_feed]
        if missing:
            raise ValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(input_feed)})."
            )
        started = time.perf_counter()
        values = check_feed(self._inputs, input_feed)
        try:
            results = self._execute(values, options)
            if self._profile is not None:
                self._profile.add("Session", "model_run", started, time.perf_counter(), {})
            return hand_out([results[i] for i in wanted], values.values())
        except InvalidArgument as error:
            raise error.at(fed=describe(values)) from None
        except MemoryError as error:
            raise RuntimeException(f"out of memory for weights or outputs: {error}") from None
        finally:
            if shrinks:
                self._shared.pool.drop_kept()

    def _execute(self, values: dict[str, Any], options: RunOptions) -> list[Any]:
        return self._with_program(
            lambda made: self._attempt(made, values, options),
            lambda: {n: v.shape for n, v in values.items() if isinstance(v, np.ndarray)},
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
        from sardonyx.variants import Variants  # most sessions have one program

        self._logger.info("%s: compiling again, unless there is a program for that", failed)
        options = replace(self._base, providers=self._providers)
        with self._lock:
            if self._variants is None:
                self._variants = Variants(self._shared, options, self._compile)
            made = self._variants.other(tried, failed, shapes)
            if made is not self._variants.general:
                self._use(made)
            return made

    def _attempt(self, made: Shared, values: dict[str, Any], options: RunOptions) -> list[Any]:
        program = made.compiled.program
        dims, frame = bind(program, values), program.frame()
        for spec in program.inputs:
            value = values.get(spec.name)
            if value is None and spec.default is not None:
                value = spec.default.read()
            frame[spec.slot] = value
        pool = made.pool
        run = Run(dims, frame, _stopper(options), self._settings, options._stop, pool)
        if self._profile is not None:
            run.on_step, run.on_native = self._profile.add_step, self._profile.add_native
        results = execute(program, run)
        if self._node_stats is not None:
            try:
                self._node_stats.add(made.compiled.model.graph, program, run.dims)
            except OSError as error:  # the run went well
                self._logger.warning("%s is not written: %s", _NODE_STATS, error)
        return results

    def _wanted(self, names: Sequence[str] | None) -> list[int]:
        if not names:
            return list(range(len(self._output_names)))
        try:
            return [self._output_names.index(name) for name in names]
        except ValueError:
            wrong = next(n for n in names if n not in self._output_names)
            raise InvalidArgument(
                f"Invalid output name: {wrong}; the model has {', '.join(self._output_names)}"
            ) from None

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed."""
        return [node_arg(d) for d in self._compiled.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs."""
        facts = [o.fact for o in self._compiled.program.outputs]
        return [node_arg(d, f) for d, f in zip(self._compiled.model.outputs, facts, strict=True)]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs with a default, which may be fed."""
        return [node_arg(d) for d in self._compiled.model.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """What the model says of itself."""
        return ModelMetadata(self._compiled.model)

    def get_session_options(self) -> SessionOptions:
        """The options the session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """The providers in use, by the names onnxruntime gives them."""
        return list(self._provider_options)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options of the providers in use."""
        return {name: dict(options) for name, options in self._provider_options.items()}

    def enable_fallback(self) -> None:
        """Kept for programs that call it: the CPU is always there to fall back to."""

    def disable_fallback(self) -> None:
        """Kept for programs that call it."""

    def end_profiling(self) -> str:
        """Writes the profile and returns its file name; empty if profiling was off."""
        profile, self._profile = self._profile, None
        return "" if profile is None else profile.write()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began; 0 if it is off."""
        return 0 if self._profile is None else self._profile.start_ns


def _checked_container(given: Any) -> PrepackedWeightsContainer | None:
    if given is not None and not isinstance(given, PrepackedWeightsContainer):
        raise InvalidArgument(
            "prepacked_weights_container is a PrepackedWeightsContainer, "
            f"not {type(given).__name__}"
        )
    return given


def _cancel_check(options: SessionOptions) -> Callable[[], None]:
    """Ends a load that was cancelled. Knows no session, so that one is freed when it is dropped."""

    def check() -> None:
        if options._is_cancelled:
            raise ModelLoadCanceled("the load was cancelled by set_load_cancellation_flag")

    return check


def _stopper(options: RunOptions) -> Any:
    def check() -> None:
        if options.terminate:
            raise Fail("the run was ended by RunOptions.terminate")

    return check


def _run_settings(options: SessionOptions) -> RunSettings:
    """How the session's runs use the pool; affinities of its workers are set for all sessions."""
    entries = options._entries
    affinities = entries.get(_AFFINITIES)
    if affinities:
        native.set_affinities(_cpu_sets(affinities))
    shares = one_of(_SHARED, entries.get(_SHARED, "0"), _FLAGS)
    return RunSettings(
        max(0, options.intra_op_num_threads),
        entries.get(_SPINNING, "1") != "0",
        one_of(_IN_PLACE, entries.get(_IN_PLACE, "1"), _FLAGS),
        keeps=options.enable_cpu_mem_arena,
        shares=shares,
        limit_bytes=limit_of(byte_count(LIMIT, entries.get(LIMIT, "0")), shares),
    )


def _cpu_sets(text: str) -> list[list[int]]:
    """CPUs from 0, by worker, of onnxruntime's form: "1,2;3-4" counts them from 1."""
    sets = []
    for part in text.split(";"):
        cpus: list[int] = []
        for piece in part.split(","):
            first, _, last = piece.strip().partition("-")
            if not first.isdigit() or not (last or first).isdigit() or int(first) < 1:
                raise InvalidArgument(
                    f"{_AFFINITIES} is CPUs from 1 for each worker, as in 1,2;3-4, not {text!r}"
                )
            cpus.extend(range(int(first) - 1, int(last or first)))
        sets.append(cpus)
    return sets


def _size(key: str, text: str) -> int:
    if not text.isdigit():
        raise InvalidArgument(f"{key} is a number of bytes, not {text!r}")
    return int(text)


def _weight_level(text: str) -> int:
    if text not in ("0", "1", "2", "3", "4"):
        raise InvalidArgument(
            f"{_WEIGHT_LEVEL} is 0 to 3 for exact products or 4 for int8 activations, not {text!r}"
        )
    return int(text)


def _weight_block(text: str) -> int:
    block = int(text) if text == "-1" or text.isdecimal() else None
    if block is None or (block > 0 and (block < 16 or block & (block - 1))):
        raise InvalidArgument(
            f"{_WEIGHT_BLOCK} is a power of two from 16 on, 0 for 32 or -1 to let it depend on "
            f"the weights, not {text!r}"
        )
    return block
