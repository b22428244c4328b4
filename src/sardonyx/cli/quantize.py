"""`sardonyx quantize`: quantizes a model as far as a limit on its loss allows."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any, Final

from sardonyx.base.atomic_file import writing
from sardonyx.base.units import format_bytes, format_seconds
from sardonyx.cli.console import (
    activity,
    count,
    heading,
    note,
    printable,
    say,
    table,
)
from sardonyx.cli.inputs import check_outputs
from sardonyx.quantization.search import (
    Outcome,
    QuantizationRefused,
    SearchOptions,
    quantize_within,
)
from sardonyx.quantization.search.outcome import FLOAT, LayerResult, Trial, percent
from sardonyx.quantization.search.schemes import COVERAGES

DONE: Final = 0
_SUFFIX: Final = ".quantized.onnx"


def command(arguments: argparse.Namespace) -> int:
    """Quantize MODEL, write OUT, and print a report of each layer."""
    model = pathlib.Path(arguments.model)
    output = arguments.output or model.with_name(f"{model.stem}{_SUFFIX}")
    files = [path for path in arguments.data if os.path.isfile(path)]
    check_outputs([output, arguments.html], [model, *files])
    with activity(f"quantizing {printable(model.name)}"):
        try:
            outcome = quantize_within(model, output, arguments.data, _options(arguments))
        except QuantizationRefused as refusal:
            _show(arguments, refusal.outcome)
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt("interrupted: the same command continues from here") from None
    _show(arguments, outcome)
    return DONE


def _options(arguments: argparse.Namespace) -> SearchOptions:
    chosen: dict[str, Any] = {} if arguments.bits is None else {"bits": arguments.bits}
    return SearchOptions(
        max_loss=arguments.max_loss,
        metric=arguments.metric,
        goal=arguments.goal,
        min_speedup=arguments.min_speedup,
        label=arguments.labels,
        batch=arguments.batch_size,
        work=None if arguments.work is None else os.fspath(arguments.work),
        threads=arguments.threads,
        **chosen,
    )


def _show(arguments: argparse.Namespace, outcome: Outcome) -> None:
    """Write the page of --html, and print the report, or JSON."""
    if arguments.html is not None:
        from sardonyx.quantization.search.page import page

        with writing(os.fspath(arguments.html)) as file:
            file.write(page(outcome).encode())
    if arguments.json:
        print(json.dumps(outcome.facts(), indent=2))
        return
    name = printable(os.path.basename(outcome.model))
    samples = f"{count(outcome.n_calibrating, 'sample')} calibrate, {outcome.n_held_out} check"
    heading(name, samples)
    say()
    if outcome.output is not None:
        _show_result(outcome)
        _show_layers(outcome.layers, arguments.top)
    _show_trials(outcome.trials)
    if outcome.n_resumed:
        note(f"{count(outcome.n_resumed, 'result')} of an earlier search were used again")
    if arguments.html is not None:
        say(f"\nthe report is in {printable(str(arguments.html))}: open it in a browser")


def _show_result(outcome: Outcome) -> None:
    assert outcome.speed is not None
    assert outcome.output is not None
    say(printable(outcome.output), "bold green")
    speed = outcome.speed
    before, after = (format_bytes(n) for n in (outcome.bytes_before, outcome.bytes_after))
    ratio = outcome.bytes_before / max(outcome.bytes_after, 1)
    times = [format_seconds(s) for s in (speed.original_s, speed.candidate_s)]
    coverage, _, rest = outcome.what.partition(", ")
    how = [["how", coverage, f"{COVERAGES[coverage]}; {rest}"]] if coverage in COVERAGES else []
    rows = [
        *(how or [["how", outcome.what, ""]]),
        ["loss", percent(outcome.loss), f"{outcome.metric_text}; at most {outcome.max_loss:.3%}"],
        ["error", percent(outcome.error), "relative error of the outputs"],
        ["time", f"{speed.speedup:.2f}x as fast", f"{times[0]} before, {times[1]} after"],
        ["size", f"{ratio:.2f}x smaller", f"{before} before, {after} after"],
    ]
    table(rows, styles={0: "cyan", 2: "dim"})
    for remark in outcome.remarks:
        note(remark)
    say()


def _show_layers(layers: Sequence[LayerResult], top: int) -> None:
    """Print the most sensitive layers, and those that stay in float."""
    n_float = sum(layer.choice == FLOAT for layer in layers)
    heading("layers", f"{len(layers) - n_float} quantized, {n_float} in floats; by error alone")
    worst = sorted(layers, key=lambda layer: -(layer.error or 0.0))
    rows = [_layer_row(layer) for layer in worst[:top]]
    titles = ("layer", "op", "error", "bytes", "after", "time", "after", "choice", "why")
    table(rows, titles, right=range(2, 7), styles={0: "cyan", 8: "dim"}, names=(0,))
    if rest := worst[top:]:
        note(f"{count(len(rest), 'more layer')} with smaller errors: --top lists them")
    together = max((layer.n_measured for layer in layers), default=1)
    if together > 1:
        note(f"up to {together} neighbouring layers were measured together")
    say()


def _layer_row(layer: LayerResult) -> list[str]:
    sizes = [format_bytes(n) if n else "" for n in (layer.bytes_before, layer.bytes_after)]
    times = [format_seconds(s) if s else "" for s in (layer.seconds_before, layer.seconds_after)]
    return [
        printable(layer.name),
        layer.op,
        percent(layer.error),
        *sizes,
        *times,
        layer.choice,
        layer.why,
    ]


def _show_trials(trials: Sequence[Trial]) -> None:
    heading("tried", "error and loss on the samples that calibrate, unless checked")
    rows = [
        [
            trial.what,
            str(trial.n_float or ""),
            *map(percent, (trial.error, trial.loss)),
            "" if trial.speedup is None else f"{trial.speedup:.2f}x",
            format_bytes(trial.n_bytes) if trial.n_bytes else "",
            printable(trial.verdict),
        ]
        for trial in trials
    ]
    titles = ("how", "floats", "error", "loss", "speed", "size", "")
    table(rows, titles, right=range(1, 6), styles={0: "cyan", 6: "dim"})
