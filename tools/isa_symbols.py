#!/usr/bin/env python3
"""Fails when a library compiled for one ISA has code that a CPU without it could come to run.

    isa_symbols.py NM LIBRARY ISA [OBJDUMP]

The linker keeps one copy of a weak symbol. If that is the copy of a library for newer CPUs, the
program dies on an older one: every weak or unique symbol must be in the ISA's own namespace.

CPUs of an ISA may lack the instruction sets of `OPTIONAL`. Only functions that run after a check of
the CPU may have them: OBJDUMP tells.
"""

import re
import subprocess
import sys

# Name, instructions, and the functions that may have them: bf16 kernels of pairs are looked up by
# `Kernel::needs_bf16`, and `permute` (kernels/quantize/lookup.cc) is chosen if the CPU has VBMI.
OPTIONAL = (
    (
        "AVX512_BF16",
        re.compile(r"\tv(dpbf16ps|cvtne2?ps2bf16)"),
        re.compile("unsigned int|[pP]airs"),
    ),
    ("AVX512_VBMI", re.compile(r"\tv(perm([it]2)?b|pmultishiftqb)\b"), re.compile(r"\bpermute\(")),
)


def leaks(nm: str, library: str, isa: str) -> list[str]:
    """Weak and unique symbols outside the namespace of the ISA."""
    listing = subprocess.run(
        [nm, "--defined-only", library], check=True, capture_output=True, text=True
    ).stdout
    names = (line.split(maxsplit=2)[1:] for line in listing.splitlines() if line.count(" ") >= 2)
    inside = f"3sdx{len(isa)}{isa}"
    return sorted({name for kind, name in names if kind in "WVu" and inside not in name})


def strays(objdump: str, library: str) -> list[str]:
    """Functions with instructions of an optional set that may not have them."""
    listing = subprocess.run(
        [objdump, "-d", "-C", "--no-show-raw-insn", library],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found, function = set(), ""
    for line in listing.splitlines():
        if line.endswith(">:"):
            function = line.split("<", 1)[1][:-2]
            continue
        for name, instructions, may_have_them in OPTIONAL:
            if instructions.search(line) and not may_have_them.search(function):
                found.add(f"{function} has instructions of {name}")
    return sorted(found)


def main() -> int:
    """Prints what leaks."""
    nm, library, isa, *objdump = sys.argv[1:]
    found = [f"{name} is not in the namespace sdx::{isa}" for name in leaks(nm, library, isa)]
    for tool in objdump:
        found += strays(tool, library)
    for line in found:
        print(f"{library}: {line}", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
