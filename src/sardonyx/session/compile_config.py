"""From SessionOptions and their config keys to compile.Options: load, passes, save, order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.log import Logger
from sardonyx.compile import Options
from sardonyx.errors import InvalidArgument, ModelLoadCanceled, NoSuchFile, NotImplemented
from sardonyx.load import LoadOptions
from sardonyx.load.model import Declared
from sardonyx.ort.enums import ExecutionMode, ExecutionOrder
from sardonyx.ort.options import SessionOptions, flag, one_of
from sardonyx.pack.lookup import FULL, NONE, SAMPLED, PackOptions
from sardonyx.passes.options import PRECISIONS, PassOptions
from sardonyx.schedule import Order, OrderOptions
from sardonyx.weights.layouts import PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx.save import SaveOptions

PACK_SAVE: Final = "session.save_external_prepacked_constant_initializers"
_DEFER: Final = "sardonyx.defer_weights"  # to the first run
_NO_PREPACKING: Final = "session.disable_prepacking"
_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_FOLD_LIMIT: Final = "optimization.constant_folding_max_output_size_in_bytes"
_DATA_FILE: Final = "session.optimized_model_external_initializers_file_name"
_DATA_MIN: Final = "session.optimized_model_external_initializers_min_size_in_bytes"
_PACK_FOLDER: Final = "sardonyx.pack_cache"
_PACK_VERIFY: Final = "sardonyx.pack_verify"
_PACK_USE: Final = "sardonyx.use_pack"
_PACK_CHECK: Final = "sardonyx.pack_check"
_WEIGHTS: Final = "sardonyx.weights"
_COPIES: Final = {"mapped": False, "copied": True}
_PRECISION: Final = "sardonyx.precision"
_STOP_AFTER: Final = "sardonyx.stop_after_pass"  # a number in passes/pipeline.py
_NBITS_ACCURACY: Final = "session.qdq_matmulnbits_accuracy_level"
_NBITS_BLOCK: Final = "session.qdq_matmulnbits_block_size"
_DISABLED: Final = "optimization.disable_specified_optimizers"
_GELU: Final = "optimization.enable_gelu_approximation"
_NO_QDQ: Final = "session.disable_quant_qdq"
_STRICT: Final = "session.strict_shape_type_inference"
_NODE_LIMIT: Final = "session.function_expansion_node_limit"
_BYTE_LIMIT: Final = "session.function_expansion_byte_limit"
_FORMATS: Final = ("session.load_model_format", "session.save_model_format")
_ORDER: Final = "sardonyx.execution_order"
_EFFORT: Final = "sardonyx.order_effort"
_HINTS: Final = "sardonyx.dim_hints"
_ORDER_OF: Final = {
    ExecutionOrder.DEFAULT: Order.LEAST_PEAK,
    ExecutionOrder.PRIORITY_BASED: Order.PRIORITY_BASED,
    ExecutionOrder.MEMORY_EFFICIENT: Order.MEMORY_EFFICIENT,
}
_ORDERS: Final = {order.value: order for order in Order}
_EFFORTS: Final = {str(effort): effort for effort in range(4)}
_MAX_DIGITS: Final = 18  # a size of at most 18 digits fits into int64


def defers_prepacking(options: SessionOptions) -> bool:
    """Return whether weights are packed by the first run, not while loading."""
    return flag(options, _DEFER) or flag(options, _NO_PREPACKING)


def compile_options(
    options: SessionOptions, disabled: frozenset[str], container: PrepackedWeightsContainer | None
) -> Options:
    """Return the compile options; their providers are set later."""
    _check_formats(options)
    entries = options._entries
    disabled |= {n for n in entries.get(_DISABLED, "").split(";") if n}
    limit = entries.get(_FOLD_LIMIT, str(PassOptions().fold_limit_bytes))
    return Options(
        providers=(),
        load=_load_options(options),
        passes=PassOptions(
            level=options.graph_optimization_level,
            disabled=frozenset(name for names in disabled for name in names.split(",")),
            weight_level=_nbits_accuracy(entries.get(_NBITS_ACCURACY, "0")),
            weight_block=_nbits_block(entries.get(_NBITS_BLOCK, "0")),
            approximates_gelu=flag(options, _GELU),
            keeps_qdq=flag(options, _NO_QDQ),
            fold_limit_bytes=_byte_limit(_FOLD_LIMIT, limit),
            stop_after=_pass_number(entries.get(_STOP_AFTER)),
            **one_of(_PRECISION, entries.get(_PRECISION, "exact"), PRECISIONS),
        ),
        save=_save_options(options) if options.optimized_model_filepath else None,
        pack=_pack_options(options),
        check=_cancellation_check(options),
        container=container,
        order=_order_options(options),
    )


def _check_formats(options: SessionOptions) -> None:
    for key in _FORMATS:
        value = options._entries.get(key, "ONNX")
        if value.upper() == "ORT":
            raise NotImplemented(
                f"{key} is ORT, a format specific to versions of onnxruntime",
                hint="use the ONNX model from which the file was converted; a pack loads as fast",
            )
        if value.upper() != "ONNX":
            raise InvalidArgument(f"{key} is ONNX, not {value!r}")


def _load_options(options: SessionOptions) -> LoadOptions:
    entries = options._entries
    folder = entries.get(_FOLDER)
    _check_folder(_FOLDER, folder)
    limits = {
        name: _byte_limit(key, entries[key])
        for name, key in (("most_nodes", _NODE_LIMIT), ("most_bytes", _BYTE_LIMIT))
        if key in entries
    }
    return LoadOptions(
        folder=folder,
        in_memory=dict(options._files),
        initializers=dict(options._initializers),
        dims_by_name=dict(options._dims_by_name),
        dims_by_denotation=dict(options._dims_by_denotation),
        # A saved model must be valid for sizes that this session may never see.
        split_names=bool(options.optimized_model_filepath),
        fixes_defaults=not options.optimized_model_filepath and _PACK_FOLDER not in entries,
        copies=one_of(_WEIGHTS, entries.get(_WEIGHTS, "mapped"), _COPIES),
        is_strict=flag(options, _STRICT),
        **limits,
    )


def _pack_options(options: SessionOptions) -> PackOptions | None:
    entries = options._entries
    # A pack stores a graph that all passes have run over.
    if not flag(options, _PACK_USE, "1") or _STOP_AFTER in entries:
        return None
    folder = entries.get(_PACK_FOLDER)
    _check_folder(_PACK_FOLDER, folder)
    check = entries.get(_PACK_CHECK)
    if check is not None:
        one_of(_PACK_CHECK, check, dict.fromkeys((FULL, SAMPLED, NONE)))
    return PackOptions(folder, flag(options, _PACK_VERIFY), check)


def _check_folder(key: str, folder: str | None) -> None:
    if folder is not None and not os.path.isdir(folder):
        raise NoSuchFile(f"{key} is {folder!r}, which is not a folder")


def _save_options(options: SessionOptions) -> SaveOptions:
    from sardonyx.save import SaveOptions  # few sessions save

    entries = options._entries
    return SaveOptions(
        path=os.fspath(options.optimized_model_filepath),
        data_file=entries.get(_DATA_FILE),
        min_bytes=_byte_limit(_DATA_MIN, entries.get(_DATA_MIN, "1024")),
    )


def _cancellation_check(options: SessionOptions) -> Callable[[], None]:
    """Return a function that raises once the load is cancelled.

    It refers to the options, not to the session: a dropped session is freed at once.
    """

    def check() -> None:
        if options._is_cancelled:
            raise ModelLoadCanceled("the load was cancelled by set_load_cancellation_flag")

    return check


def _byte_limit(key: str, text: str) -> int:
    if not text.isdigit():
        raise InvalidArgument(f"{key} is a number of bytes, not {text!r}")
    return int(text)


def _pass_number(text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise InvalidArgument(f"{_STOP_AFTER} is the number of a pass, or 0, not {text!r}")
    return None if text is None else int(text)


def _nbits_accuracy(text: str) -> int:
    if text not in ("0", "1", "2", "3", "4"):
        raise InvalidArgument(
            f"{_NBITS_ACCURACY} is 0 to 3 for float activations or 4 for int8 activations, "
            f"not {text!r}"
        )
    return int(text)


def _nbits_block(text: str) -> int:
    block = int(text) if text == "-1" or text.isdecimal() else None
    if block is None or (block > 0 and (block < 16 or block & (block - 1))):
        raise InvalidArgument(
            f"{_NBITS_BLOCK} is a power of two from 16 on, 0 for 32 or -1 to let it depend on "
            f"the weights, not {text!r}"
        )
    return block


def _order_options(options: SessionOptions) -> OrderOptions:
    """Return the options of `schedule`; the config key takes precedence over the property."""
    entries = options._entries
    order = _ORDER_OF[options.execution_order]
    if _ORDER in entries:
        order = one_of(_ORDER, entries[_ORDER], _ORDERS)
    effort = one_of(_EFFORT, entries.get(_EFFORT, "0"), _EFFORTS)
    branches = options.execution_mode == ExecutionMode.ORT_PARALLEL
    return OrderOptions(order, effort, _dim_hints(entries.get(_HINTS, "")), branches)


def _dim_hints(text: str) -> dict[str, int]:
    """Parse "batch=8,sequence=128"."""
    hints: dict[str, int] = {}
    for entry in text.split(",") if text.strip() else ():
        name, _, size = (word.strip() for word in entry.rpartition("="))
        is_size = size.isascii() and size.isdigit() and len(size) <= _MAX_DIGITS and int(size) > 0
        if not name or not is_size:
            raise InvalidArgument(
                f"{_HINTS} lists names of dims with a size from 1 on each, as in "
                f"batch=8,sequence=128, not {text!r:.200}"
            )
        if hints.setdefault(name, int(size)) != int(size):
            raise InvalidArgument(f"{_HINTS} gives {name} two sizes: {hints[name]} and {size}")
    return hints


def warn_unknown_hints(options: OrderOptions, inputs: Iterable[Declared], logger: Logger) -> None:
    """Warn of hints for dim names that no input has, such as typos."""
    if not options.hints:
        return
    known = {d: None for i in inputs for d in i.dims or () if isinstance(d, str)}
    for name in options.hints.keys() - known.keys():
        names = ", ".join(known) or "none"
        logger.warning("%s names %s, and the open dims of the inputs are %s", _HINTS, name, names)


def check_container(container: Any) -> None:
    """Raise an error for a prepacked_weights_container of a wrong type."""
    if container is not None and not isinstance(container, PrepackedWeightsContainer):
        raise InvalidArgument(
            "prepacked_weights_container is a PrepackedWeightsContainer, "
            f"not {type(container).__name__}"
        )
