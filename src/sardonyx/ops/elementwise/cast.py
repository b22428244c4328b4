"""Cast, CastLike and BitCast: conversions between element types."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from sardonyx.errors import InvalidGraph, RuntimeException, ShapeError
from sardonyx.graph.dim import Dim, Shape, Size, is_equal, least
from sardonyx.graph.dtype import ALL, BOOL, COMPLEX, I64, STRING, DType, by_name, by_numpy, by_onnx
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Op, required
from sardonyx.ops.arrays import Array
from sardonyx.ops.sizes import STORED

_REAL: Final = ALL - COMPLEX
_E8M0: Final = by_name("f8e8m0")
_LARGEST: Final = {  # largest finite numbers, to which saturation clamps
    "f8e4m3fn": np.float32(448),
    "f8e4m3fnuz": np.float32(240),
    "f8e5m2": np.float32(57344),
    "f8e5m2fnuz": np.float32(57344),
}
_ROUND_MODES: Final = (b"up", b"down", b"nearest")


def convert(x: Array, to: DType, saturate: bool = True, round_mode: bytes = b"up") -> Array:
    """Convert to another type by ONNX's rules for Cast."""
    source = by_numpy(x.dtype)
    if source is to:
        return np.array(x, to.np)
    with np.errstate(all="ignore"):
        if to is STRING:
            return _each(_text_of(source), x, np.dtype(object))
        if source is STRING:
            return _from_strings(x, to, saturate, round_mode)
        x = _plain(x)
        if to is BOOL:
            return np.asarray(x != 0)
        if to.is_integer:
            return _to_ints(x, to)
        return _to_floats(x, to, saturate, round_mode)


def _plain(x: Array) -> Array:
    """Return the same numbers in a built-in numpy type (ml_dtypes types are widened)."""
    dtype = by_numpy(x.dtype)
    if dtype is None or x.dtype.isbuiltin == 1:
        return x
    return x.astype(np.float32 if dtype.is_float else np.int8 if dtype.kind == "int" else np.uint8)


def _each(function: Callable[[Any], Any], x: Array, dtype: np.dtype[Any]) -> Array:
    out = np.empty(x.shape, dtype)
    out.reshape(-1)[:] = [function(v) for v in x.reshape(-1).tolist()]
    return out


def _to_ints(x: Array, to: DType) -> Array:
    if to.bits >= 8:
        return x.astype(to.np)
    # The high bits are dropped, and the rest is read in two's complement.
    whole = x if x.dtype.kind in "iu" else x.astype(np.int64)
    low = (whole & whole.dtype.type((1 << to.bits) - 1)).astype(np.int8)
    if to.kind == "int":
        sign = np.int8(1 << (to.bits - 1))
        low = (low ^ sign) - sign
    return low.astype(to.np)


def _to_floats(x: Array, to: DType, saturate: bool, round_mode: bytes) -> Array:
    if to is _E8M0:
        return _to_powers_of_two(x, saturate, round_mode)
    if to.bits >= 32 or (to.np == np.float16 and x.dtype.kind == "f"):
        return x.astype(to.np)
    x = _to_odd(x)
    # Without saturation, ml_dtypes gives infinity, or NaN in the types that have none.
    if to.bits == 8 and saturate:
        x = np.clip(x, -_LARGEST[to.name], _LARGEST[to.name])
    return x.astype(to.np)


def _to_odd(x: Array) -> Array:
    """Round to float32 by round-to-odd, so that a second rounding to a narrower type is correct.

    Two roundings to nearest are wrong when the first result is exactly half way between two numbers
    of the narrower type and the exact number is not.
    """
    if x.dtype == np.float32:
        return x
    exact = x.astype(np.float64)
    rounded = exact.astype(np.float32)
    bits = rounded.view(np.int32)
    back = rounded.astype(np.float64)
    even = (bits & 1) == 0
    # Incrementing the bits moves to the next float away from zero.
    step = np.where(np.abs(back) < np.abs(exact), 1, -1).astype(np.int32)
    wrong = even & (back != exact) & np.isfinite(rounded)
    return np.where(wrong, bits + step, bits).astype(np.int32).view(np.float32)


def _to_powers_of_two(x: Array, saturate: bool, round_mode: bytes) -> Array:
    """Convert to float8e8m0: only an exponent, with bias 127; no zero, no sign, NaN is 255."""
    mantissa, exponent = np.frexp(x.astype(np.float64))  # mantissa in [0.5, 1)
    # 2**(exponent - 1) <= x < 2**exponent; the mode decides which power a number between gets.
    limit = {b"up": 0.5, b"down": 1.0, b"nearest": 0.75}[round_mode]
    up = mantissa >= limit if round_mode == b"nearest" else mantissa > limit
    code = exponent.astype(np.int64) - 1 + up + 127
    code = np.where(x == 0, -1, np.where(np.isinf(x), 255, code))
    outside = (code < 0) | (code > 254)
    code = np.clip(code, 0, 254) if saturate else np.where(outside, 255, code)
    code = np.where(np.isnan(x) | (x < 0), 255, code)
    return code.astype(np.uint8).view(_E8M0.np)


def _text_of(source: DType | None) -> Callable[[Any], str]:
    """Return the function that formats a number of this type."""
    if source is None or not source.is_float:
        return lambda v: str(int(v))
    return lambda v: _float_text(float(v), source.bits == 64)


def _float_text(v: float, is_double: bool) -> str:
    """Eight digits, as onnxruntime writes them; the exact repr of a double that needs more."""
    if math.isnan(v):
        return "NaN"
    if math.isinf(v):
        return "INF" if v > 0 else "-INF"
    short = f"{v:.8g}"
    return short if not is_double or float(short) == v else repr(v)


# Few models need it compiled.
_NUMBER: Final = r"\s*[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)\s*"


def _from_strings(x: Array, to: DType, saturate: bool, round_mode: bytes) -> Array:
    if to.is_float:
        numbers = _each(_read_float, x, np.dtype(np.float64))
        return convert(numbers, to, saturate, round_mode)
    wrapped = _each(_read_int, x, np.dtype(np.int64))
    return convert(wrapped, to) if to is not I64 else wrapped


def _read_float(text: Any) -> float:
    text = str(text)
    if not re.fullmatch(_NUMBER, text, re.I | re.A):
        raise RuntimeException(f"the string {text[:40]!r} is not a number")
    return float(text)


def _read_int(text: Any) -> int:
    """Parse an integer modulo 2**64; fractions are truncated."""
    text = str(text).strip()
    digits = text.removeprefix("-").removeprefix("+")
    is_whole = digits.isascii() and digits.isdigit() and len(digits) < 40
    value = int(text) if is_whole else _read_float(text)
    if not -(2**63) <= value < 2**64:  # false for NaN too
        raise RuntimeException(f"the string {text[:40]!r} is not a 64-bit integer")
    value = int(value)
    return value if value < 2**63 else value - 2**64


def _target_type(to: int, allowed: frozenset[DType]) -> DType:
    dtype = by_onnx(to)
    if dtype is None or dtype not in allowed:
        raise InvalidGraph(f"a conversion to {dtype or f'the unknown type {to}'} is not supported")
    return dtype


def _cast_sizes(x: Fact, to: DType) -> Shape | None:
    """Return the symbolic elements after a conversion to an integer type."""
    if x.sym is None or not (to.is_integer or to is BOOL):
        return None
    cells = [c for d in x.sym if (c := _size_as(d, to)) is not None]
    return tuple(cells) if len(cells) == len(x.sym) else None


def _size_as(size: Size, to: DType) -> Size | None:
    if isinstance(size, Dim):
        if to is BOOL:
            return 1 - is_equal(size, 0)
        # Sizes are far below 2**31, so 32-bit types hold them unchanged.
        holds = to.bits >= 32 and (to.kind == "int" or (to.kind == "uint" and least(size) >= 0))
        return size if holds else None
    if to is BOOL:
        return int(size != 0)
    low = size % (1 << to.bits)
    return low - (1 << to.bits) if to.kind == "int" and low >> (to.bits - 1) else low


def _check_mode(round_mode: bytes) -> None:
    if round_mode not in _ROUND_MODES:
        shown = round_mode.decode(errors="replace")
        raise InvalidGraph(f"round_mode must be up, down or nearest, got {shown}")


def _conversion(name: str, since: int, inputs: str, types: frozenset[DType], **attrs: Any) -> Op:
    """An op whose output has another type than its first input."""
    both = {"T": types, "U": types}
    return Op(name, since, inputs, "y:U", attrs=attrs, types=both, unranked=True)


cast = _conversion("Cast", 28, "x:T", _REAL, to=required("int"), saturate=1, round_mode=b"up")


@cast.infer
def _(g: Scope, x: Fact, *, to: int, saturate: int, round_mode: bytes) -> Fact:
    _check_mode(round_mode)
    dtype = _target_type(to, _REAL)
    return Fact(dtype, x.shape, None, _cast_sizes(x, dtype))


@cast.reference
def _(x: Array, *, to: int, saturate: int, round_mode: bytes) -> Array:
    return convert(x, _target_type(to, _REAL), bool(saturate), round_mode)


cast_like = _conversion(
    "CastLike", 25, "x:T like:U", STORED - COMPLEX, saturate=1, round_mode=b"up"
)


@cast_like.infer
def _(g: Scope, x: Fact, like: Fact, *, saturate: int, round_mode: bytes) -> Fact:
    _check_mode(round_mode)
    return Fact(like.dtype, x.shape, None, _cast_sizes(x, like.dtype))


@cast_like.reference
def _(x: Array, like: Array, *, saturate: int, round_mode: bytes) -> Array:
    dtype = by_numpy(like.dtype)
    assert dtype is not None
    return convert(x, dtype, bool(saturate), round_mode)


_BITS: Final = STORED - {STRING}
bit_cast = _conversion("BitCast", 26, "x:T", _BITS, to=required("int"))


@bit_cast.infer
def _(g: Scope, x: Fact, *, to: int) -> Fact:
    dtype = _target_type(to, _BITS)
    if dtype.bits != x.dtype.bits:
        raise ShapeError(
            f"BitCast keeps the width: {x.dtype} has {x.dtype.bits} bits, {dtype} has {dtype.bits}"
        )
    return Fact(dtype, x.shape)


@bit_cast.reference
def _(x: Array, *, to: int) -> Array:
    dtype, source = _target_type(to, _BITS), by_numpy(x.dtype)
    assert source is not None
    if dtype.bits < 8:
        # One element per byte: the bits above the element are copies of the sign, or zero.
        codes = _plain(x).view(np.uint8) if source.is_integer else x.view(np.uint8)
        codes = codes & np.uint8((1 << dtype.bits) - 1)
        return codes.view(dtype.np) if dtype.is_float else _to_ints(codes, dtype)
    if dtype is BOOL:
        return np.asarray(x.view(np.uint8) != 0)
    return np.array(x.view(dtype.np))


OPS: Final = (cast, cast_like, bit_cast)
