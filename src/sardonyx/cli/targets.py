"""Files that a command writes: none of those that it reads."""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Iterable

from sardonyx.cli.arguments import UsageError
from sardonyx.pack.lookup import SUFFIX


def check(
    targets: Iterable[pathlib.Path | None], kept: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Refuses what cannot be written, or would be written over a file of the model."""
    given = [target for target in targets if target is not None]
    for target in given:
        if not target.parent.is_dir():
            raise UsageError(f"there is no folder {target.parent} to write {target.name} to")
        if target.is_dir():
            raise UsageError(f"{target} is a folder: give the name of a file in it")
        if target.exists() and not target.is_file():
            raise UsageError(f"{target} is no file that could be replaced: choose another name")
    for path in kept:
        for target in given:
            if target.exists() and os.path.exists(path) and target.samefile(path):
                raise UsageError(f"{target} is a file of the model itself: choose another name")


def read_by(arguments: argparse.Namespace) -> list[str | os.PathLike[str]]:
    """The model, its pack and its inputs, as far as the arguments tell."""
    model = pathlib.Path(arguments.model)
    inputs = getattr(arguments, "inputs", None)  # not every command has it
    return [model, f"{model}{SUFFIX}", inputs or model.with_suffix(".npz")]
