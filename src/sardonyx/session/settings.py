"""From SessionOptions and their config keys to what compiling and running are told."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import sardonyx._native as native
from sardonyx.base.log import logger
from sardonyx.base.records import replace
from sardonyx.compile import Options
from sardonyx.errors import Fail, InvalidArgument, ModelLoadCanceled, NoSuchFile, NotImplemented
from sardonyx.load import LoadOptions
from sardonyx.ort.options import RunOptions, SessionOptions, byte_count, global_threads, one_of
from sardonyx.pack.lookup import FULL, NONE, SAMPLED, PackOptions
from sardonyx.passes.options import PRECISIONS, PassOptions
from sardonyx.place import Placement, Provider, Wishes, has_device
from sardonyx.place.preferences import Assignment
from sardonyx.program.limit import LIMIT
from sardonyx.program.native import RunSettings
from sardonyx.providers import CPU
from sardonyx.session.block_pools import limit_of
from sardonyx.session.order_options import order_options
from sardonyx.weights.layouts import PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx.save import SaveOptions

DEFER: Final = "sardonyx.defer_weights"  # to the first run
PACK_SAVE: Final = "session.save_external_prepacked_constant_initializers"
NODE_STATS: Final = "session.collect_node_memory_stats_to_file"
ASSIGNMENT: Final = "session.record_ep_graph_assignment_info"
NO_CPU: Final = "session.disable_cpu_ep_fallback"
_PLACEMENT: Final = "sardonyx.placement"
_PARTITION: Final = "session.resource_cuda_partitioning_settings"
_LAYERS: Final = ("session.name_based_layer_assignment", "session.layer_assignment_settings")
_GRAPH: Final = "gpu_graph_id"  # of runs, as is the next
_OUTPUTS: Final = "sardonyx.outputs"
_NO_PACKING: Final = "session.disable_prepacking"
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_FOLD_LIMIT: Final = "optimization.constant_folding_max_output_size_in_bytes"
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_DATA_MIN: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
_PACK_FOLDER: Final = "sardonyx.pack_cache"
_PACK_VERIFY: Final = "sardonyx.pack_verify"
_PACK_USE: Final = "sardonyx.use_pack"
_PACK_CHECK: Final = "sardonyx.pack_check"
_WEIGHTS: Final = "sardonyx.weights"
_KEPT: Final = {"mapped": False, "copied": True}
_FLAGS: Final = {"0": False, "1": True}
_PRECISION: Final = "sardonyx.precision"
_STOP_AFTER: Final = "sardonyx.stop_after_pass"  # a number in passes/pipeline.py
_WEIGHT_LEVEL: Final = "session.qdq_matmulnbits_accuracy_level"
_WEIGHT_BLOCK: Final = "session.qdq_matmulnbits_block_size"
_IN_PLACE: Final = "sardonyx.grow_in_place"  # caches of keys and values that are fed back
_SPINNING: Final = "session.intra_op.allow_spinning"
_SPIN_US: Final = "session.intra_op.spin_duration_us"
_CALM: Final = "session.force_spinning_stop"
_MOST_SPIN_US: Final = 1_000_000
_AFFINITIES: Final = "session.intra_op_thread_affinities"
_SHARED: Final = "session.use_env_allocators"
_DISABLED: Final = "optimization.disable_specified_optimizers"
_DENORMALS: Final = "session.set_denormal_as_zero"
_GELU: Final = "optimization.enable_gelu_approximation"
_NO_QDQ: Final = "session.disable_quant_qdq"
_STRICT: Final = "session.strict_shape_type_inference"
_NODES: Final = "session.function_expansion_node_limit"
_BYTES: Final = "session.function_expansion_byte_limit"
_FORMATS: Final = ("session.load_model_format", "session.save_model_format")


def flag(options: SessionOptions, key: str, default: str = "0") -> bool:
    """A config key of 0 or 1."""
    return bool(one_of(key, options._entries.get(key, default), _FLAGS))


def defers(options: SessionOptions) -> bool:
    """Whether weights are packed by the first run, not while loading."""
    return flag(options, DEFER) or flag(options, _NO_PACKING)


def check_fallback(options: SessionOptions, placement: Placement) -> None:
    """Refuses a placement that uses the CPU where that may not be used."""
    if not flag(options, NO_CPU):
        return
    left = [node for node, provider in placement.where.items() if not has_device(provider)]
    if left:
        reasons = "; ".join(why for _, why in placement.refusals.get(left[0], ()))
        raise Fail(
            f"{len(left)} of {len(placement.where)} nodes run on the CPU, and {NO_CPU} forbids it",
            node=left[0],
            why=reasons or "no other provider is in use",
            hint="leave the key out, or give a provider that takes them",
        )


def behind_device(
    options: SessionOptions, used: Mapping[str, dict[str, str]], given: Any
) -> list[tuple[str, dict[str, str]]]:
    """The providers to try when the first one fails to load a model.

    There are some where the user named the CPU among them, and did not forbid it.
    """
    names = [p if isinstance(p, str) else p[0] for p in given or ()]
    if flag(options, NO_CPU) or CPU not in names:
        return []
    return list(used.items())[1:]


def wishes(options: SessionOptions, providers: Sequence[Provider]) -> Wishes:
    """What the session wants of placement."""
    away = [p for p in providers if has_device(p)]
    totals = {p.device: limit for p in away if (limit := getattr(p, "limit_bytes", 0))}
    entries = options._entries
    limits = {}
    if entries.get(_PARTITION):
        size = entries[_PARTITION].partition(",")[0].strip()
        if size and not size.isdecimal():
            raise InvalidArgument(f"{_PARTITION} begins with a limit in KB, not {size!r}")
        limits = {p.device: int(size) << 10 for p in away if size}
    found = [*_assigned(entries.get(_PLACEMENT, "")), *_layers(entries)]
    for target in {a.target: a for a in found if not any(map(a.allows, providers))}:
        logger.warning(
            "nodes are assigned to %s, which no provider in use is: they run on the CPU", target
        )
    return Wishes(tuple(found), limits, totals)


def _assigned(text: str) -> Iterator[Assignment]:
    """Of our own form: "pattern=cuda;pattern=cpu", the first that matches counts."""
    for part in filter(None, text.split(";")):
        pattern, _, target = part.rpartition("=")
        if not pattern or not target:
            raise InvalidArgument(
                f"{_PLACEMENT} is patterns of node names with a provider each, as in "
                f"encoder/*=cuda;*=cpu, not {text!r}"
            )
        yield Assignment(pattern.strip(), target.strip().lower())


def _layers(entries: Mapping[str, str]) -> Iterator[Assignment]:
    """Of onnxruntime's form: "gpu(text,text);cpu(text)", where a name has one of the texts."""
    text = next((entries[key] for key in _LAYERS if entries.get(key)), "")
    for part in filter(None, text.split(";")):
        target, opens, names = part.strip().partition("(")
        if not opens or not names.endswith(")"):
            raise InvalidArgument(
                f"{_LAYERS[0]} is devices with parts of node names, as in gpu(layers.0,layers.1), "
                f"not {text!r}"
            )
        for name in names[:-1].split(","):
            is_exact = name.strip().startswith("=")
            word = _as_is(name.strip().lstrip("="))
            yield Assignment(f"{word}*" if is_exact else f"*{word}*", target.strip().lower())


def _as_is(name: str) -> str:
    """A pattern that only this name matches."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def device_options(base: Options, providers: Sequence[Provider], wishes: Wishes) -> dict[str, Any]:
    """What compiling is told beside all else where some provider has a device of its own."""
    if not any(map(has_device, providers)):
        return {"wishes": wishes}
    joins = all(getattr(p, "takes_joined", False) for p in providers if has_device(p))
    passes = replace(base.passes, for_device=True, joins=joins)
    # A pack holds a graph for the CPU, with weights in the CPU's forms.
    return {"wishes": wishes, "passes": passes, "pack": None}


@contextlib.contextmanager
def flushing(flushes: bool) -> Iterator[None]:
    """Takes denormal numbers for zero on this thread, if it is to, and puts back what was."""
    if not flushes:
        yield
        return
    before = native.flush_denormals(True)
    try:
        yield
    finally:
        native.flush_denormals(before)


def compile_options(
    options: SessionOptions,
    disabled: frozenset[str],
    container: PrepackedWeightsContainer | None,
) -> Options:
    """What compiling is told; providers are resolved later."""
    _check_formats(options)
    entries = options._entries
    disabled |= {n for n in entries.get(_DISABLED, "").split(";") if n}
    limit = entries.get(_FOLD_LIMIT, str(PassOptions().fold_limit_bytes))
    return Options(
        providers=(),
        load=_load_options(options),
        passes=PassOptions(
            level=options.graph_optimization_level,
            disabled=frozenset(name for part in disabled for name in part.split(",")),
            weight_level=_weight_level(entries.get(_WEIGHT_LEVEL, "0")),
            weight_block=_weight_block(entries.get(_WEIGHT_BLOCK, "0")),
            approximates_gelu=flag(options, _GELU),
            keeps_qdq=flag(options, _NO_QDQ),
            fold_limit_bytes=_size(_FOLD_LIMIT, limit),
            stop_after=_pass_number(entries.get(_STOP_AFTER)),
            **one_of(_PRECISION, entries.get(_PRECISION, "exact"), PRECISIONS),
        ),
        save=_save_options(options) if options.optimized_model_filepath else None,
        pack=_pack_options(options),
        check=_cancel_check(options),
        container=container,
        order=order_options(options),
    )


def _check_formats(options: SessionOptions) -> None:
    for key in _FORMATS:
        value = options._entries.get(key, "ONNX")
        if value.upper() == "ORT":
            raise NotImplemented(
                f"{key} is ORT, a format that belongs to onnxruntime's own versions",
                hint="use the ONNX model that the file was made of; a pack loads as fast",
            )
        if value.upper() != "ONNX":
            raise InvalidArgument(f"{key} is ONNX, not {value!r}")


def _load_options(options: SessionOptions) -> LoadOptions:
    entries = options._entries
    folder = entries.get(_FOLDER)
    if folder is not None and not os.path.isdir(folder):
        raise NoSuchFile(f"{_FOLDER} is {folder!r}, which is no folder")
    limits = {
        name: _size(key, entries[key])
        for name, key in (("most_nodes", _NODES), ("most_bytes", _BYTES))
        if key in entries
    }
    return LoadOptions(
        folder=folder,
        in_memory=dict(options._files),
        initializers=dict(options._initializers),
        dims_by_name=dict(options._dims_by_name),
        dims_by_denotation=dict(options._dims_by_denotation),
        # What is saved must hold for sizes that this session may never see.
        split_names=bool(options.optimized_model_filepath),
        fixes_defaults=not options.optimized_model_filepath and _PACK_FOLDER not in entries,
        copies=one_of(_WEIGHTS, entries.get(_WEIGHTS, "mapped"), _KEPT),
        is_strict=flag(options, _STRICT),
        **limits,
    )


def _pack_options(options: SessionOptions) -> PackOptions | None:
    entries = options._entries
    # A pack holds a graph that all passes have run over.
    if not flag(options, _PACK_USE, "1") or _STOP_AFTER in entries:
        return None
    folder = entries.get(_PACK_FOLDER)
    if folder is not None and not os.path.isdir(folder):
        raise NoSuchFile(f"{_PACK_FOLDER} is {folder!r}, which is no folder")
    check = entries.get(_PACK_CHECK)
    if check is not None:
        one_of(_PACK_CHECK, check, dict.fromkeys((FULL, SAMPLED, NONE)))
    return PackOptions(folder, flag(options, _PACK_VERIFY), check)


def _save_options(options: SessionOptions) -> SaveOptions:
    from sardonyx.save import SaveOptions  # few sessions save

    entries = options._entries
    return SaveOptions(
        path=os.fspath(options.optimized_model_filepath),
        data_file=entries.get(_DATA_FILE),
        min_bytes=_size(_DATA_MIN, entries.get(_DATA_MIN, "1024")),
    )


def _cancel_check(options: SessionOptions) -> Callable[[], None]:
    """Ends a load that was cancelled. Knows no session, so that one is freed when it is dropped."""

    def check() -> None:
        if options._is_cancelled:
            raise ModelLoadCanceled("the load was cancelled by set_load_cancellation_flag")

    return check


def run_settings(options: SessionOptions) -> RunSettings:
    """How the session's runs use the pool; affinities of its workers are set for all sessions."""
    entries = options._entries
    affinities = entries.get(_AFFINITIES)
    if affinities:
        native.set_affinities(_cpu_sets(affinities))
    shares = flag(options, _SHARED)
    threads = options.intra_op_num_threads
    if not options.use_per_session_threads:
        threads = global_threads()
    return RunSettings(
        min(max(0, threads), native.max_threads),
        flag(options, _SPINNING, "1"),
        flag(options, _IN_PLACE, "1"),
        keeps=options.enable_cpu_mem_arena,
        shares=shares,
        limit_bytes=limit_of(byte_count(LIMIT, entries.get(LIMIT, "0")), shares),
        flushes=flag(options, _DENORMALS),
        spin_us=_spin_us(entries.get(_SPIN_US)),
        calms=flag(options, _CALM),
    )


def _spin_us(text: str | None) -> int:
    if text is None:
        return RunSettings().spin_us
    if not text.isdecimal() or int(text) > _MOST_SPIN_US:
        raise InvalidArgument(
            f"{_SPIN_US} is a number of microseconds up to {_MOST_SPIN_US}, not {text!r}"
        )
    return int(text)


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


def _pass_number(text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise InvalidArgument(f"{_STOP_AFTER} is the number of a pass, or 0, not {text!r}")
    return None if text is None else int(text)


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


def graph_id(options: RunOptions) -> int:
    """Which of its recorded graphs a run chooses from; -1: none."""
    text = options._entries.get(_GRAPH, "0")
    if not text.removeprefix("-").isdecimal():
        raise InvalidArgument(f"{_GRAPH} is a number, not {text!r}")
    return int(text)


def wants_tensors(options: RunOptions) -> bool:
    """Whether a run hands out tensors of torch in place of arrays."""
    text = options._entries.get(_OUTPUTS, "numpy")
    return bool(one_of(_OUTPUTS, text, {"numpy": False, "device": True}))


def checked_container(given: Any) -> PrepackedWeightsContainer | None:
    """Where a session shares forms of weights, if it was given one; an error for another thing."""
    if given is not None and not isinstance(given, PrepackedWeightsContainer):
        raise InvalidArgument(
            "prepacked_weights_container is a PrepackedWeightsContainer, "
            f"not {type(given).__name__}"
        )
    return given
