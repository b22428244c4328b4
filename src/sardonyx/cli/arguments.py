"""The arguments of all commands."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import sardonyx._native as native
from sardonyx.cli import help_texts
from sardonyx.ort.config_keys import Keys
from sardonyx.passes.options import PRECISIONS

MAX_DIM: Final = 1 << 40
ORDERS: Final = ("least_peak", "reverse_depth_first", "priority_based", "memory_efficient")

_PROVIDERS: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "torch": "TorchExecutionProvider",
}


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions to the terminal; examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class UsageError(Exception):
    """Arguments that contradict the model or each other."""


class _Provider(argparse.Action):
    """Append a provider, by onnxruntime's name or a short one, with no options yet."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        name = _PROVIDERS.get(values.lower(), values)
        namespace.provider = [*namespace.provider, (name, {})]


class _ProviderOption(argparse.Action):
    """Set options of the provider that was named last."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if not namespace.provider:
            parser.error(f"{option} must follow the --provider that it configures")
        namespace.provider[-1][1].update(values)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    from sardonyx import __version__

    top = argparse.ArgumentParser(
        prog="sardonyx",
        description=help_texts.DESCRIPTION,
        epilog=help_texts.EXAMPLES,
        formatter_class=_HelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"sardonyx {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (summary, description, examples, options) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=examples,
            formatter_class=_HelpFormatter,
        )
        command.set_defaults(command=partial(_call, name), prog=command.prog, parser=command)
        for flags, settings in (_JSON, *options):
            command.add_argument(*flags, **settings)
    return top


def _call(name: str, arguments: argparse.Namespace) -> int:
    """Import a command's module and call its function `command`."""
    return int(import_module(f"sardonyx.cli.{name}").command(arguments))


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


def _whole(low: int, high: int, what: str = "a number") -> Callable[[str], int]:
    """Return a parser of decimal numbers from `low` to `high`; `what` names them in the error."""

    def parse(text: str) -> int:
        # int() alone would accept signs, spaces, underscores and other scripts' digits.
        if not (text.isascii() and text.isdigit() and len(text) < 15 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low} to {high}")
        return int(text)

    return parse


def _real(high: float, what: str) -> Callable[[str], float]:
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


_size: Final = _whole(0, MAX_DIM, "a size")
_count: Final = _whole(1, 999999)


def _thread_count(text: str) -> int:
    if (count := _count(text)) > native.max_threads:
        raise argparse.ArgumentTypeError(
            f"{count} threads are more than the maximum of {native.max_threads}"
        )
    return count


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise argparse.ArgumentTypeError(f"{name!r} is not the name of a module")
    return list(dict.fromkeys(names))


_Option = tuple[tuple[str, ...], dict[str, Any]]  # the arguments of add_argument


def _option(usage: str, text: str, **settings: Any) -> _Option:
    """Return an option: `usage` is as in "-o --output FILE", a word alone an argument."""
    *flags, last = usage.split()
    if last.startswith("-"):
        return (*flags, last), {"action": "store_true", "help": text}
    return (*flags,) or (settings.pop("dest"),), {"metavar": last, "help": text, **settings}


def _path(usage: str, text: str) -> _Option:
    return _option(usage, text, type=pathlib.Path)


_JSON: Final = _option("--json", "print one JSON object instead of text")
_MODEL: Final = _option("MODEL", "an ONNX file", dest="model")
_INPUTS: Final = _path("--inputs FILE", "inputs by name, as .npz")
_SIZES: Final = (
    _option("--dims NAME=N,...", "sizes of symbolic dims", type=dims, action="append", default=[]),
    _option(
        "--shapes INPUT=AxBx...", "whole shapes of inputs", type=shapes, action="append", default=[]
    ),
)
_PROVIDER: Final = (
    _option(
        "--provider NAME",
        "execution provider: cuda, torch, cpu or a full name; repeat by order of preference",
        action=_Provider,
        default=[],
    ),
    _option(
        "--provider-option KEY=VALUE,...",
        "options of the preceding --provider, such as device=cuda:1,gpu_mem_limit=8000000000",
        type=lambda text: _pairs(text, "device=cuda:1"),
        action=_ProviderOption,
    ),
)
_PRECISION: Final = _option(
    "--precision NAME",
    "exact (default); bf16 or int8: faster, rounds inputs of matmuls (docs/precision.md)",
    choices=tuple(PRECISIONS),
    default="exact",
)
_STOP_AFTER: Final = _option(
    "--stop-after N",
    "skip all graph passes after the first N, for debugging (see sardonyx bisect)",
    type=_whole(0, 999999),
)
_THREADS: Final = _option(
    "--threads N", "threads (default: one per core)", type=_thread_count, default=0
)


def _number(usage: str, text: str, default: int | None) -> _Option:
    return _option(usage, text, type=_count, default=default)


def _duration(text: str, default: float) -> _Option:
    return _option("--seconds S", text, type=_real(3600, "a number of seconds"), default=default)


# The summary, description, examples and options of each command.
_COMMANDS: Final[Mapping[str, tuple[str, str, str, Sequence[_Option]]]] = {
    "run": (
        "run a model and time it",
        help_texts.RUN,
        help_texts.RUN_EXAMPLES,
        (
            _option("MODEL", "an ONNX file", dest="model", nargs="?"),
            _INPUTS,
            _path("--outputs FILE", "save outputs as .npz"),
            *_SIZES,
            *_PROVIDER,
            _PRECISION,
            _STOP_AFTER,
            _path("--profile FILE", "write a Chrome trace"),
            _THREADS,
            _duration("how long to measure (default 1)", 1.0),
        ),
    ),
    "info": (
        "inspect a model",
        help_texts.INFO,
        help_texts.INFO_EXAMPLES,
        (
            _MODEL,
            *_SIZES,
            *_PROVIDER,
            _PRECISION,
            _STOP_AFTER,
            _option("--nodes", "list each node with its provider and kernel"),
            _option("--why", "list which providers refused which nodes, and why"),
            _option("--weights", "list the largest weights: source, layout and memory"),
            _option("--all", "list all weights, not only the largest"),
            _option("--guards", "list the conditions that are checked at run time"),
            _option("--dump", "print the optimized graph as text"),
        ),
    ),
    "plan": (
        "show the memory of a run",
        help_texts.PLAN,
        help_texts.PLAN_EXAMPLES,
        (
            _MODEL,
            *_SIZES,
            _option(
                "--order ORDER",
                f"all (default) to compare them, or one of {', '.join(ORDERS)}",
                choices=("all", *ORDERS),
                default="all",
            ),
            _option(
                "--effort N",
                "search effort of least_peak: 0 (default) to 3, as sardonyx.order_effort",
                type=_whole(0, 3),
                default=0,
            ),
            _number("--top N", "tensors to list (default 10)", 10),
            _path("--html FILE", "write an HTML page with the whole timeline"),
        ),
    ),
    "profile": (
        "show the time of a run",
        help_texts.PROFILE,
        help_texts.PROFILE_EXAMPLES,
        (
            _MODEL,
            _INPUTS,
            *_SIZES,
            *_PROVIDER,
            _PRECISION,
            _THREADS,
            _number("--runs N", "runs to measure (default 20)", 20),
            _number("--top N", "steps to list (default 10)", 10),
            _path("--trace FILE", "write one run as a Chrome trace"),
            _option("--start", "show where the start-up time goes instead"),
            _number("--starts N", "processes for --start (default 5)", None),
        ),
    ),
    "bench": (
        "measure models",
        help_texts.BENCH,
        help_texts.BENCH_EXAMPLES,
        (
            _option("MODEL", "ONNX files", dest="models", nargs="+"),
            _option(
                "--rivals NAMES",
                "comma-separated runtimes to compare with (default: onnxruntime and openvino, if "
                "installed)",
                type=_names,
            ),
            *_SIZES,
            *_PROVIDER,
            _THREADS,
            _number("--rounds N", "rounds of each runtime (default 7)", 7),
            _duration("length of a round (default 0.5)", 0.5),
            _number("--starts N", "start-ups in fresh processes (default 3)", 3),
        ),
    ),
    "pack": (
        "prepack weights for fast start-up",
        help_texts.PACK,
        help_texts.PACK_EXAMPLES,
        (
            _MODEL,
            _option(
                "-o --output OUT", "path of the pack (default: MODEL.pack) or of the new model"
            ),
            _option(
                "--standalone",
                "write a new model with all weights in its pack, which does not need MODEL",
            ),
            _option("--verify", "write nothing; verify every byte of the pack and the weights"),
            _option(
                "--optimization-level LEVEL",
                "none, basic, extended or all (default); must be that of the sessions",
                choices=("none", "basic", "extended", "all"),
                default="all",
            ),
            _PRECISION,
        ),
    ),
    "train": (
        "train a model on arrays",
        help_texts.TRAIN,
        help_texts.TRAIN_EXAMPLES,
        (
            _MODEL,
            _option("DATA", "arrays by input, as .npz", dest="data"),
            _option("--loss NAME", "the output to minimize (default: the only one)"),
            _option("--cross-entropy OUTPUT", "add a loss: the cross entropy of scores"),
            _option("--mse OUTPUT", "add a loss: the mean squared error of an output"),
            _option(
                "--parameters PATTERN",
                "names of what to train, repeatable (default: all weights)",
                action="append",
            ),
            _option("--lora PATTERN", "add adapters to these weights, repeatable", action="append"),
            _number("--rank N", "rank of the adapters (default 8)", 8),
            _number("--epochs N", "epochs to train (default 1, unless --steps)", None),
            _number("--steps N", "batches to train", None),
            _number("--batch-size N", "samples of a batch (default 32)", 32),
            _option(
                "--lr X", "learning rate (default 1e-3)", type=_real(10, "a rate"), default=1e-3
            ),
            _option("--max-norm X", "clip gradients to this norm", type=_real(1e9, "a norm")),
            _option("--seed N", "of the order of samples", type=_whole(0, 999999), default=0),
            _option("--evaluation FILE", "arrays that are not trained on, as .npz"),
            _number("--patience N", "evaluations without a better loss before it stops", None),
            _option("--checkpoints FOLDER", "where to write checkpoints"),
            _number("--save-every N", "steps between checkpoints", None),
            _option("--resume", "continue from the newest checkpoint"),
            _path("--curve FILE", "write the loss by step as SVG"),
            _path("-o --output FILE", "write what was trained"),
        ),
    ),
    "bisect": (
        "find a pass that changes outputs",
        help_texts.BISECT,
        help_texts.BISECT_EXAMPLES,
        (
            _MODEL,
            _INPUTS,
            *_SIZES,
            *_PROVIDER,
            _PRECISION,
            _option(
                "--tolerance X",
                "differences up to this fraction of an output's largest value count as equal "
                "(default 1e-3)",
                type=_real(1, "a number"),
                default=1e-3,
            ),
        ),
    ),
}
