#!/usr/bin/env python3
"""Fails when a library compiled for one ISA has code that a CPU without it could come to run.

    isa_symbols.py NM LIBRARY ISA [OBJDUMP]

The linker keeps one copy of a weak symbol. If that is the copy of a library for newer CPUs, the
program dies on an older one: every weak or unique symbol must be in the ISA's own namespace.

CPUs of an ISA may lack the instructions for bf16. Only kernels of pairs, which are looked up with
that in mind, may have them: OBJDUMP tells.
"""

import re
import subprocess
import sys

_BF16 = re.compile(r"\tv(dpbf16ps|cvtne2?ps2bf16)")
_PAIRS = re.compile(r"unsigned int|pairs", re.IGNORECASE)


def leaks(nm: str, library: str, isa: str) -> list[str]:
    """Weak and unique symbols outside the namespace of the ISA."""
    listing = subprocess.run(
        [nm, "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    names = (line.split(maxsplit=2)[1:] for line in listing.splitlines() if line.count(" ") >= 2)
    inside = f"3sdx{len(isa)}{isa}"
    return sorted({name for kind, name in names if kind in "WVu" and inside not in name})


def strays(objdump: str, library: str) -> list[str]:
    """Functions that multiply or make bf16 and are none of pairs."""
    listing = subprocess.run(
        [objdump, "-d", "-C", "--no-show-raw-insn", library],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found, function = set(), ""
    for line in listing.splitlines():
        if line.endswith(">:"):
            function = line.split("<", 1)[1]
        elif _BF16.search(line) and not _PAIRS.search(function):
            found.add(function[:-2])
    return sorted(found)


def main() -> int:
    """Prints what leaks."""
    nm, library, isa, *objdump = sys.argv[1:]
    found = [f"{name} is not in the namespace sdx::{isa}" for name in leaks(nm, library, isa)]
    for tool in objdump:
        found += [f"{name} has instructions for bf16" for name in strays(tool, library)]
    for line in found:
        print(f"{library}: {line}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
