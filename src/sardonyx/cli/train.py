"""`sardonyx train`: trains a model on arrays, and writes it or its adapter."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sardonyx.base.npz import read_npz
from sardonyx.cli.arguments import UsageError
from sardonyx.cli.console import activity, count, printable, say
from sardonyx.cli.inputs import check_outputs
from sardonyx.errors import SardonyxError
from sardonyx.load import load
from sardonyx.load.source import read_model
from sardonyx.pack.lookup import SUFFIX
from sardonyx.train import AdamW, add_loss, fit, lora
from sardonyx.train.fitting import Fitted

_LORA: Final = ("sardonyx.train.lora", "--lora")
_ADDED: Final = "training_loss"  # unlike what models call their own


def command(arguments: argparse.Namespace) -> int:
    """Train MODEL on DATA."""
    _check(arguments)
    _check_files(arguments)
    data = read_npz(arguments.data)
    evaluation = None if arguments.evaluation is None else read_npz(arguments.evaluation)
    has_end = arguments.steps is not None or arguments.epochs is not None
    with _in_options(arguments), activity(f"training {printable(arguments.model)}"):
        result = fit(
            _model(arguments),
            data,
            loss=_ADDED if _added(arguments) else arguments.loss,
            parameters=arguments.parameters,
            epochs=arguments.epochs if has_end else 1,
            steps=arguments.steps,
            batch_size=arguments.batch_size,
            seed=arguments.seed,
            optimizer=AdamW(arguments.lr),
            max_norm=arguments.max_norm,
            evaluation=evaluation,
            patience=arguments.patience,
            checkpoints=arguments.checkpoints,
            save_every=arguments.save_every,
            resume=arguments.resume,
        )
    if arguments.output is not None:
        result.save(arguments.output)
    if arguments.curve is not None:
        result.save_curve(arguments.curve, printable(arguments.model))
    _print(arguments, result)
    return 0


@contextmanager
def _in_options(arguments: argparse.Namespace) -> Iterator[None]:
    """Let messages that name arguments of `fit` name the options of this command."""

    def option(name: str) -> str:
        return f"--{name.replace('_', '-')}" if name in arguments else name

    def translated(text: str) -> str:
        text = text.replace("fit(..., resume=True)", "--resume").replace(*_LORA)
        text = re.sub(r"\b(\w+)=True\b", lambda found: option(found[1]), text)
        text = re.sub(r"\b(\w+)=([\d.]+)", lambda found: f"{option(found[1])} {found[2]}", text)
        text = re.sub(r"`(\w+)`", lambda found: option(found[1]), text)
        named = r"^\w+(?= (?:is|must be) )|\bmax_norm\b"
        return re.sub(named, lambda found: option(found[0]), text)

    try:
        yield
    except SardonyxError as error:
        error.what = translated(error.what)
        error.where = {key: translated(text) for key, text in error.where.items()}
        raise
    except KeyboardInterrupt as interruption:
        raise KeyboardInterrupt(translated(str(interruption))) from None


def _added(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """The losses to add, as kind and output."""
    chosen = (("cross_entropy", arguments.cross_entropy), ("mse", arguments.mse))
    return [(kind, output) for kind, output in chosen if output is not None]


def _check_files(arguments: argparse.Namespace) -> None:
    """Refuse to write over what is read, the files of the model among it."""
    model, output = arguments.model, arguments.output
    # Weights above the limit of a protobuf message are in a file of their own.
    weights = None if output is None else output.with_name(f"{output.name}.data")
    written = (arguments.curve, output, weights)
    read = (model, f"{model}{SUFFIX}", arguments.data, arguments.evaluation)
    check_outputs(written, [path for path in read if path is not None])
    if any(path is not None and path.exists() for path in written) and os.path.exists(model):
        source = read_model(model)
        load(source)
        check_outputs(written, source.files.states())


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that contradict each other, before anything is trained."""
    if len(_added(arguments)) + (arguments.loss is not None) > 1:
        raise UsageError("--loss, --cross-entropy and --mse exclude each other")
    if arguments.lora and arguments.parameters:
        raise UsageError("with --lora only the adapters are trained: leave out --parameters")
    is_adapter = arguments.output is not None and arguments.output.suffix == ".onnx_adapter"
    if is_adapter and not arguments.lora:
        raise UsageError(f"{arguments.output} would be an adapter: name its targets by --lora")


def _model(arguments: argparse.Namespace) -> Any:
    model = arguments.model
    for kind, output in _added(arguments):
        model = add_loss(model, output, kind=kind, loss=_ADDED)
    return lora(model, arguments.lora, rank=arguments.rank) if arguments.lora else model


def _print(arguments: argparse.Namespace, result: Fitted) -> None:
    if arguments.json:
        facts = {
            "losses": result.losses,
            "evaluations": result.evaluations,
            "stopped": result.stopped,
            "parameters": list(result.parameters),
        }
        print(json.dumps(facts, indent=2))
        return
    size = sum(array.size for array in result.parameters.values())
    say(f"{count(len(result.losses), 'step')}, {size} trained numbers{_losses(result.losses)}")
    for row in result.evaluations:
        say(f"  step {row['step']}: loss {row['loss']:.4g} on the evaluation data")
    if result.stopped:
        say(f"  stopped: {result.stopped}")
    for path in (arguments.output, arguments.curve):
        if path is not None:
            say(f"  wrote {printable(str(path))}")


def _losses(losses: Sequence[float]) -> str:
    return f", loss {losses[0]:.4g} at first, {losses[-1]:.4g} at last" if losses else ""
