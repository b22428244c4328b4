"""Products of few rows with weights of 2 or 4 bits, on packed weights and fused with what is near.

Float32 rows are taken as 22 bits and a sign of the largest of 32 neighbours: about as exact as
float32 sums are. What is not finite makes its whole row not finite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from sardonyx.base.records import frozen
from sardonyx.providers.torch.kernels import n_processors
from sardonyx.providers.torch.kernels.fixed_point import UNIT, WORDS
from sardonyx.providers.torch.kernels.launch import launch
from sardonyx.providers.torch.kernels.nbits_gemv import digits_kernel, rows_kernel

if TYPE_CHECKING:
    from sardonyx.ops.nbits.internal import Form

MOST_ROWS: Final = 4  # of x; more are for matrix units
_CHUNK: Final = 1 << 24  # weights that are packed at a time
_DEFAULT, _PACKED, _FLOAT = 0, 1, 2  # kinds of zero points


@frozen(eq=False)
class Weights:
    """Weights [n, k] of 4 bits in units of 32, whole ones, as the kernels read them."""

    q: Tensor  # int32 [n, units * 4]
    scale: Tensor  # [n, blocks]
    zero: Tensor | None  # uint8 [n, ceil(blocks / 2)], two to a byte; or floats [n, blocks]
    default: int  # the zero point where none is given
    k: int
    per: int  # units of a block

    @property
    def n(self) -> int:
        """Columns of the product."""
        return self.q.shape[0]

    @property
    def plan(self) -> tuple[int, int, int, int]:
        """What the kernels are compiled for."""
        kind = (
            _DEFAULT if self.zero is None else _FLOAT if self.zero.is_floating_point() else _PACKED
        )
        return self.q.shape[1] // 4, self.per, kind, self.default


@frozen(eq=False)
class Digits:
    """Rows that are a product's x, as `digits.py` describes them."""

    words: Tensor  # int32 [rows, 26 * units]
    value: Tensor  # floats [rows, k], before a norm
    squares: Tensor | None = None  # sums of squares of units [rows, units] for a norm, and
    eps: float = 0.0  # what is added to their mean


Norm = tuple[Tensor, float]  # gain, epsilon


def fits(form: Form, scale: tuple[int, ...]) -> bool:
    """Whether `pack` takes weights of this form with scales of this shape."""
    if form.bits not in (2, 4) or form.k < 1 or form.n < 1 or form.k > 32768:
        return False
    is_one_block = form.n_blocks <= 1 or form.grid(scale, "scales").block_stride == 0
    return is_one_block or form.block % UNIT == 0


def pack(q: Tensor, scale: Tensor, zero: Tensor | None, form: Form, default: int = 0) -> Weights:
    """Weights in the kernels' order. q and zero hold one number a byte, or bytes of whole blocks.

    They stay where they are: on the device, in chunks.
    """
    grid = form.grid(tuple(scale.shape), "scales")
    per_column = grid.block_stride == 0
    n_units = -(-form.k // UNIT)
    blocks = 1 if per_column else form.n_blocks
    shift = 1 << (form.bits - 1) if form.is_signed else 0
    words = torch.empty((form.n, n_units * 4), dtype=torch.int32, device=q.device)
    step = max(1, _CHUNK // (n_units * UNIT))
    for first in range(0, form.n, step):
        part = slice(first, min(first + step, form.n))
        words[part] = _words(_fields(q, form, part, shift), n_units)
    index = torch.arange(form.n, device=q.device)[:, None] * grid.column_stride
    index = index + torch.arange(blocks, device=q.device) * grid.block_stride
    scales = scale.reshape(-1)[index].contiguous()
    zeros = None if zero is None else _zeros(zero, form, blocks, shift)
    per = n_units if per_column else form.block // UNIT
    return Weights(words, scales, zeros, default + shift, form.k, max(per, 1))


def _fields(q: Tensor, form: Form, part: slice, shift: int) -> Tensor:
    """Rows [part, k] of the weights, one number a byte."""
    if form.is_k_major:
        rows = q[:, part].t()
    elif form.is_blocked:
        rows = _unpacked(q[part].reshape(part.stop - part.start, -1), form.bits)[:, : form.k]
    else:
        rows = q[part]
    return _centred(rows, form.bits, shift)


def _centred(fields: Tensor, bits: int, shift: int) -> Tensor:
    """Fields from 0 on: signed ones moved up."""
    return ((fields.view(torch.uint8) + shift) if shift else fields) & ((1 << bits) - 1)


def _unpacked(raw: Tensor, bits: int) -> Tensor:
    if bits == 8:
        return raw
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=raw.device)
    return ((raw[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def _words(fields: Tensor, n_units: int) -> Tensor:
    """Eight to a word: four in the low halves of bytes, the next four in the high ones."""
    missing = n_units * UNIT - fields.shape[1]
    if missing:
        fields = torch.nn.functional.pad(fields, (0, missing))
    eights = fields.reshape(fields.shape[0], n_units * 4, 2, 4)
    return (eights[:, :, 0] | (eights[:, :, 1] << 4)).contiguous().view(torch.int32)[..., 0]


def _zeros(zero: Tensor, form: Form, blocks: int, shift: int) -> Tensor:
    """Zero points [n, blocks] as the kernels read them."""
    is_float = zero.is_floating_point()
    grid = form.zero_grid(tuple(zero.shape), not is_float)
    is_bytes = form.is_blocked and not is_float
    flat = _unpacked(zero.reshape(-1), form.bits) if is_bytes else zero.reshape(-1)
    index = torch.arange(form.n, device=zero.device)[:, None] * grid.column_stride
    picked = flat[index + torch.arange(blocks, device=zero.device) * grid.block_stride]
    if is_float:
        return picked.float().contiguous()
    picked = _centred(picked, form.bits, shift)
    if blocks % 2:
        picked = torch.nn.functional.pad(picked, (0, 1))
    return (picked[:, 0::2] | (picked[:, 1::2] << 4)).contiguous()


@frozen
class Tiling:
    """How a kernel cuts its work."""

    shape: tuple[int, int, int]  # units of a tile, tiles along a row, rows of a tile
    n_warps: int
    per_processor: int  # programs


def tiling(n_units: int, has_digits: bool, makes_digits: bool) -> Tiling:
    """The tiles for rows of so many units, and for x that comes as digits or makes some."""
    if n_units <= 32 * 4:
        if not has_digits and 32 < n_units <= 64:  # digits are made once for the whole row
            return Tiling((64, 1, 8 if makes_digits else 16), 8, 2)
        return Tiling((32, -(-n_units // 32), 8), 4, 2 if makes_digits else 3)
    units = 256 if n_units <= 1024 else 512
    return Tiling((units, -(-n_units // units), 4), units // 32, 2)


def rows_product(
    x: Tensor | Digits,
    weights: Weights,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    leads: bool = False,
) -> Tensor:
    """x [.., k] of up to MOST_ROWS rows times the weights: [.., n].

    With `norm` x is over its root mean square times the gain first; `gated`, the result is silu
    of the first half of the columns times the second; then the residual is added. `leads` says
    that the next kernel is one of ours, which may then begin early.
    """
    return _run(x, weights, (norm, bias, residual, gated), False, None, leads).value


def rows_digits(
    x: Tensor | Digits,
    weights: Weights,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gated: bool = False,
    then: Norm | None = None,
    leads: bool = False,
) -> Digits:
    """`rows_product` with the digits that a product after it reads, after the norm `then`."""
    return _run(x, weights, (norm, bias, residual, gated), True, then, leads)


def digits(x: Tensor, norm: Norm | None = None, *, leads: bool = False) -> Digits:
    """The digits of rows [.., k], each over its root mean square times a gain if asked."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    n_rows, k = flat.shape
    n_units = -(-k // UNIT)
    words = torch.empty((n_rows, WORDS * n_units), dtype=torch.int32, device=x.device)
    gain, eps = norm if norm is not None else (None, 0.0)
    units = min(32, 1 << (n_units - 1).bit_length())
    if n_rows:
        constants = (k, n_units, units)
        launch(digits_kernel, (n_rows, 1, 1), (flat, gain, words, eps), constants, 4, leads)
    return Digits(words, x)


Fused = tuple[Norm | None, Tensor | None, Tensor | None, bool]  # norm, bias, residual, gated


def _run(
    x: Tensor | Digits,
    weights: Weights,
    fused: Fused,
    makes_digits: bool,
    then: Norm | None,
    leads: bool,
) -> Digits:
    norm, bias, residual, gated = fused
    value = x.value if isinstance(x, Digits) else x
    n_rows = value.numel() // weights.k
    n = weights.n // 2 if gated else weights.n
    if n_rows > 1 and isinstance(x, Tensor):
        x, norm = digits(x, norm, leads=True), None
    y = torch.empty((*value.shape[:-1], n), dtype=value.dtype, device=value.device)
    made = _made(y, n_rows, n, makes_digits, then)
    if not y.numel():
        return made
    how = tiling(weights.plan[0], isinstance(x, Digits), makes_digits)
    rows = how.shape[2]
    group = max(1, UNIT // rows) if makes_digits else 1
    programs = min(-(-n // (rows * group)), how.per_processor * n_processors(value.device))
    source = x.words if isinstance(x, Digits) else x.contiguous()
    gain, eps = norm if norm is not None else (None, 0.0)
    if isinstance(x, Digits) and x.squares is not None:
        gain, eps = x.squares, x.eps
    given = (
        source, weights.q, weights.scale, weights.zero, gain, bias,
        None if residual is None else residual.contiguous(), y,
        made.words if makes_digits else None, None if then is None else then[0], made.squares,
        n, 1, eps,
    )  # fmt: skip
    teams = min(max(1, how.n_warps * UNIT // how.shape[0]), rows)
    constants = (
        weights.k, (*weights.plan, teams), how.shape, n_rows, group, isinstance(x, Digits), gated
    )  # fmt: skip
    launch(rows_kernel, (programs, 1, 1), given, constants, how.n_warps, leads)
    return made


def _made(y: Tensor, n_rows: int, n: int, makes_digits: bool, then: Norm | None) -> Digits:
    if not makes_digits:
        return Digits(y, y)
    n_units = -(-n // UNIT)
    words = torch.empty((n_rows, WORDS * n_units), dtype=torch.int32, device=y.device)
    if then is None:
        return Digits(words, y)
    squares = torch.empty((n_rows, n_units), dtype=torch.float32, device=y.device)
    return Digits(words, y, squares, then[1])
