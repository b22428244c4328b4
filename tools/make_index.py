"""Writes src/sardonyx/ops/index.py: which module declares which op.

python tools/make_index.py           # writes it
python tools/make_index.py --check   # fails if it is not as this would write it
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INDEX = ROOT / "src" / "sardonyx" / "ops" / "index.py"
HEAD = '''"""Which module declares which op: a model imports only the modules that it uses.

Written by tools/make_index.py.
"""

from __future__ import annotations

from typing import Final

from sardonyx.graph.op import GRADIENT, INTERNAL, MICROSOFT, ML, ONNX, PREVIEW, TRAINING

_MODULES: Final = {
'''
TAIL = """}

MODULES: Final[dict[str, list[tuple[str, str]]]] = {}
FAMILIES: Final[dict[str, list[tuple[str, str]]]] = {}  # a family is a module or folder of ops/
for (_domain, _module), _names in _MODULES.items():
    _keys = [(_domain, n) for n in _names.split()]
    MODULES.setdefault(_module, []).extend(_keys)
    FAMILIES.setdefault(_module.partition(".")[0], []).extend(_keys)
"""


def names() -> list[str]:
    """The modules below sardonyx.ops, without those of gradients, which need training."""
    import sardonyx.ops

    found = pkgutil.walk_packages(sardonyx.ops.__path__)
    paths: list[str] = []
    for module in found:
        paths.append(module.name)
        if module.ispkg:
            folder = str(Path(sardonyx.ops.__file__).parent / module.name)
            paths += [f"{module.name}.{m.name}" for m in pkgutil.iter_modules([folder])]
    return sorted({p for p in paths if not p.endswith(".gradient")})


def text() -> str:
    """The index as it should be."""
    from sardonyx.graph import op as schema

    domains = ("ONNX", "ML", "MICROSOFT", "PREVIEW", "TRAINING", "GRADIENT", "INTERNAL")
    named = {getattr(schema, d): d for d in domains}
    lines = []
    for name in names():
        ops = getattr(importlib.import_module(f"sardonyx.ops.{name}"), "OPS", ())
        by_domain: dict[str, list[str]] = {}
        for op in ops:
            by_domain.setdefault(op.domain, []).append(op.name)
        for domain, listed in sorted(by_domain.items()):
            lines.append(f'    ({named[domain]}, "{name}"): {wrapped(sorted(listed))},\n')
    made = HEAD + "".join(lines) + TAIL
    command = ["ruff", "format", "-q", "--stdin-filename", str(INDEX), "-"]
    done = subprocess.run(command, input=made, capture_output=True, text=True, check=True)
    return done.stdout


def wrapped(words: list[str], width: int = 84) -> str:
    """Words as string literals of limited length."""
    rows = [""]
    for word in words:
        if len(rows[-1]) + len(word) > width:
            rows.append("")
        rows[-1] += f"{word} "
    rows[-1] = rows[-1].rstrip()
    if len(rows) == 1 and len(rows[0]) <= 60:
        return f'"{rows[0]}"'
    return "(" + "\n".join(f'"{row}"' for row in rows) + ")"


def main() -> int:
    """Write the index, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    made = text()
    if not parser.parse_args().check:
        INDEX.write_text(made)
        return 0
    if INDEX.read_text() == made:
        return 0
    print(f"{INDEX.relative_to(ROOT)} is out of date: run python tools/make_index.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
