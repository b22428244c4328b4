"""The command line: `sardonyx run`, `info`, `plan` and others, each in a module of its own."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from sardonyx.cli.arguments import UsageError
from sardonyx.cli.commands import parser
from sardonyx.cli.console import printable
from sardonyx.errors import InternalError, SardonyxError

OK, FAILED, USAGE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        status = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe. Python flushes again at exit, which would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments, unknown = parser().parse_known_args(argv)
        if unknown:
            _refuse(arguments.parser, unknown)
    except SystemExit as done:  # argparse has printed the help, the version or the error
        return done.code if isinstance(done.code, int) else USAGE
    # `diff` returns 1 if there are differences, as the program of that name does.
    failed = USAGE if arguments.prog.endswith(" diff") else FAILED
    try:
        return int(arguments.command(arguments))
    except UsageError as error:
        return _print_error(f"{error}\n  see     {arguments.prog} --help", USAGE)
    except SardonyxError as error:
        return _print_error(format_error(error), failed)
    except BrokenPipeError:
        raise
    except OSError as error:
        return _print_error(str(error), failed)
    except MemoryError as error:
        return _print_error(f"out of memory: {error}", failed)
    except KeyboardInterrupt as interruption:  # with a message, if training says how to resume
        return _print_error(str(interruption) or "interrupted", INTERRUPTED)


def _refuse(command: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Exit with an error about arguments that a command does not have."""
    options = [name for action in command._actions for name in action.option_strings]
    close = difflib.get_close_matches(unknown[0].partition("=")[0], options, 1)
    hint = f": did you mean {close[0]}?" if close else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def format_error(error: SardonyxError) -> str:
    """Return the message of an error, and below it where it happened and hints, one per line."""
    lines = [error.what, *(f"  {key:<7} {value}" for key, value in error.where.items())]
    if isinstance(error, InternalError):
        lines.append("  please report this: it is a bug in sardonyx")
    return "\n".join(lines)


def _print_error(text: str, status: int) -> int:
    sys.stdout.flush()
    # Names from a model may contain control characters, which a terminal would obey.
    print(f"sardonyx: {chr(10).join(map(printable, text.split(chr(10))))}", file=sys.stderr)
    return status
