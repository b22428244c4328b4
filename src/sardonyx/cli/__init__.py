"""The command line: `sardonyx run`, `info`, `plan` and others, each a module of its own."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from sardonyx.cli.arguments import UsageError, parser
from sardonyx.cli.term import clean
from sardonyx.errors import InternalError, SardonyxError

OK, FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    try:
        status = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments, unknown = parser().parse_known_args(argv)
        if unknown:
            _refuse(arguments.parser, unknown)
    except SystemExit as done:  # argparse has printed the help, the version or what is wrong
        return done.code if isinstance(done.code, int) else USAGE
    try:
        return int(arguments.command(arguments))
    except UsageError as error:
        return _complain(f"{error}\n  see     {arguments.prog} --help", USAGE)
    except SardonyxError as error:
        return _complain(said(error), FAILED)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _complain(str(error), FAILED)
    except MemoryError as error:
        return _complain(f"out of memory: {error}", FAILED)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)


def _refuse(command: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Ends with what a command was told and does not know."""
    options = [name for action in command._actions for name in action.option_strings]
    near = difflib.get_close_matches(unknown[0].partition("=")[0], options, 1)
    hint = f": did you mean {near[0]}?" if near else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def said(error: SardonyxError) -> str:
    """An error as people read it: what, then where and what to do, one to a line."""
    lines = [error.what, *(f"  {key:<7} {value}" for key, value in error.where.items())]
    if isinstance(error, InternalError):
        lines.append("  please report this: it is a bug in sardonyx")
    return "\n".join(lines)


def _complain(text: str, status: int) -> int:
    sys.stdout.flush()
    # Names out of a model may hold anything, and a terminal must not act on it.
    print(f"sardonyx: {chr(10).join(map(clean, text.split(chr(10))))}", file=sys.stderr)
    return status
