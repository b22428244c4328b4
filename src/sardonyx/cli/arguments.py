"""What the commands may be told."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import sardonyx._native as native
from sardonyx.passes.options import PRECISIONS

MAX_DIM: Final = 1 << 40
ORDERS: Final = ("least_peak", "reverse_depth_first", "priority_based", "memory_efficient")

_DESCRIPTION: Final = "Runs ONNX models, shows what is in them, and measures them."
_EXAMPLES: Final = """\
examples:
  sardonyx run                                    the built-in model on its samples
  sardonyx run model.onnx --dims batch=8          on made-up inputs of that size
  sardonyx run model.onnx --inputs x.npz --outputs y.npz
  sardonyx info model.onnx                        what it is and how it would run
  sardonyx plan model.onnx --html plan.html       where the memory of a run goes
  sardonyx profile model.onnx                     where the time of a run goes
  sardonyx bench model.onnx --rivals onnxruntime  latency, start and memory, side by side
  sardonyx pack model.onnx                        makes later starts quick
  sardonyx bisect model.onnx                      finds a pass that changes outputs

`sardonyx COMMAND --help` says more of each.
"""
_RUN: Final = """\
Without MODEL, runs the built-in one, which reads handwritten digits, on images that it was
not trained with. Inputs come from --inputs, else from a .npz file beside the model with its
name, else they are made up: random floats, integers of 0 and 1, texts of "a"; dims that the
model leaves open are 1.
"""
_RUN_EXAMPLES: Final = """\
examples:
  sardonyx run
  sardonyx run bert.onnx --dims batch=1,sequence=128
  sardonyx run detector.onnx --shapes images=1x3x640x640 --profile trace.json
  sardonyx run model.onnx --inputs inputs.npz --outputs outputs.npz --json
  sardonyx run model.onnx --provider cuda --provider-option gpu_mem_limit=4000000000

An input or output that is a list is stored as NAME.0, NAME.1 and so on. Open a profile in
https://ui.perfetto.dev or chrome://tracing.
"""
_INFO: Final = """\
Shows a model's inputs and outputs, its ops and weights, where its nodes run, and how much
memory a run is planned to take. Weights are not read: the largest models open in no time.
"""
_INFO_EXAMPLES: Final = """\
examples:
  sardonyx info model.onnx
  sardonyx info model.onnx --nodes --why         each node, and why others refused it
  sardonyx info model.onnx --dims batch=32       memory for that size
  sardonyx info model.onnx --provider cuda --why what a GPU takes, and why not the rest
  sardonyx info model.onnx --weights --all       each weight: mapped, packed or copied
  sardonyx info model.onnx --json | jq .python_steps
"""
_BISECT: Final = """\
Finds the graph pass that changes a model's outputs. Runs the model without any pass, then with
the first N passes of the pipeline, and searches for the smallest N whose outputs differ from
those without passes. Inputs are chosen as by `sardonyx run`.
"""
_BISECT_EXAMPLES: Final = """\
examples:
  sardonyx bisect model.onnx
  sardonyx bisect model.onnx --inputs inputs.npz --tolerance 1e-5
  sardonyx info model.onnx --stop-after 7 --dump    the graph after the first 7 passes
"""
_BENCH: Final = """\
Measures models in sardonyx and in other runtimes: onnxruntime, openvino (on the CPU, in
float32), and any module with onnxruntime's interface. Each lives in a process of its own, and
they take turns, so that whatever else the machine does hits all alike. Latency is the median
over rounds of each round's best; start is the time to make a session, and memory the anonymous
memory that it adds, medians over fresh processes. A rival with 1.14x takes 1.14 times as long
as sardonyx: above 1x sardonyx is faster, below 1x it is slower.
"""
_BENCH_EXAMPLES: Final = """\
examples:
  sardonyx bench model.onnx
  sardonyx bench *.onnx --rivals onnxruntime,openvino --threads 4 --rounds 9
  sardonyx bench model.onnx --rivals '' --json   sardonyx alone
"""
_PLAN: Final = """\
Shows where the memory of a run goes: what each order of steps takes, which tensors are alive
where it takes the most, and what would make it less. Nothing is run: all figures are those of
the plan that a run with these sizes follows, to the byte. Weights are not counted (see
`sardonyx info --weights`), and neither are inputs, which are the caller's.
"""
_PLAN_EXAMPLES: Final = """\
examples:
  sardonyx plan model.onnx --dims batch=8
  sardonyx plan model.onnx --shapes image=2x3x224x224 --html plan.html
  sardonyx plan model.onnx --order reverse_depth_first --top 30
  sardonyx plan model.onnx --json | jq '.orders[] | {order, peak_bytes}'

A session takes an order by its config entry sardonyx.execution_order; least_peak is the
default. Sizes that depend on data, such as the number of boxes found, are taken as 1 unless
--dims names them. The page of --html needs no network and shows every tensor over all steps.
"""
_PROFILE: Final = """\
Runs a model and shows where the time goes: by family of work and by step, with what each did in
a second (GFLOP/s: billions of multiplications and additions; GB/s: bytes read and written, each
once) and how near that is to what this machine can do at best, which is measured in between. A
step that either computes as fast as it can or moves bytes as fast as it can has 100 % of its
limit; from caches, or by an algorithm that multiplies less, it may have more. Inputs are chosen
as by `sardonyx run`.
"""
_PROFILE_EXAMPLES: Final = """\
examples:
  sardonyx profile model.onnx
  sardonyx profile bert.onnx --dims batch=1,sequence=128 --threads 1 --top 30
  sardonyx profile model.onnx --trace trace.json      open it in https://ui.perfetto.dev
  sardonyx profile model.onnx --start                 where the time of a start goes
  sardonyx profile model.onnx --json | jq '.steps[] | select(.of_limit < 0.5) | .name'
"""
_PACK: Final = """\
Writes a model's graph as it runs, and its weights as kernels read them, to a file beside the
model. A session that finds it maps it: it neither optimizes the graph nor packs weights, and
processes share one copy in the page cache. Weights that are read from the model's own files
stay there. A pack that does not fit the model any more is reported and not used: a session
compares files that it does not know by inode, size and times with the pack's digests, every byte,
once, and remembers the outcome (in the folder of sardonyx.pack_cache, else ~/.cache/sardonyx). The
pack's own bytes are compared in the same way; --verify compares all of them again.
"""
_PACK_EXAMPLES: Final = """\
examples:
  sardonyx pack model.onnx                        writes model.onnx.pack
  sardonyx pack model.onnx --verify               reads every byte of it and of the weights
  sardonyx pack model.onnx --standalone -o small/model.onnx
"""


class UsageError(Exception):
    """Arguments that do not fit the model, or each other."""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from sardonyx import __version__

    top = argparse.ArgumentParser(
        prog="sardonyx",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"sardonyx {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _run(commands)
    _info(commands)
    _plan(commands)
    _profile(commands)
    _bench(commands)
    _pack(commands)
    _bisect(commands)
    return top


def _command(
    commands: Any, name: str, what: str, texts: tuple[str, str]
) -> argparse.ArgumentParser:
    """A command, which is `command` of the module that has its name."""

    def call(arguments: argparse.Namespace) -> int:
        # Each imports only what it needs.
        return int(import_module(f"sardonyx.cli.{name}").command(arguments))

    description, examples = texts
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(command=call, prog=made.prog, parser=made)
    made.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return made


def _run(commands: Any) -> None:
    run = _command(commands, "run", "run a model and time it", (_RUN, _RUN_EXAMPLES))
    run.add_argument("model", metavar="MODEL", nargs="?", help="an ONNX file")
    run.add_argument("--inputs", metavar="FILE", type=pathlib.Path, help="inputs by name, as .npz")
    run.add_argument("--outputs", metavar="FILE", type=pathlib.Path, help="save outputs as .npz")
    _sizes(run)
    _providers(run)
    _precision(run)
    _stop_after(run)
    run.add_argument("--profile", metavar="FILE", type=pathlib.Path, help="write a Chrome trace")
    _threads(run)
    run.add_argument(
        "--seconds", metavar="S", type=_seconds, default=1.0, help="how long to time (default 1)"
    )


def _info(commands: Any) -> None:
    info = _command(commands, "info", "show what a model is", (_INFO, _INFO_EXAMPLES))
    info.add_argument("model", metavar="MODEL", help="an ONNX file")
    _sizes(info)
    _providers(info)
    _precision(info)
    _stop_after(info)
    for name, what in (
        ("nodes", "list each node with its provider and kernel"),
        ("why", "list which providers refused which nodes, and why"),
        ("weights", "list the largest weights: where they lie, in which form, in whose memory"),
        ("all", "list all weights, not the largest alone"),
        ("guards", "list what is checked before a run"),
        ("dump", "print the optimized graph as text"),
    ):
        info.add_argument(f"--{name}", action="store_true", help=what)


def _plan(commands: Any) -> None:
    plan = _command(commands, "plan", "show a run's memory", (_PLAN, _PLAN_EXAMPLES))
    plan.add_argument("model", metavar="MODEL", help="an ONNX file")
    _sizes(plan)
    plan.add_argument(
        "--order",
        metavar="ORDER",
        choices=("all", *ORDERS),
        default="all",
        help=f"all (default) to compare them, or one of {', '.join(ORDERS)}",
    )
    plan.add_argument(
        "--effort",
        metavar="N",
        type=_effort,
        default=0,
        help="how hard least_peak searches: 0 (default) to 3, as sardonyx.order_effort",
    )
    plan.add_argument(
        "--top", metavar="N", type=_count, default=10, help="tensors to list (default 10)"
    )
    plan.add_argument(
        "--html", metavar="FILE", type=pathlib.Path, help="write a page with the whole timeline"
    )


def _bench(commands: Any) -> None:
    bench = _command(commands, "bench", "measure models", (_BENCH, _BENCH_EXAMPLES))
    bench.add_argument("models", metavar="MODEL", nargs="+", help="ONNX files")
    bench.add_argument(
        "--rivals",
        metavar="NAMES",
        type=_names,
        help="runtimes to compare with, by comma (default: onnxruntime and openvino if installed)",
    )
    _sizes(bench)
    _providers(bench)
    _threads(bench)
    bench.add_argument(
        "--rounds", metavar="N", type=_count, default=7, help="turns of each (default 7)"
    )
    bench.add_argument(
        "--seconds", metavar="S", type=_seconds, default=0.5, help="of each turn (default 0.5)"
    )
    bench.add_argument(
        "--starts", metavar="N", type=_count, default=3, help="fresh processes (default 3)"
    )


def _profile(commands: Any) -> None:
    profile = _command(commands, "profile", "show a run's time", (_PROFILE, _PROFILE_EXAMPLES))
    profile.add_argument("model", metavar="MODEL", help="an ONNX file")
    profile.add_argument(
        "--inputs", metavar="FILE", type=pathlib.Path, help="inputs by name, as .npz"
    )
    _sizes(profile)
    _providers(profile)
    _precision(profile)
    _threads(profile)
    profile.add_argument(
        "--runs", metavar="N", type=_count, default=20, help="runs to measure (default 20)"
    )
    profile.add_argument(
        "--top", metavar="N", type=_count, default=10, help="steps to list (default 10)"
    )
    profile.add_argument(
        "--trace", metavar="FILE", type=pathlib.Path, help="write one run as a Chrome trace"
    )
    profile.add_argument(
        "--start", action="store_true", help="show where the time of a start goes instead"
    )
    profile.add_argument(
        "--starts", metavar="N", type=_count, help="processes for --start (default 5)"
    )


def _pack(commands: Any) -> None:
    pack = _command(commands, "pack", "make a model start at once", (_PACK, _PACK_EXAMPLES))
    pack.add_argument("model", metavar="MODEL", help="an ONNX file")
    pack.add_argument(
        "-o", "--output", metavar="OUT", help="the pack (default: MODEL.pack), or the new model"
    )
    pack.add_argument(
        "--standalone",
        action="store_true",
        help="write a new model with all weights in its pack; MODEL is not needed by it",
    )
    pack.add_argument(
        "--verify",
        action="store_true",
        help="write nothing: compare every byte of pack and weights",
    )
    pack.add_argument(
        "--optimization-level",
        metavar="LEVEL",
        choices=("none", "basic", "extended", "all"),
        default="all",
        help="none, basic, extended or all (default), as sessions will be asked for",
    )
    _precision(pack)


def _bisect(commands: Any) -> None:
    what = "find a pass that changes outputs"
    bisect = _command(commands, "bisect", what, (_BISECT, _BISECT_EXAMPLES))
    bisect.add_argument("model", metavar="MODEL", help="an ONNX file")
    bisect.add_argument(
        "--inputs", metavar="FILE", type=pathlib.Path, help="inputs by name, as .npz"
    )
    _sizes(bisect)
    _providers(bisect)
    _precision(bisect)
    bisect.add_argument(
        "--tolerance",
        metavar="X",
        type=_fraction,
        default=1e-3,
        help="differences up to this fraction of an output's largest value count as equal "
        "(default 1e-3)",
    )


_PROVIDERS: Final = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "torch": "TorchExecutionProvider",
}


class _Provider(argparse.Action):
    """One more provider, by onnxruntime's name for it or a short one, with no options yet."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        name = _PROVIDERS.get(values.lower(), values)
        namespace.provider = [*namespace.provider, (name, {})]


class _ProviderOption(argparse.Action):
    """Options of the provider that was named last."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if not namespace.provider:
            parser.error(f"{option} goes behind the --provider that it is for")
        namespace.provider[-1][1].update(values)


def _providers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--provider",
        metavar="NAME",
        action=_Provider,
        default=[],
        help="who runs nodes: cuda, torch, cpu or a whole name; several in order of preference",
    )
    command.add_argument(
        "--provider-option",
        metavar="KEY=VALUE,...",
        type=_options,
        action=_ProviderOption,
        help="options of the provider before it, as in device=cuda:1,gpu_mem_limit=8000000000",
    )


def _options(text: str) -> dict[str, str]:
    return _pairs(text, "device=cuda:1")


def _precision(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--precision",
        metavar="NAME",
        choices=tuple(PRECISIONS),
        default="exact",
        help="exact (default); bf16 or int8: faster, with rounded products (docs/precision.md)",
    )


def _stop_after(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stop-after",
        metavar="N",
        type=_pass_number,
        help="skip all graph passes after the first N, for debugging (see sardonyx bisect)",
    )


def entries_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The session config entries for the precision, and for the pass to stop after."""
    stop = arguments.stop_after
    return precision_entry(arguments) | ({} if stop is None else stop_entry(stop))


def stop_entry(number: int) -> dict[str, str]:
    """The session config entry that skips all passes with a higher number."""
    return {"sardonyx.stop_after_pass": str(number)}


def precision_entry(arguments: argparse.Namespace) -> dict[str, str]:
    """The session config entry for the precision that was asked for."""
    return {"sardonyx.precision": arguments.precision}


def _sizes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dims",
        metavar="NAME=N,...",
        type=dims,
        action="append",
        default=[],
        help="sizes of open dims by name",
    )
    command.add_argument(
        "--shapes",
        metavar="INPUT=AxBx...",
        type=shapes,
        action="append",
        default=[],
        help="whole shapes by input",
    )


def _threads(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads",
        metavar="N",
        type=_thread_count,
        default=0,
        help="threads (default: one per core)",
    )


def dims(text: str) -> dict[str, int]:
    """Sizes by name: batch=1,sequence=128."""
    return {name: _size(size) for name, size in _pairs(text, "batch=1,sequence=128").items()}


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes by input: image=1x3x224x224,mask=1x8; nothing after the = is a scalar."""
    pairs = _pairs(text, "image=1x3x224x224").items()
    return {name: tuple(map(_size, s.split("x"))) if s else () for name, s in pairs}


def merged(given: list[Mapping[str, Any]]) -> dict[str, Any]:
    """One table from all times that an option was given; the last word counts."""
    return {name: value for table in given for name, value in table.items()}


def _pairs(text: str, example: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        if not equals or not name:
            raise argparse.ArgumentTypeError(f"{part!r} is not like {example}")
        pairs[name.strip()] = value.strip()
    return pairs


def _size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 15 and int(text) <= MAX_DIM):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number from 0 to {MAX_DIM}")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 999999")
    return int(text)


def _pass_number(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _fraction(text: str) -> float:
    try:
        fraction = float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return fraction


def _thread_count(text: str) -> int:
    if (count := _count(text)) > native.most_threads:
        raise argparse.ArgumentTypeError(f"{count} threads are more than {native.most_threads}")
    return count


def _effort(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 3")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to 3600")
    return seconds


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise argparse.ArgumentTypeError(f"{name!r} is no name of a module")
    return list(dict.fromkeys(names))
