"""The options that commands share, and the types of their values."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import sardonyx._native as native
from sardonyx.ort.config_keys import Keys
from sardonyx.passes.options import LEVELS, PRECISIONS

MAX_DIM: Final = 1 << 40
ORDERS: Final = ("least_peak", "reverse_depth_first", "priority_based", "memory_efficient")

_PROVIDERS: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "torch": "TorchExecutionProvider",
}


class UsageError(Exception):
    """Arguments that contradict the model or each other."""


class _Provider(argparse.Action):
    """Append a provider, by onnxruntime's name or a short one, with no options yet."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        try:
            name = provider_name(values)
        except UsageError as error:
            parser.error(f"argument {option}: {error}")
        namespace.provider = [*namespace.provider, (name, {})]


class _ProviderOption(argparse.Action):
    """Set options of the provider that was named last."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if not namespace.provider:
            parser.error(f"{option} must follow the --provider that it configures")
        namespace.provider[-1][1].update(values)


def entries_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the session config entries for --precision and --stop-after."""
    stop = arguments.stop_after
    return precision_entry(arguments) | ({} if stop is None else stop_entry(stop))


def stop_entry(number: int) -> dict[str, str]:
    """Return the session config entry that skips all passes with a higher number."""
    return {Keys.STOP_AFTER_PASS: str(number)}


def precision_entry(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the session config entry for --precision."""
    return {Keys.PRECISION: arguments.precision}


def dims(text: str) -> dict[str, int]:
    """Parse sizes by name: batch=1,sequence=128."""
    return {name: _size(size) for name, size in _pairs(text, "batch=1,sequence=128").items()}


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Parse shapes by input: image=1x3x224x224,mask=1x8; nothing after the = is a scalar."""
    pairs = _pairs(text, "image=1x3x224x224").items()
    return {name: tuple(map(_size, s.split("x"))) if s else () for name, s in pairs}


def merged(values: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the values of a repeated option; later ones win."""
    return {name: item for value in values for name, item in value.items()}


def _pairs(text: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        if not equals or not name:
            raise argparse.ArgumentTypeError(f"{part!r} is not of the form {example}")
        pairs[name.strip()] = value.strip()
    return pairs


def whole(low: int, high: int, what: str = "a number") -> Callable[[str], int]:
    """Return a parser of decimal numbers from `low` to `high`; `what` names them in the error."""

    def parse(text: str) -> int:
        # int() alone would accept signs, spaces, underscores and other scripts' digits.
        if not (text.isascii() and text.isdigit() and len(text) < 15 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low} to {high}")
        return int(text)

    return parse


def real(high: float, what: str) -> Callable[[str], float]:
    """Return a parser of numbers from 0 to `high`."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from 0 to {high:g}")
        return number

    return parse


def share(text: str) -> float:
    """Parse a share: 0.5%, or 0.005."""
    number = text.removesuffix("%")
    parsed = real(1e6, "a share such as 0.5%")(number)
    if number != text:
        return parsed / 100
    if parsed >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is {parsed:.0%}: write {text}%, or less than 1")
    return parsed


def bits(text: str) -> tuple[int, ...]:
    """Parse numbers of bits with commas between them: 4,8."""
    numbers = tuple(whole(2, 8, "a number of bits")(part) for part in text.split(","))
    if not set(numbers) <= {2, 3, 4, 8}:
        raise argparse.ArgumentTypeError(f"{text!r} is not among 2, 3, 4 and 8 bits")
    return numbers


_size: Final = whole(0, MAX_DIM, "a size")
_count: Final = whole(1, 999999)


def _thread_count(text: str) -> int:
    if (count := _count(text)) > native.max_threads:
        raise argparse.ArgumentTypeError(
            f"{count} threads are more than the maximum of {native.max_threads}"
        )
    return count


def module_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise argparse.ArgumentTypeError(f"{name!r} is not the name of a module")
    return list(dict.fromkeys(names))


def names(text: str) -> list[str]:
    """Parse names with commas between them."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def two(text: str) -> tuple[str, str]:
    """Parse what the two sides of a comparison have: all,none."""
    first, comma, second = (part.strip() for part in text.partition(","))
    if not comma or not first or not second or "," in second:
        raise argparse.ArgumentTypeError(f"{text!r} is not two names, as in all,none")
    return first, second


def provider_name(name: str) -> str:
    """Return the full name of a provider from a short one; raise if there is none of that name."""
    from sardonyx.providers import ALL, available, did_you_mean

    full = _PROVIDERS.get(name.lower(), name)
    if full not in (*ALL, *_PROVIDERS.values(), *available()):
        close = did_you_mean(name, available())
        raise UsageError(
            f"there is no provider {name}: {close}{', '.join(_PROVIDERS)} or a full name"
        )
    return full


Option = tuple[tuple[str, ...], dict[str, Any]]  # the arguments of add_argument


def option(usage: str, text: str, **settings: Any) -> Option:
    """Return an option: `usage` is as in "-o --output FILE", a word alone an argument."""
    *flags, last = usage.split()
    if last.startswith("-"):
        return (*flags, last), {"action": "store_true", "help": text}
    return (*flags,) or (settings.pop("dest"),), {"metavar": last, "help": text, **settings}


def path_option(usage: str, text: str) -> Option:
    return option(usage, text, type=pathlib.Path)


JSON: Final = option("--json", "print one JSON object instead of text")
MODEL: Final = option("MODEL", "an ONNX file", dest="model")
INPUTS: Final = path_option("--inputs FILE", "inputs by name, as .npz")
SIZES: Final = (
    option("--dims NAME=N,...", "sizes of symbolic dims", type=dims, action="append", default=[]),
    option(
        "--shapes INPUT=AxBx...", "whole shapes of inputs", type=shapes, action="append", default=[]
    ),
)
PROVIDER: Final = (
    option(
        "--provider NAME",
        "execution provider: cuda, torch, cpu or a full name; repeat by order of preference",
        action=_Provider,
        default=[],
    ),
    option(
        "--provider-option KEY=VALUE,...",
        "options of the preceding --provider, such as device=cuda:1,gpu_mem_limit=8000000000",
        type=lambda text: _pairs(text, "device=cuda:1"),
        action=_ProviderOption,
    ),
)
PRECISION: Final = option(
    "--precision NAME",
    "exact (default); bf16 or int8: faster, rounds inputs of matmuls (docs/precision.md)",
    choices=tuple(PRECISIONS),
    default="exact",
)
LEVEL: Final = option(
    "--level LEVEL",
    "optimization level: none, basic, extended, layout (as extended) or all (default)",
    choices=tuple(LEVELS),
    default="all",
)
STOP_AFTER: Final = option(
    "--stop-after N",
    "skip all graph passes after the first N, for debugging (see sardonyx bisect)",
    type=whole(0, 999999),
)
THREADS: Final = option(
    "--threads N", "threads (default: one per core)", type=_thread_count, default=0
)


def number_option(usage: str, text: str, default: int | None) -> Option:
    return option(usage, text, type=_count, default=default)


def duration_option(text: str, default: float) -> Option:
    return option("--seconds S", text, type=real(3600, "a number of seconds"), default=default)
