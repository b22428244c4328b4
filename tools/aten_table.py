"""Writes docs/aten.md: how each ATen op of a torch graph is run.

python tools/aten_table.py           writes the table
python tools/aten_table.py --check   fails if the table is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from sardonyx.dynamo.decompositions import decompositions
from sardonyx.dynamo.table import supported

PAGE = Path(__file__).parent.parent / "docs" / "aten.md"
HEAD = """# ATen ops

How `sardonyx.train.wrap` and `torch.compile(backend="sardonyx")` run the ATen calls of a graph
(torch {version}). *Lowered* ops become nodes of the graph by the family's module in
`src/sardonyx/dynamo/aten/`; *decomposed* ops are taken apart by torch first; all others run in
torch, between sessions, and `report()` names them. A lowering may still reject a call (an
unsupported dtype, a size that must be known): the report then gives its reason. Lowered ops are
tested against eager torch with the samples of torch's OpInfo database, forward and backward
(`tests/dynamo/test_op_info.py`). Written by `tools/aten_table.py`.
"""


def core_ops() -> Iterator[str]:
    """The overloads that torch tags as core ATen."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if torch.Tag.core in op.tags:
                yield str(op)


def page() -> str:
    """The text of the page."""
    lowered = supported()
    decomposed = {str(op) for op in decompositions()}
    core = sorted(core_ops())
    lines = [HEAD.format(version=torch.__version__.partition("+")[0]), "## Core ATen", ""]
    lines += ["| op | runs by |", "|---|---|"]
    for op in core:
        how = "decomposed" if op in decomposed else "torch"
        how = f"lowered ({lowered[op]})" if op in lowered else how
        lines.append(f"| `{op.removeprefix('aten.')}` | {how} |")
    lines += ["", "## Other lowered ops", ""]
    lines += ["Backward ops, random ops and ops outside of the core set.", ""]
    lines += ["| op | family |", "|---|---|"]
    others = ((op, family) for op, family in lowered.items() if op not in core)
    lines += [f"| `{op.removeprefix('aten.')}` | {family} |" for op, family in others]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        if PAGE.read_text() != page():
            sys.exit(f"{PAGE.name} is out of date: run python tools/aten_table.py")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
