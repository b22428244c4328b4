"""Chains of elementwise ops as one kernel each, generated from their code."""

from __future__ import annotations

import hashlib
import linecache
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

MOST_AXES: Final = 4  # after those that lie in a row are one
_MOST_PLANS: Final = 64  # of a chain that are kept
_ELEMENTS: Final = 1024  # of a program


@frozen
class Plan:
    """How a chain runs on operands of given shapes and strides."""

    kernel: Any
    shape: tuple[int, ...]  # of the result, and
    strides: tuple[int, ...]  # its strides
    grid: tuple[int, int, int]
    numbers: tuple[int, ...]  # rows, columns, sizes of inner axes, strides
    tile: tuple[int, int]


class Chain:
    """A code as kernels, one for each way in which its operands broadcast."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.dtype = TORCH[code[-1].dtype]
        self.plans: dict[tuple[Any, ...], Plan | None] = {}

    def __call__(self, *operands: Tensor) -> Tensor | None:
        """The result; None where there is no kernel for these operands."""
        key = tuple((x.dtype, x.shape, x.stride()) for x in operands)
        if key not in self.plans:
            if len(self.plans) >= _MOST_PLANS:
                self.plans.clear()
            self.plans[key] = self.plan(operands)
        plan = self.plans[key]
        return None if plan is None else self.run(plan, operands)

    def run(self, plan: Plan, operands: Sequence[Tensor]) -> Tensor:
        """The result by a plan made for operands like these."""
        y = torch.empty_strided(
            plan.shape, plan.strides, dtype=self.dtype, device=operands[0].device
        )
        if y.numel():
            launch(plan.kernel, plan.grid, (*operands, y, *plan.numbers), plan.tile, 4)
        return y

    def plan(self, operands: Sequence[Tensor]) -> Plan | None:
        """How to run on operands of these types, shapes and strides; None if it cannot be done."""
        types = [d.name if (d := ours(x.dtype)) is not None else "" for x in operands]
        lines = body(self.code, types)
        shape = torch.broadcast_shapes(*(x.shape for x in operands))  # type: ignore[no-untyped-call]
        order = _order(operands, shape)
        sizes = [shape[i] for i in order]
        strides = [_spread(x, len(shape)) for x in operands]
        axes = _merged(sizes, [[s[i] for i in order] for s in strides])
        if lines is None or len(axes) > MOST_AXES:
            return None
        kernel = _kernel(tuple(lines), len(operands), _pattern(axes, len(operands)))
        if len(axes) == 1:
            n_rows, n_columns = 1, axes[0][0]
        else:
            n_rows, n_columns = _product(a[0] for a in axes[:-1]), axes[-1][0]
        columns = min(_ELEMENTS, 1 << max(0, n_columns - 1).bit_length())
        rows = max(1, min(_ELEMENTS // columns, 1 << max(0, n_rows - 1).bit_length()))
        grid = (-(-n_columns // columns), -(-n_rows // rows), 1)
        if grid[1] > 65535:  # the most that this axis of a grid takes
            return None
        numbers = (n_rows, n_columns, *(a[0] for a in axes[1:-1]), *_strides(axes))
        y_strides = [0] * len(shape)
        step = 1
        for i in reversed(order):
            y_strides[i] = step
            step *= max(1, shape[i])
        return Plan(kernel, tuple(shape), tuple(y_strides), grid, numbers, (rows, columns))


Axis = tuple[int, tuple[int, ...]]  # size, stride of each operand


def _product(sizes: Any) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _order(operands: Sequence[Tensor], shape: Sequence[int]) -> list[int]:
    """The axes from the outermost in memory to the innermost, as the largest operand has them."""
    whole = [x for x in operands if x.shape == shape]
    if not whole or whole[0].is_contiguous():
        return list(range(len(shape)))
    strides = whole[0].stride()
    return sorted(range(len(shape)), key=lambda i: (-strides[i], i))


def _spread(x: Tensor, rank: int) -> list[int]:
    """Strides for the axes of the result: 0 where an operand is the same along one."""
    own = [0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
    return [0] * (rank - len(own)) + own


def _merged(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> list[Axis]:
    """The axes, outermost first; two that every operand walks as one are one."""
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
    """For each operand how it walks each axis: not, one by one (the innermost), or by a stride."""
    last = len(axes) - 1
    return tuple(
        "".join(
            "0" if a[1][i] == 0 else "1" if k == last and a[1][i] == 1 else "s"
            for k, a in enumerate(axes)
        )
        for i in range(n)
    )


def _strides(axes: Sequence[Axis]) -> list[int]:
    """The strides that are arguments, in the order of the pattern."""
    last = len(axes) - 1
    n = len(axes[0][1])
    return [
        a[1][i] for i in range(n) for k, a in enumerate(axes)
        if a[1][i] != 0 and not (k == last and a[1][i] == 1)
    ]  # fmt: skip


_KERNELS: Final[dict[tuple[Any, ...], Any]] = {}


def _kernel(lines: tuple[str, ...], n: int, pattern: tuple[str, ...]) -> Any:
    """The kernel for a body and a pattern, made once."""
    key = (lines, n, pattern)
    if key not in _KERNELS:
        _KERNELS[key] = _compiled(_source(lines, n, pattern))
    return _KERNELS[key]


def _source(lines: tuple[str, ...], n: int, pattern: tuple[str, ...]) -> str:
    """The text of a kernel: program (i, j) takes columns from i on and rows from j on."""
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
        "wait_before(overlap)",
    ]
    for k in range(rank - 2, 0, -1):
        text += [f"at{k} = rest % size{k}", f"rest = rest // size{k}"]
    text += ["at0 = rest", f"at{rank - 1} = column"]
    for i, walks in enumerate(pattern):
        parts = [
            f"at{k}" if walk == "1" else f"at{k} * stride{i}_{k}"
            for k, walk in enumerate(walks) if walk != "0"
        ]  # fmt: skip
        if parts:
            text.append(f"x{i} = tl.load(p{i} + {' + '.join(parts)}, ok)")
        else:
            text.append(f"x{i} = tl.load(p{i} + row * 0 + column * 0)")
    text += lines
    text.append(f"y = v{_last(lines)} + tl.zeros([rows, columns], v{_last(lines)}.dtype)")
    text.append(
        "tl.store(py + row.to(tl.int64) * n_columns + column, y.to(py.dtype.element_ty), ok)"
    )
    return "\n".join([*text[:2], *("    " + line for line in text[2:])]) + "\n"


def _last(lines: tuple[str, ...]) -> int:
    return sum(1 for line in lines if line.startswith("v")) - 1


def _compiled(source: str) -> Any:
    """The function of a source, which Triton reads from the cache of lines."""
    import triton
    import triton.language as tl

    from sardonyx.providers.torch.kernels.intrinsics import wait_before

    name = f"<chain {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    known = {k: v for k, v in vars(maths).items() if not k.startswith("_")}
    space: dict[str, Any] = {**known, "triton": triton, "tl": tl, "wait_before": wait_before}
    space["__name__"] = "sardonyx.providers.torch.kernels.chain"
    exec(compile(source, name, "exec"), space)
    return space["chain"]
