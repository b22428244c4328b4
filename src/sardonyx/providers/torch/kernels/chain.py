"""Chains of elementwise ops as one generated Triton kernel.

Axes that all operands traverse contiguously are merged, so most chains are one- or two-dimensional.
A kernel is generated per instruction sequence and broadcast pattern; strides are arguments.
"""

from __future__ import annotations

import hashlib
import linecache
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.providers.torch.dtypes import TORCH, ours
from sardonyx.providers.torch.kernels import elementwise_math as maths
from sardonyx.providers.torch.kernels.chain_source import body
from sardonyx.providers.torch.kernels.launch import launch

if TYPE_CHECKING:
    from sardonyx.ops.elementwise.chain import Code

_MAX_AXES: Final = 4  # after merging; each outer axis costs a division per row
_MAX_PLANS: Final = 64  # per chain, then the cache is cleared
_ELEMENTS: Final = 1024  # per program: eight per thread of four warps


@frozen
class LaunchPlan:
    """The kernel and launch arguments of a chain for operands of given shapes and strides."""

    kernel: Any
    shape: tuple[int, ...]  # of the result
    strides: tuple[int, ...]  # of the result
    grid: tuple[int, int, int]
    numbers: tuple[int, ...]  # rows, columns, sizes of inner axes, strides
    tile: tuple[int, int]


class Chain:
    """A code (a sequence of instructions) with its kernels, one per broadcast pattern."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.dtype = TORCH[code[-1].dtype]
        self.plans: dict[tuple[Any, ...], LaunchPlan | None] = {}

    def __call__(self, *operands: Tensor) -> Tensor | None:
        """Return the result; None if there is no kernel for these operands."""
        key = tuple((x.dtype, x.shape, x.stride()) for x in operands)
        if key not in self.plans:
            if len(self.plans) >= _MAX_PLANS:
                self.plans.clear()
            self.plans[key] = self.plan(operands)
        plan = self.plans[key]
        return None if plan is None else self.run(plan, operands)

    def run(self, plan: LaunchPlan, operands: Sequence[Tensor]) -> Tensor:
        """Return the result, by a plan for operands of these types, shapes and strides."""
        y = torch.empty_strided(
            plan.shape, plan.strides, dtype=self.dtype, device=operands[0].device
        )
        if y.numel():
            launch(plan.kernel, plan.grid, (*operands, y, *plan.numbers), plan.tile, 4)
        return y

    def plan(self, operands: Sequence[Tensor]) -> LaunchPlan | None:
        """Return a plan for operands of these types, shapes and strides; None if not supported."""
        types = [d.name if (d := ours(x.dtype)) is not None else "" for x in operands]
        lines = body(self.code, types)
        shape = torch.broadcast_shapes(*(x.shape for x in operands))  # type: ignore[no-untyped-call]
        axis_order = _axis_order(operands, shape)
        sizes = [shape[i] for i in axis_order]
        strides = [_broadcast_strides(x, len(shape)) for x in operands]
        axes = _merge_axes(sizes, [[s[i] for i in axis_order] for s in strides])
        if lines is None or len(axes) > _MAX_AXES:
            return None
        kernel = _kernel(tuple(lines), len(operands), _pattern(axes, len(operands)))
        # The innermost axis is the columns, the others together the rows; tiles fill a program.
        n_rows, n_columns = math.prod(a[0] for a in axes[:-1]), axes[-1][0]
        columns = min(_ELEMENTS, 1 << max(0, n_columns - 1).bit_length())
        rows = max(1, min(_ELEMENTS // columns, 1 << max(0, n_rows - 1).bit_length()))
        grid = (-(-n_columns // columns), -(-n_rows // rows), 1)
        if grid[1] > 65535:  # CUDA's limit of this grid axis
            return None
        numbers = (n_rows, n_columns, *(a[0] for a in axes[1:-1]), *_strides(axes))
        # The result is dense, with the operands' axis order in memory (e.g. channels-last).
        y_strides = [0] * len(shape)
        step = 1
        for i in reversed(axis_order):
            y_strides[i] = step
            step *= max(1, shape[i])
        return LaunchPlan(kernel, tuple(shape), tuple(y_strides), grid, numbers, (rows, columns))


Axis = tuple[int, tuple[int, ...]]  # size, stride of each operand


def _axis_order(operands: Sequence[Tensor], shape: Sequence[int]) -> list[int]:
    """Return the axes from outermost to innermost in memory, as in the first full-size operand."""
    whole = [x for x in operands if x.shape == shape]
    if not whole or whole[0].is_contiguous():
        return list(range(len(shape)))
    strides = whole[0].stride()
    return sorted(range(len(shape)), key=lambda i: (-strides[i], i))


def _broadcast_strides(x: Tensor, rank: int) -> list[int]:
    """Return strides for the axes of the result: 0 where an operand is broadcast."""
    own = [0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
    return [0] * (rank - len(own)) + own


def _merge_axes(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[Axis]:
    """Return the axes, outermost first; adjacent axes contiguous in all operands are merged."""
    axes: list[Axis] = []
    for i, size in enumerate(sizes):
        if size == 1:
            continue
        steps = tuple(s[i] for s in strides)
        if axes and all(o == n * size for o, n in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    return axes or [(1, (0,) * len(strides))]


def _pattern(axes: Sequence[Axis], n: int) -> tuple[str, ...]:
    """Return per operand and axis: "0" broadcast, "1" contiguous (innermost only), "s" strided."""
    last = len(axes) - 1
    return tuple(
        "".join(
            "0" if a[1][i] == 0 else "1" if k == last and a[1][i] == 1 else "s"
            for k, a in enumerate(axes)
        )
        for i in range(n)
    )


def _strides(axes: Sequence[Axis]) -> list[int]:
    """Return the strides of axes marked "s", in the order of the pattern."""
    last = len(axes) - 1
    n = len(axes[0][1])
    return [
        a[1][i] for i in range(n) for k, a in enumerate(axes)
        if a[1][i] != 0 and not (k == last and a[1][i] == 1)
    ]  # fmt: skip


_KERNELS: Final[dict[tuple[Any, ...], Any]] = {}


def _kernel(lines: tuple[str, ...], n: int, pattern: tuple[str, ...]) -> Any:
    """Return the kernel for a body and a pattern, cached."""
    key = (lines, n, pattern)
    if key not in _KERNELS:
        _KERNELS[key] = _compile(_kernel_source(lines, n, pattern))
    return _KERNELS[key]


def _kernel_source(lines: tuple[str, ...], n: int, pattern: tuple[str, ...]) -> str:
    """Return the source of a kernel: program (i, j) computes tile i of columns, tile j of rows."""
    rank = len(pattern[0])
    names = [f"p{i}" for i in range(n)] + ["py", "n_rows", "n_columns"]
    names += [f"size{k}" for k in range(1, rank - 1)]
    names += [f"stride{i}_{k}" for i in range(n) for k in range(rank) if pattern[i][k] == "s"]
    constants = [f"{name}: tl.constexpr" for name in ("rows", "columns", "overlap")]
    text = [
        "@triton.jit",
        f"def chain({', '.join([*names, *constants])}):",
        "row = tl.program_id(1) * rows + tl.arange(0, rows)[:, None]",
        "column = tl.program_id(0) * columns + tl.arange(0, columns)[None, :]",
        "ok = (row < n_rows) & (column < n_columns)",
        "rest = row.to(tl.int64)",
        "wait_for_previous(overlap)",
    ]
    # The indices of the outer axes, from the row number.
    for k in range(rank - 2, 0, -1):
        text += [f"at{k} = rest % size{k}", f"rest = rest // size{k}"]
    text += ["at0 = rest", f"at{rank - 1} = column"]
    for i, accesses in enumerate(pattern):
        terms = [
            f"at{k}" if access == "1" else f"at{k} * stride{i}_{k}"
            for k, access in enumerate(accesses) if access != "0"
        ]  # fmt: skip
        if terms:
            text.append(f"x{i} = tl.load(p{i} + {' + '.join(terms)}, ok)")
        else:
            text.append(f"x{i} = tl.load(p{i} + row * 0 + column * 0)")
    text += lines
    last = f"v{_last_value(lines)}"
    # Adding zeros broadcasts a result of scalars to the tile.
    text.append(f"y = {last} + tl.zeros([rows, columns], {last}.dtype)")
    text.append(
        "tl.store(py + row.to(tl.int64) * n_columns + column, y.to(py.dtype.element_ty), ok)"
    )
    return "\n".join([*text[:2], *("    " + line for line in text[2:])]) + "\n"


def _last_value(lines: tuple[str, ...]) -> int:
    """Return the number of the last value v.. that the lines compute."""
    return sum(1 for line in lines if line.startswith("v")) - 1


def _compile(source: str) -> Any:
    """Return the function of a source. Triton reads the source by inspect, hence linecache."""
    import triton
    import triton.language as tl

    from sardonyx.providers.torch.kernels.intrinsics import wait_for_previous

    name = f"<chain {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    functions = {k: v for k, v in vars(maths).items() if not k.startswith("_")}
    namespace: dict[str, Any] = {**functions, "triton": triton, "tl": tl}
    namespace["wait_for_previous"] = wait_for_previous
    namespace["__name__"] = "sardonyx.providers.torch.kernels.chain"
    exec(compile(source, name, "exec"), namespace)
    return namespace["chain"]
