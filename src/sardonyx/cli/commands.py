"""The table of all commands, and the parser of the command line that is made from it."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Final

from sardonyx.cli import help_texts
from sardonyx.cli.arguments import (
    INPUTS,
    JSON,
    LEVEL,
    MAX_DIM,
    MODEL,
    ORDERS,
    PRECISION,
    PROVIDER,
    SIZES,
    STOP_AFTER,
    THREADS,
    Option,
    bits,
    duration_option,
    module_names,
    names,
    number_option,
    option,
    path_option,
    real,
    share,
    two,
    whole,
)
from sardonyx.passes.options import LEVELS, PRECISIONS


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions to the terminal; examples keep their lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


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
        for flags, settings in (JSON, *options):
            command.add_argument(*flags, **settings)
    return top


def _call(name: str, arguments: argparse.Namespace) -> int:
    """Import a command's module and call its function `command`."""
    return int(import_module(f"sardonyx.cli.{name}").command(arguments))


# The summary, description, examples and options of each command.
_COMMANDS: Final[Mapping[str, tuple[str, str, str, Sequence[Option]]]] = {
    "run": (
        "run a model and time it",
        help_texts.RUN,
        help_texts.RUN_EXAMPLES,
        (
            option("MODEL", "an ONNX file", dest="model", nargs="?"),
            INPUTS,
            path_option("--outputs FILE", "save outputs as .npz"),
            *SIZES,
            *PROVIDER,
            PRECISION,
            STOP_AFTER,
            path_option("--profile FILE", "write a Chrome trace"),
            THREADS,
            duration_option("how long to measure (default 1)", 1.0),
        ),
    ),
    "info": (
        "inspect a model",
        help_texts.INFO,
        help_texts.INFO_EXAMPLES,
        (
            MODEL,
            *SIZES,
            *PROVIDER,
            PRECISION,
            STOP_AFTER,
            option("--nodes", "list each node with its provider and kernel"),
            option("--why", "list which providers refused which nodes, and why"),
            option("--weights", "list the largest weights: source, layout and memory"),
            option("--all", "list all weights, not only the largest, and each input and output"),
            option("--guards", "list the conditions that are checked at run time"),
            option("--dump", "print the optimized graph as text"),
            path_option("--html FILE", "write an HTML page with the graph, its times and memory"),
        ),
    ),
    "plan": (
        "show the memory of a run",
        help_texts.PLAN,
        help_texts.PLAN_EXAMPLES,
        (
            option("MODEL", "an ONNX file, or SCRIPT.py:FUNCTION", dest="model"),
            *SIZES,
            option(
                "--order ORDER",
                f"all (default) to compare them, or one of {', '.join(ORDERS)}",
                choices=("all", *ORDERS),
                default="all",
            ),
            option(
                "--effort N",
                "search effort of least_peak: 0 (default) to 3, as sardonyx.order_effort",
                type=whole(0, 3),
                default=0,
            ),
            option(
                "--memory-budget B",
                "of SCRIPT.py: this budget alone, as wrap(module, memory_budget=B)",
                type=real(MAX_DIM, "a memory budget"),
            ),
            number_option("--top N", "tensors to list (default 10)", 10),
            path_option("--html FILE", "write an HTML page with the whole timeline"),
        ),
    ),
    "profile": (
        "show the time of a run",
        help_texts.PROFILE,
        help_texts.PROFILE_EXAMPLES,
        (
            MODEL,
            INPUTS,
            *SIZES,
            *PROVIDER,
            PRECISION,
            THREADS,
            number_option("--runs N", "runs to measure (default 20)", 20),
            number_option("--top N", "steps to list (default 10)", 10),
            path_option("--trace FILE", "write one run as a Chrome trace"),
            path_option("--html FILE", "write an HTML page: roofline, families, start, steps"),
            option("--start", "show where the start-up time goes instead"),
            number_option("--starts N", "processes for --start (default 5)", None),
        ),
    ),
    "bench": (
        "measure models",
        help_texts.BENCH,
        help_texts.BENCH_EXAMPLES,
        (
            option("MODEL", "ONNX files", dest="models", nargs="+"),
            option(
                "--rivals NAMES",
                "comma-separated runtimes to compare with (default: onnxruntime and openvino, if "
                "installed)",
                type=module_names,
            ),
            *SIZES,
            *PROVIDER,
            THREADS,
            number_option("--rounds N", "rounds of each runtime (default 7)", 7),
            duration_option("length of a round (default 0.5)", 0.5),
            number_option("--starts N", "start-ups in fresh processes (default 3)", 3),
            path_option("--html FILE", "write an HTML page: bars with every measurement"),
        ),
    ),
    "pack": (
        "prepack weights for fast start-up",
        help_texts.PACK,
        help_texts.PACK_EXAMPLES,
        (
            MODEL,
            option("-o --output OUT", "path of the pack (default: MODEL.pack) or of the new model"),
            option(
                "--standalone",
                "write a new model with all weights in its pack, which does not need MODEL",
            ),
            option("--verify", "write nothing; verify every byte of the pack and the weights"),
            option(
                "--optimization-level LEVEL",
                "none, basic, extended, layout or all (default); must be that of the sessions",
                choices=tuple(LEVELS),
                default="all",
            ),
            PRECISION,
        ),
    ),
    "serve": (
        "answer requests over HTTP and gRPC",
        help_texts.SERVE,
        help_texts.SERVE_EXAMPLES,
        (
            option("[NAME=]MODEL", "ONNX files, or folders of versions", dest="models", nargs="*"),
            path_option("--config FILE", "a TOML file with what follows, and more"),
            option(
                "--folders FOLDER",
                "a folder with models; repeatable",
                action="append",
                default=[],
            ),
            option("--host ADDRESS", "where to listen (default: 127.0.0.1, this machine alone)"),
            option("--port N", "for HTTP (default 8000; 0: any)", type=whole(0, 65535)),
            option("--grpc-port N", "for gRPC (default: none; 0: any)", type=whole(0, 65535)),
            number_option("--workers N", "processes (default 1), which share weights", None),
            THREADS,
            number_option("--max-batch N", "rows of a run (default 64; 1: no batching)", None),
            option(
                "--max-delay-ms MS",
                "longest wait for a larger batch (default 5)",
                type=real(60_000, "a number of milliseconds"),
            ),
            number_option("--concurrency N", "runs of a model at a time (default 1)", None),
            number_option("--queue N", "requests of a model that may wait (default 256)", None),
            option(
                "--load WHEN",
                "start (default), or request: a model is loaded when it is first asked for",
                choices=("start", "request"),
            ),
            number_option("--memory-limit BYTES", "of loaded models; idle ones are unloaded", None),
            option(
                "--watch-s SECONDS",
                "look for replaced files that often (default: never)",
                type=real(86_400, "a number of seconds"),
            ),
            option("--model-control", "let requests load and unload models"),
            path_option("--token-file FILE", "tokens, one of which each request needs"),
            path_option("--certificate FILE", "a PEM file for TLS"),
            path_option("--key FILE", "the key of --certificate"),
            path_option("--client-ca FILE", "clients need a certificate of this authority"),
            option("--log FORM", "text (default) or json", choices=("text", "json")),
            option("--access-log", "log each request"),
            option("--traces URL", "an OTLP endpoint for OpenTelemetry traces"),
            *PROVIDER,
            option("--precision NAME", "exact (default), bf16 or int8", choices=tuple(PRECISIONS)),
        ),
    ),
    "train": (
        "train a model on arrays",
        help_texts.TRAIN,
        help_texts.TRAIN_EXAMPLES,
        (
            MODEL,
            option("DATA", "arrays by input, as .npz", dest="data"),
            option("--loss NAME", "the output to minimize (default: the only one)"),
            option("--cross-entropy OUTPUT", "add a loss: the cross entropy of scores"),
            option("--mse OUTPUT", "add a loss: the mean squared error of an output"),
            option(
                "--parameters PATTERN",
                "names of what to train, repeatable (default: all weights)",
                action="append",
            ),
            option("--lora PATTERN", "add adapters to these weights, repeatable", action="append"),
            number_option("--rank N", "rank of the adapters (default 8)", 8),
            number_option("--epochs N", "epochs to train (default 1, unless --steps)", None),
            number_option("--steps N", "batches to train", None),
            number_option("--batch-size N", "samples of a batch (default 32)", 32),
            option("--lr X", "learning rate (default 1e-3)", type=real(10, "a rate"), default=1e-3),
            option("--max-norm X", "clip gradients to this norm", type=real(1e9, "a norm")),
            option("--seed N", "of the order of samples", type=whole(0, 999999), default=0),
            option("--evaluation FILE", "arrays that are not trained on, as .npz"),
            number_option("--patience N", "evaluations without a better loss to stop", None),
            option("--checkpoints FOLDER", "where to write checkpoints"),
            number_option("--save-every N", "steps between checkpoints", None),
            option("--resume", "continue from the newest checkpoint"),
            path_option("--curve FILE", "write the loss by step as SVG"),
            path_option("-o --output FILE", "write what was trained"),
        ),
    ),
    "bisect": (
        "find a pass that changes outputs",
        help_texts.BISECT,
        help_texts.BISECT_EXAMPLES,
        (
            MODEL,
            INPUTS,
            *SIZES,
            *PROVIDER,
            PRECISION,
            option(
                "--tolerance X",
                "differences up to this fraction of an output's largest value count as equal "
                "(default 1e-3)",
                type=real(1, "a number"),
                default=1e-3,
            ),
        ),
    ),
    "diff": (
        "find the first node where two runs part",
        help_texts.DIFF,
        help_texts.DIFF_EXAMPLES,
        (
            option("A", "an ONNX file", dest="model"),
            option("B", "another one (default: A in two ways)", dest="other", nargs="?"),
            option("--with MODULE", "run B in a module with onnxruntime's interface", dest="with_"),
            option(
                "--levels A,B", "optimization levels: none, basic, extended, layout, all", type=two
            ),
            option("--precisions A,B", "precisions: exact, bf16, int8", type=two),
            option("--providers A,B", "execution providers: cpu, cuda, torch, ...", type=two),
            option("--isas A,B", "kernels: base, avx2, avx512, ...", type=two),
            INPUTS,
            option("--seed N", "of random inputs (default 0)", type=whole(0, 999999), default=0),
            *SIZES,
            THREADS,
            option(
                "--tolerance X",
                "differences up to this fraction of a value's largest element count as equal "
                "(default 1e-3)",
                type=real(1, "a number"),
                default=1e-3,
            ),
            number_option("--top N", "nodes to list (default 10)", 10),
        ),
    ),
    "trace": (
        "save every value of a run",
        help_texts.TRACE,
        help_texts.TRACE_EXAMPLES,
        (
            MODEL,
            INPUTS,
            *SIZES,
            *PROVIDER,
            PRECISION,
            THREADS,
            option("--seed N", "of random inputs (default 0)", type=whole(0, 999999), default=0),
            option(
                "--nodes PATTERN",
                "only nodes or values of these names, with * and ?; repeatable",
                action="append",
            ),
            LEVEL,
            path_option("-o --output OUT", "a .npz file, or a folder for .npy files"),
        ),
    ),
    "optimize": (
        "save the optimized model",
        help_texts.OPTIMIZE,
        help_texts.OPTIMIZE_EXAMPLES,
        (
            MODEL,
            LEVEL,
            option(
                "--external-data FILE",
                "name of a file beside OUT for the weights (default: OUT.data for models of more "
                "than 1 GB)",
            ),
            path_option("-o --output OUT", "the model to write: .onnx, or .ort"),
        ),
    ),
    "convert": (
        "change types, opset, sizes or format",
        help_texts.CONVERT,
        help_texts.CONVERT_EXAMPLES,
        (
            MODEL,
            option(
                "--to TYPE",
                "float16 or bfloat16, instead of float32",
                choices=("float16", "bfloat16"),
            ),
            option("--keep-io-types", "inputs and outputs stay float32"),
            option(
                "--keep-ops NAME,...",
                "ops that stay float32, besides those that do by default; repeatable",
                action="append",
                type=names,
                default=[],
            ),
            option("--convert-all-ops", "convert the ops too that stay float32 by default"),
            option(
                "--keep-nodes NAME,...",
                "nodes that stay float32; repeatable",
                action="append",
                type=names,
                default=[],
            ),
            option("--min X", "raise smaller magnitudes of weights to X", type=real(1, "a number")),
            option(
                "--max X",
                "lower larger magnitudes of weights to X",
                type=real(3.4e38, "a number"),
            ),
            option("--opset N", "opset of ai.onnx of OUT", type=whole(1, 999)),
            *SIZES,
            option(
                "--external-data FILE",
                "name of a file beside OUT for the weights (default: OUT.data, if the weights of "
                "MODEL are in files or take more than 1 GB)",
            ),
            option("--embed", "write the weights into OUT itself"),
            path_option("-o --output OUT", "the model to write: .onnx, or .ort"),
        ),
    ),
    "quantize": (
        "quantize a model within a loss",
        help_texts.QUANTIZE,
        help_texts.QUANTIZE_EXAMPLES,
        (
            MODEL,
            option(
                "--data PATH",
                "samples: a .npz file with a row for each, or files or a folder with a file each",
                nargs="+",
                type=pathlib.Path,
                required=True,
            ),
            option("--max-loss X", "the most to lose (default 0.5%%)", type=share, default=0.005),
            option(
                "--metric NAME",
                "what loss is: auto (default), error, cosine, top1, accuracy or perplexity",
                choices=("auto", "error", "cosine", "top1", "accuracy", "perplexity"),
                default="auto",
            ),
            option("--labels NAME", "the array with the right answers (default: labels or label)"),
            option(
                "--goal NAME",
                "speed (default): 8 bits, the fastest; accuracy: 8 bits, the least error; size: "
                "n-bit weights, the smallest",
                choices=("speed", "accuracy", "size"),
                default="speed",
            ),
            option(
                "--min-speedup X",
                "slower models are not written (default: 1.5 for 8 bits, 1 for size)",
                type=real(1000, "a factor"),
            ),
            option(
                "--bits N,...", "bits of weights that --goal size tries (default 4,8)", type=bits
            ),
            number_option("--batch-size N", "rows of a run, for a single file (default 1)", None),
            path_option(
                "--work FOLDER", "where an interrupted search continues (default: OUT.search)"
            ),
            THREADS,
            number_option("--top N", "layers to list (default 15)", 15),
            path_option("--html FILE", "write the report as an HTML page"),
            path_option("-o --output OUT", "the model to write (default: MODEL.quantized.onnx)"),
        ),
    ),
}
