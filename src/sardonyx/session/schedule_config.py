"""From SessionOptions to the execution order: which algorithm, its effort, sizes to plan for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sardonyx.base.log import Logger
from sardonyx.errors import InvalidArgument
from sardonyx.load.model import Declared
from sardonyx.ort.enums import ExecutionMode, ExecutionOrder
from sardonyx.ort.options import SessionOptions, one_of
from sardonyx.schedule import Order, OrderOptions

ORDER: Final = "sardonyx.execution_order"
EFFORT: Final = "sardonyx.order_effort"
HINTS: Final = "sardonyx.dim_hints"
_ORDERS: Final = {
    ExecutionOrder.DEFAULT: Order.LEAST_PEAK,
    ExecutionOrder.PRIORITY_BASED: Order.PRIORITY_BASED,
    ExecutionOrder.MEMORY_EFFICIENT: Order.MEMORY_EFFICIENT,
}
_NAMES: Final = {order.value: order for order in Order}
_EFFORTS: Final = {str(effort): effort for effort in range(4)}
_MAX_DIGITS: Final = 18  # a size of at most 18 digits fits into int64


def order_options(options: SessionOptions) -> OrderOptions:
    """Return the options of `schedule`; the config key takes precedence over the property."""
    entries = options._entries
    order = _ORDERS[options.execution_order]
    if ORDER in entries:
        order = one_of(ORDER, entries[ORDER], _NAMES)
    effort = one_of(EFFORT, entries.get(EFFORT, "0"), _EFFORTS)
    branches = options.execution_mode == ExecutionMode.ORT_PARALLEL
    return OrderOptions(order, effort, _dim_hints(entries.get(HINTS, "")), branches)


def _dim_hints(text: str) -> dict[str, int]:
    """Parse "batch=8,sequence=128"."""
    hints: dict[str, int] = {}
    for entry in text.split(",") if text.strip() else ():
        name, _, size = (word.strip() for word in entry.rpartition("="))
        is_size = size.isascii() and size.isdigit() and len(size) <= _MAX_DIGITS and int(size) > 0
        if not name or not is_size:
            raise InvalidArgument(
                f"{HINTS} lists names of dims with a size from 1 on each, as in "
                f"batch=8,sequence=128, not {text!r:.200}"
            )
        if hints.setdefault(name, int(size)) != int(size):
            raise InvalidArgument(f"{HINTS} gives {name} two sizes: {hints[name]} and {size}")
    return hints


def warn_unknown_hints(options: OrderOptions, inputs: Iterable[Declared], logger: Logger) -> None:
    """Warn of hints for dim names that no input has, such as typos."""
    if not options.hints:
        return
    known = {d: None for i in inputs for d in i.dims or () if isinstance(d, str)}
    for name in options.hints.keys() - known.keys():
        names = ", ".join(known) or "none"
        logger.warning("%s names %s, and the open dims of the inputs are %s", HINTS, name, names)
