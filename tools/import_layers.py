"""Checks that imports between the packages of src/sardonyx follow the stages, and draws them.

tools/import_layers.py            # fails on an import that points upward
tools/import_layers.py --draw     # prints which package imports which
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent / "src" / "sardonyx"

# From the bottom up: a package may import those of lower lines, and never one of its own line or
# of a higher one. Imports inside functions and under TYPE_CHECKING count as well.
LAYERS: Final = (
    ("errors", "version"),
    ("base",),
    ("graph",),
    ("ops",),
    ("weights",),
    ("load",),
    ("passes",),
    ("autodiff", "save"),
    ("place",),
    ("schedule",),
    ("memory",),
    ("program",),
    ("providers", "custom_ops"),
    ("pack", "reports"),
    ("compile",),
    ("ort", "convert"),
    ("session",),
    ("capi", "preload", "models", "dynamo"),
    ("train", "quantization"),
    ("tools", "training", "arrow"),
    ("transformers", "ray", "spark", "dask"),
    ("sardonyx",),
    ("serve",),
    ("backend", "cli"),
    ("as_onnxruntime", "__main__"),
)
LEVELS: Final = {name: level for level, names in enumerate(LAYERS) for name in names}
NATIVE: Final = "_native"  # the C++ core, which every layer may use


def package_of(module: str) -> str:
    """The first name under `sardonyx`, or `sardonyx` for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "sardonyx"


def module_names() -> dict[str, Path]:
    """Every module of the package by its dotted name; the shadow of onnxruntime is not one."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        if "shadow" in path.parts:
            continue
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, modules: dict[str, Path]) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ours in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in full]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "sardonyx")


def cross_imports() -> Iterator[tuple[str, int, str, str]]:
    """File, line and both packages of every import from one package to another."""
    modules = module_names()
    for name, path in modules.items():
        source = package_of(name)
        for line, imported in imports_of(path, modules):
            target = package_of(imported)
            if target not in (source, NATIVE):
                yield str(path.relative_to(ROOT.parent.parent)), line, source, target


def drawing(edges: Counter[tuple[str, str]]) -> str:
    """One line per layer from the top down, with the packages that each one imports."""
    lines = []
    for names in reversed(LAYERS):
        for name in names:
            below = sorted((t for s, t in edges if s == name), key=lambda t: -LEVELS[t])
            lines.append(f"{name:<15} -> {' '.join(below)}".rstrip(" ->"))
    return "\n".join(lines)


def main() -> int:
    """Report the imports that point upward; exit code 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draw", action="store_true", help="print the graph of packages")
    wants_drawing = parser.parse_args().draw
    edges: Counter[tuple[str, str]] = Counter()
    wrong = []
    for path, line, source, target in cross_imports():
        edges[source, target] += 1
        unknown = {source, target} - LEVELS.keys()
        wrong += [f"{path}:{line}: {name} has no layer: add it to LAYERS" for name in unknown]
        if LEVELS.get(source, 0) <= LEVELS.get(target, 0):
            wrong.append(f"{path}:{line}: {source} imports {target}, which is not below it")
    if wants_drawing:
        print(drawing(edges))
    print("\n".join(wrong), file=sys.stderr)
    print(f"{edges.total()} imports between packages, {len(wrong)} upward", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
