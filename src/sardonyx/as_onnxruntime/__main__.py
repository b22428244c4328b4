"""`python -m sardonyx.as_onnxruntime`: re-executes the interpreter with `shadow` on PYTHONPATH.

The interpreter itself runs the program, so arguments, `__main__`, exit codes, tracebacks and child
processes are the same as without Sardonyx.
"""

from __future__ import annotations

import os
import sys
from typing import Final, NoReturn

from sardonyx.as_onnxruntime import environment

MODULE: Final = "sardonyx.as_onnxruntime"
USAGE: Final = """\
usage: python -m sardonyx.as_onnxruntime SCRIPT | -m MODULE | -c CODE | -  [ARGS...]

Runs a program that imports onnxruntime on Sardonyx, as python would run it.
SCRIPT is a file, a folder or a zip file; - reads the program from the standard input.
"""


def main(arguments: list[str]) -> NoReturn:
    """Replace this process by the program; exit with a message for wrong arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(USAGE)
        raise SystemExit(0 if arguments else 2)
    first = arguments[0]
    if first.startswith("-") and first not in ("-", "-m", "-c"):
        sys.exit(f"{USAGE}\nunknown option {first}; options of python come before -m sardonyx...")
    if first in ("-m", "-c") and len(arguments) == 1:
        sys.exit(f"{USAGE}\n{first} needs an argument")
    if sys.flags.ignore_environment:
        sys.exit("python -I and -E ignore PYTHONPATH, which makes onnxruntime importable")
    os.environ.update(environment())
    flags = interpreter_flags(sys.orig_argv, len(arguments))
    os.execv(sys.executable, [sys.executable, *flags, *arguments])


def interpreter_flags(words: list[str], arguments: int) -> list[str]:
    """Return the flags before `-m MODULE`, which may be joined: -Wd -Om MODULE, -OmMODULE."""
    before = words[1 : len(words) - arguments]
    last = before.pop()
    letters = before.pop() if last == MODULE else last.removesuffix(MODULE)
    letters = letters.removesuffix("m")
    return before if letters == "-" else [*before, letters]


if __name__ == "__main__":
    main(sys.argv[1:])
