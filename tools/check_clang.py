#!/usr/bin/env python3
"""Checks that clang compiles the native code for other systems and CPUs, without building it.

    python tools/check_clang.py [TARGET...] [--jobs 2]

The compiler and the headers of every target are those of PyPI's `ziglang`. Files that need headers
of Python (native/bind) are not checked. It names each file that does not compile, and why.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = (
    *("x86_64-linux-gnu.2.28", "x86_64-linux-musl", "x86_64-macos", "x86_64-windows-gnu"),
    *("aarch64-linux-gnu.2.28", "aarch64-macos"),
)
# The best ISA of x86-64: its kernels have the most intrinsics (cmake/isa.cmake).
BEST = ("avx512vnni", "-march=x86_64_v4", "-mavx512vnni", "-mavx512bf16")
SYSTEMS = {"linux": ("linux", "posix"), "macos": ("macos", "posix"), "windows": ("windows",)}


def sources(target: str) -> list[Path]:
    """Return the files that are compiled for a target."""
    (system,) = (SYSTEMS[name] for name in SYSTEMS if name in target)
    return [
        path
        for path in sorted((ROOT / "native").rglob("*.cc"))
        if not {"bind", "tests"} & set(path.parts)
        and (path.parent.name != "os" or path.stem in system)
    ]


def errors(path: Path, target: str, folder: str) -> list[str]:
    """Return the errors of a file, for each ISA that is checked."""
    found: list[str] = []
    is_kernel = "kernels" in path.parts and path.stem != "registry"
    isas = [("base",), *([BEST] if "x86_64" in target and is_kernel else [])]
    cache = {"ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}
    for isa, *options in isas:
        command = [
            *(sys.executable, "-m", "ziglang", "c++", "-target", target, "-std=c++20", "-w"),
            *("-fsyntax-only", f"-I{ROOT / 'native'}", f"-I{folder}", f"-DSDX_ISA={isa}"),
            *(options + ["-fno-exceptions"] * is_kernel),
            str(path),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | cache
        )
        # Zig itself expects a file, which -fsyntax-only does not write.
        lines = [line for line in done.stderr.splitlines() if "error: " in line]
        found += [line for line in lines if "failed to rename" not in line]
    return found


def main() -> int:
    """Checks the targets of the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    n_failed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as threads:
        Path(folder, "isas.inc").write_text("ISA(base)\n")
        for target in arguments.targets:
            files = sources(target)
            found = list(threads.map(lambda path, to=target: errors(path, to, folder), files))
            n_bad = sum(map(bool, found))
            n_failed += n_bad
            print(f"{target}: {len(files) - n_bad} of {len(files)} files compile", flush=True)
            for path, lines in zip(files, found, strict=True):
                print(
                    *(f"  {path.relative_to(ROOT)}: {line}" for line in lines[:3]), sep="\n", end=""
                )
    return min(n_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
