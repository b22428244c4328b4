#!/usr/bin/env python3
"""Fails when a library compiled for one ISA defines symbols that another could be linked against.

    isa_symbols.py NM LIBRARY ISA

The linker keeps one copy of a weak symbol. If that is the copy of a library for newer CPUs, the
program dies on an older one: every weak or unique symbol must lie in the ISA's own namespace.
"""

import subprocess
import sys


def leaks(nm: str, library: str, isa: str) -> list[str]:
    """Weak and unique symbols outside the namespace of the ISA."""
    listing = subprocess.run(
        [nm, "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    names = (line.split(maxsplit=2)[1:] for line in listing.splitlines() if line.count(" ") >= 2)
    inside = f"3sdx{len(isa)}{isa}"
    return sorted({name for kind, name in names if kind in "WVu" and inside not in name})


def main() -> int:
    """Prints what leaks."""
    found = leaks(*sys.argv[1:])
    for name in found:
        print(f"{sys.argv[2]}: {name} is not in the namespace sdx::{sys.argv[3]}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
