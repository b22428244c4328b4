"""From SessionOptions and their config keys to compile.Options: load, passes, save, order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.log import Logger
from sardonyx.compile import Options
from sardonyx.errors import InvalidArgument, ModelLoadCanceled, NoSuchFile
from sardonyx.load import LoadOptions
from sardonyx.load.model import Declared
from sardonyx.ort.config_keys import Keys
from sardonyx.ort.enums import ExecutionMode, ExecutionOrder
from sardonyx.ort.options import SessionOptions, choice, flag, one_of
from sardonyx.pack.lookup import FULL, NONE, SAMPLED, PackOptions
from sardonyx.passes.options import PRECISIONS, PassOptions
from sardonyx.schedule import Order, OrderOptions
from sardonyx.weights.layouts import PrepackedWeightsContainer

if TYPE_CHECKING:
    from sardonyx.save import SaveOptions

_COPIES: Final = {"mapped": False, "copied": True}
_FORMATS: Final = (_ONNX := "ONNX", _ORT := "ORT")
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
    return flag(options, Keys.DEFER_WEIGHTS) or flag(options, Keys.DISABLE_PREPACKING)


def compile_options(
    options: SessionOptions, disabled: frozenset[str], container: PrepackedWeightsContainer | None
) -> Options:
    """Return the compile options; their providers are set later."""
    _check_formats(options)
    entries = options._entries
    disabled |= {n for n in entries.get(Keys.DISABLED_OPTIMIZERS, "").split(";") if n}
    limit = entries.get(Keys.FOLD_LIMIT, str(PassOptions().fold_limit_bytes))
    return Options(
        providers=(),
        load=_load_options(options),
        passes=PassOptions(
            level=options.graph_optimization_level,
            disabled=frozenset(name for names in disabled for name in names.split(",")),
            weight_level=_nbits_accuracy(entries.get(Keys.NBITS_ACCURACY, "0")),
            weight_block=_nbits_block(entries.get(Keys.NBITS_BLOCK_SIZE, "0")),
            approximates_gelu=flag(options, Keys.APPROXIMATE_GELU),
            keeps_qdq=flag(options, Keys.KEEP_QDQ),
            fold_limit_bytes=_byte_limit(Keys.FOLD_LIMIT, limit),
            stop_after=_pass_number(entries.get(Keys.STOP_AFTER_PASS)),
            **choice(options, Keys.PRECISION, "exact", PRECISIONS),
        ),
        save=_save_options(options) if options.optimized_model_filepath else None,
        pack=_pack_options(options),
        check=_cancellation_check(options),
        container=container,
        order=_order_options(options),
    )


def _check_formats(options: SessionOptions) -> None:
    for key in (Keys.LOAD_FORMAT, Keys.SAVE_FORMAT):  # a model's own bytes tell how to load it
        value = options._entries.get(key, _ONNX)
        if value.upper() not in _FORMATS:
            raise InvalidArgument(f"{key} must be {' or '.join(_FORMATS)}, got {value!r}")


def _load_options(options: SessionOptions) -> LoadOptions:
    entries = options._entries
    folder = entries.get(Keys.EXTERNAL_DATA_FOLDER)
    _check_folder(Keys.EXTERNAL_DATA_FOLDER, folder)
    limits = {
        name: _byte_limit(key, entries[key])
        for name, key in (
            ("most_nodes", Keys.FUNCTION_NODE_LIMIT),
            ("most_bytes", Keys.FUNCTION_BYTE_LIMIT),
        )
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
        fixes_defaults=not options.optimized_model_filepath and Keys.PACK_CACHE not in entries,
        copies=choice(options, Keys.WEIGHTS, "mapped", _COPIES),
        is_strict=flag(options, Keys.STRICT_INFERENCE),
        **limits,
    )


def _pack_options(options: SessionOptions) -> PackOptions | None:
    entries = options._entries
    # A pack stores a graph that all passes have run over.
    if not flag(options, Keys.USE_PACK, "1") or Keys.STOP_AFTER_PASS in entries:
        return None
    folder = entries.get(Keys.PACK_CACHE)
    _check_folder(Keys.PACK_CACHE, folder)
    check = entries.get(Keys.PACK_CHECK)
    if check is not None:
        one_of(Keys.PACK_CHECK, check, dict.fromkeys((FULL, SAMPLED, NONE)))
    return PackOptions(folder, flag(options, Keys.PACK_VERIFY), check)


def _check_folder(key: str, folder: str | None) -> None:
    if folder is not None and not os.path.isdir(folder):
        raise NoSuchFile(f"{key} is {folder!r}, which is not a folder")


def _save_options(options: SessionOptions) -> SaveOptions:
    from sardonyx.save import SaveOptions  # few sessions save

    entries = options._entries
    least = entries.get(Keys.SAVED_DATA_MIN_BYTES, "1024")
    path = os.fspath(options.optimized_model_filepath)
    by_name = _ORT if path.lower().endswith(".ort") else _ONNX
    return SaveOptions(
        path=path,
        is_ort_format=entries.get(Keys.SAVE_FORMAT, by_name).upper() == _ORT,
        data_file=entries.get(Keys.SAVED_DATA_FILE),
        min_bytes=_byte_limit(Keys.SAVED_DATA_MIN_BYTES, least),
        spells_out=True,  # programs that fuse further read attributes by name
    )


def _cancellation_check(options: SessionOptions) -> Callable[[], None]:
    """Return a function that raises once the load is cancelled.

    It refers to the options, not to the session: a dropped session is freed immediately.
    """

    def check() -> None:
        if options._is_cancelled:
            raise ModelLoadCanceled("the load was cancelled by set_load_cancellation_flag")

    return check


def _byte_limit(key: str, text: str) -> int:
    if not text.isdigit():
        raise InvalidArgument(f"{key} must be a number of bytes, got {text!r}")
    return int(text)


def _pass_number(text: str | None) -> int | None:
    if text is not None and not (text.isascii() and text.isdecimal()):
        raise InvalidArgument(
            f"{Keys.STOP_AFTER_PASS} must be the number of a pass, or 0, got {text!r}"
        )
    return None if text is None else int(text)


def _nbits_accuracy(text: str) -> int:
    if text not in ("0", "1", "2", "3", "4"):
        raise InvalidArgument(
            f"{Keys.NBITS_ACCURACY} must be 0 to 3 for float activations or 4 for int8 "
            f"activations, got {text!r}"
        )
    return int(text)


def _nbits_block(text: str) -> int:
    # MatMulNBits allows only powers of two from 16 on.
    block = int(text) if text == "-1" or text.isdecimal() else None
    if block is None or (block > 0 and (block < 16 or block & (block - 1))):
        raise InvalidArgument(
            f"{Keys.NBITS_BLOCK_SIZE} must be a power of two from 16 on, 0 for 32 or -1 to let it "
            f"depend on the weights, got {text!r}"
        )
    return block


def _order_options(options: SessionOptions) -> OrderOptions:
    """Return the options of `schedule`; the config key takes precedence over the property."""
    by_property = _ORDER_OF[options.execution_order].value
    order = choice(options, Keys.EXECUTION_ORDER, by_property, _ORDERS)
    effort = choice(options, Keys.ORDER_EFFORT, "0", _EFFORTS)
    branches = options.execution_mode == ExecutionMode.ORT_PARALLEL
    hints = _dim_hints(options._entries.get(Keys.DIM_HINTS, ""))
    consumes = flag(options, Keys.CONSUME_INPUTS)
    held = frozenset(filter(None, options._entries.get(Keys.HELD_INPUTS, "").split(",")))
    return OrderOptions(order, effort, hints, branches, consumes, held)


def _dim_hints(text: str) -> dict[str, int]:
    """Parse "batch=8,sequence=128"."""
    hints: dict[str, int] = {}
    for entry in text.split(",") if text.strip() else ():
        name, _, size = (word.strip() for word in entry.rpartition("="))
        is_size = size.isascii() and size.isdigit() and len(size) <= _MAX_DIGITS and int(size) > 0
        if not name or not is_size:
            raise InvalidArgument(
                f"{Keys.DIM_HINTS} must list names of dims with a size from 1 on each, as in "
                f"batch=8,sequence=128, got {text!r:.200}"
            )
        if hints.setdefault(name, int(size)) != int(size):
            raise InvalidArgument(
                f"{Keys.DIM_HINTS} gives {name} two sizes: {hints[name]} and {size}"
            )
    return hints


def warn_unknown_hints(options: OrderOptions, inputs: Iterable[Declared], logger: Logger) -> None:
    """Warn of hints for dim names that no input has, such as typos."""
    if not options.hints:
        return
    known = {d: None for i in inputs for d in i.dims or () if isinstance(d, str)}
    for name in options.hints.keys() - known.keys():
        names = ", ".join(known) or "none"
        text = f"{Keys.DIM_HINTS} names {name}, and the open dims of the inputs are {names}"
        logger.warning("%s", text)


def check_container(container: Any) -> None:
    """Raise an error for a prepacked_weights_container of a wrong type."""
    if container is not None and not isinstance(container, PrepackedWeightsContainer):
        raise InvalidArgument(
            "prepacked_weights_container must be a PrepackedWeightsContainer, "
            f"got {type(container).__name__}"
        )
