"""Writes index.txt of ops/ and load/upgrade/: which module declares, or replaces, which op.

python tools/make_index.py                          # into src/sardonyx
python tools/make_index.py --native DIR --into DIR  # with the extension of a build, into a package

The files are not part of the repository: a build writes them, and tests where they are out of date.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"


def use_extension(folder: Path) -> None:
    """Make the extension of a build that of the package in src/."""
    (path,) = folder.glob("_native.*.so")
    loader = importlib.machinery.ExtensionFileLoader("sardonyx._native", str(path))
    spec = importlib.util.spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)


def write(package: Path) -> None:
    """Write both files into a package."""
    from sardonyx import ops
    from sardonyx.base import name_index
    from sardonyx.load import upgrade

    for folder, found in (("ops", ops.scan()), (os.path.join("load", "upgrade"), upgrade.scan())):
        name_index.write(str(package / folder), found)


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--native", type=Path, help="a folder with the extension")
    parser.add_argument("--into", type=Path, default=SOURCE / "sardonyx", help="a package's folder")
    options = parser.parse_args()
    sys.path.insert(0, str(SOURCE))
    if options.native is not None:
        use_extension(options.native)
    write(options.into)


if __name__ == "__main__":
    main()
