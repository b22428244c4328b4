"""`python -m sardonyx.as_onnxruntime`: Python itself, started anew with our path before others.

The program is the interpreter's from its first line on, so arguments, `__main__`, exit codes,
tracebacks and child processes are what they are without us.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final, NoReturn

from sardonyx.as_onnxruntime import environment

USAGE: Final = """\
usage: python -m sardonyx.as_onnxruntime SCRIPT | -m MODULE | -c CODE | -  [ARGS...]

Runs a program that imports onnxruntime on Sardonyx, as python would run it.
SCRIPT is a file, a folder or a zip file; - reads the program from the standard input.
"""


def main(arguments: list[str]) -> NoReturn:
    """Becomes the program; returns only errors of usage."""
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(USAGE)
        raise SystemExit(0 if arguments else 2)
    first = arguments[0]
    if first.startswith("-") and first not in ("-", "-m", "-c"):
        sys.exit(f"{USAGE}\nunknown option {first}; options of python come before -m sardonyx...")
    if first in ("-m", "-c") and len(arguments) == 1:
        sys.exit(f"{USAGE}\n{first} needs an argument")
    if sys.flags.ignore_environment:
        sys.exit("python -I and -E ignore PYTHONPATH, by which onnxruntime is found here")
    # Flags of the interpreter, -W and -X among them; there is no public list of them.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.environ.update(environment())
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *flags, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
