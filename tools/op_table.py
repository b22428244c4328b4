#!/usr/bin/env python3
"""Writes docs/ops.md: every op, the element types it takes, and which of them run natively.

    op_table.py            write the page
    op_table.py --check    write nothing, and fail if the page is not what would be written

For each op and each type of its first input the rows of tests/cases are compiled, with inputs of
that type in the place of theirs: once with the other inputs as constants, as most models have them,
and once with all of them fed.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import sardonyx  # noqa: E402  # needs the path above
from sardonyx.graph.dtype import ALL, DType, by_numpy  # noqa: E402
from sardonyx.graph.op import GRADIENT, INTERNAL, Op, allowed  # noqa: E402
from sardonyx.load.upgrade import replaced  # noqa: E402
from sardonyx.ops import all_ops  # noqa: E402
from sardonyx.providers.torch.claim import SHAPE_OPS  # noqa: E402
from sardonyx.providers.torch.control import KNOWN  # noqa: E402
from sardonyx.providers.torch.index import KERNELS as FUNCTIONS  # noqa: E402
from tests.oracle import feeds_of, input_names, model_of  # noqa: E402
from tests.rows import Row  # noqa: E402
from tests.test_ops import ROWS  # noqa: E402

PAGE = ROOT / "docs" / "ops.md"
TRIED = 6  # rows of an op, for each type
COLUMNS = (
    "f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool",
    "str", "c64",
)  # fmt: skip
NATIVE, PARTLY, PYTHON, NONE = "●", "◐", "○", ""
HEAD = f"""# Ops

Every op that models may hold, by domain, with the element types of its first input. Providers:
`cpu` (native kernels) and `reference` (numpy, which runs whatever has no kernel).
Made by `python tools/op_table.py`.

| mark | |
|---|---|
| {NATIVE} | runs natively |
| {PARTLY} | natively in some forms (constant weights, some attributes), else in numpy |
| {PYTHON} | runs in numpy |
| | the op does not take the type |

`other` sums up the types without a column: floats of 8 bits and fewer, integers of fewer than 8.
`torch` has a mark where the torch provider has a function for the op, if torch has its type; other
ops run there as the ops that they are made of, or on the CPU beside it:
`sardonyx info --provider torch --why` tells what a model does.
Ops over sequences, maps and optionals have one mark.
"""


def main() -> int:
    """Writes or checks the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    text = page()
    if arguments.check:
        is_same = PAGE.exists() and PAGE.read_text() == text
        print("docs/ops.md is current" if is_same else "docs/ops.md is old: run tools/op_table.py")
        return 0 if is_same else 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def page() -> str:
    """The whole page."""
    sardonyx.set_default_logger_severity(4)
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in ROWS:
        if row.fails is None and row.opset is None:
            rows.setdefault((row.domain, row.op), []).append(row)
    domains: dict[str, list[Op]] = {}
    for op in all_ops():
        if op.domain not in (INTERNAL, GRADIENT):
            domains.setdefault(op.domain, []).append(op)
    parts = [HEAD]
    for domain, ops in domains.items():
        lines = [[*_line(op, rows.get(op.key, [])), _by_torch(op)] for op in _shown(ops)]
        parts.append(_section(domain or "ai.onnx", lines))
        if others := replaced(domain):
            parts.append(_wrapped(f"Become others when they are loaded: {', '.join(others)}."))
    return "\n".join(parts)


def _shown(ops: list[Op]) -> Iterator[Op]:
    """The ops in the order of their names, with progress."""
    began = time.monotonic()
    for done, op in enumerate(sorted(ops, key=lambda o: o.name)):
        if sys.stderr.isatty():
            print(f"\r{done}/{len(ops)} {time.monotonic() - began:.0f} s {op!s:<40}", end="",
                  file=sys.stderr)  # fmt: skip
        yield op


def _section(title: str, lines: list[list[str]]) -> str:
    columns = ["op", *COLUMNS, "other", "torch"]
    rule = ["---", *[":-:"] * (len(columns) - 1)]
    table = [columns, rule, *lines]
    return f"## {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in table) + "\n"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 100)) + "\n"


def _line(op: Op, rows: list[Row]) -> list[str]:
    """The marks of an op by type."""
    slot = op.inputs[0] if op.inputs else None
    if slot is None or not slot.type:
        marks = [_mark(_tries(rows))]
        return [op.name, marks[0], *[NONE] * len(COLUMNS)]
    taken = allowed(op, slot)
    found = {d.name: _mark(_tries(_variants(op, rows, d))) for d in sorted(taken, key=str)}
    others = [m for n, m in found.items() if n not in COLUMNS]
    return [op.name, *(found.get(n, NONE) for n in COLUMNS), _summed(others)]


def _by_torch(op: Op) -> str:
    return NATIVE if op.key in FUNCTIONS or op.key in SHAPE_OPS or op.key in KNOWN else NONE


def _summed(marks: list[str]) -> str:
    if not marks:
        return NONE
    return marks[0] if len(set(marks)) == 1 else PARTLY


def _mark(tries: list[bool]) -> str:
    if not tries or not any(tries):
        return PYTHON
    return NATIVE if all(tries) else PARTLY


def _variants(op: Op, rows: list[Row], dtype: DType) -> list[Row]:
    """Rows of the op with inputs of a type: those that there are, else others cast to it."""
    own = [r for r in rows if r.inputs and _dtype(r.inputs[0]) is dtype]
    if own:
        return own
    made = []
    for row in rows:
        first = op.inputs[0].type
        slots = [op.input_slot(i).type for i in range(len(row.inputs))]
        cast = tuple(
            _cast(x, dtype) if s == first else x for x, s in zip(row.inputs, slots, strict=True)
        )
        if all(x is not None or y is None for x, y in zip(cast, row.inputs, strict=True)):
            made.append(replace(row, inputs=cast))
    return made


def _dtype(value: Any) -> DType | None:
    return by_numpy(value.dtype) if isinstance(value, np.ndarray) else None


def _cast(value: Any, dtype: DType) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
        return None
    with np.errstate(all="ignore"):
        small = np.nan_to_num(value.astype(np.float32, copy=False))
        return np.clip(small, 0, 1).astype(dtype.np) if dtype in ALL else None


def _tries(rows: list[Row]) -> list[bool]:
    """Whether each of some rows runs without a Python step; those that do not load are left out."""
    found: list[bool] = []
    step = max(1, len(rows) // TRIED)
    for row in rows[::step][:TRIED]:
        names = [n for n in input_names(row) if n]
        for constants in {tuple(names[1:]), ()}:
            held = [n for n in constants if isinstance(feeds_of(row)[n], np.ndarray)]
            try:
                model = model_of(row, constants=held)
                session = sardonyx.InferenceSession(model.SerializeToString())
            except Exception:  # a row that was not made for this type
                continue
            found.append(session._compiled.program.python_steps == 0)
    return found


if __name__ == "__main__":
    sys.exit(main())
