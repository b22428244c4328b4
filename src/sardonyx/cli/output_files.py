"""Checks that a command can write its output files and does not overwrite its inputs."""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Iterable

from sardonyx.cli.arguments import UsageError
from sardonyx.pack.lookup import SUFFIX


def check(
    outputs: Iterable[pathlib.Path | None], inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Raise if an output file cannot be written, or is one of the inputs."""
    targets = [path for path in outputs if path is not None]
    for target in targets:
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent} to write {target.name} to")
        if target.is_dir():
            raise UsageError(f"{target} is a folder: name a file in it")
        if target.exists() and not target.is_file():
            raise UsageError(f"{target} is not a regular file: choose another name")
    for path in inputs:
        for target in targets:
            if target.exists() and os.path.exists(path) and target.samefile(path):
                raise UsageError(f"{target} is a file of the model itself: choose another name")


def inputs_of(arguments: argparse.Namespace) -> list[str | os.PathLike[str]]:
    """Return the files that a command reads by its arguments: the model, its pack, its inputs."""
    model = pathlib.Path(arguments.model)
    inputs = getattr(arguments, "inputs", None)  # not every command has it
    return [model, f"{model}{SUFFIX}", inputs or model.with_suffix(".npz")]
