"""NaN, infinities, zeros, integers, scalars and empty tensors: as eager torch, in every type.

One graph per type and kind of op: all ops of a table read the same tensor of special values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pytest

torch = pytest.importorskip("torch")
from torch._functorch.aot_autograd import aot_function  # noqa: E402 - torch may be missing
from torch.nn import functional  # noqa: E402

from sardonyx.dynamo.backend import compile_graph, partition  # noqa: E402
from sardonyx.dynamo.decompositions import decompositions  # noqa: E402
from sardonyx.dynamo.report import Report  # noqa: E402

Function = Callable[..., Any]

_FLOATS: Final = (
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 3.0, 7.3, -7.3,
    1e-4, 100.0, -100.0, 88.0, 6e4,
)  # fmt: skip
_INTEGERS: Final = (0, 1, -1, 2, -2, 3, 7, -7, 100, -100, 127, -128)
_UNSIGNED: Final = (0, 1, 2, 3, 7, 100, 127, 128, 200, 255)
FLOATS: Final = ("float32", "bfloat16", "float16", "float64")
INTEGERS: Final = ("int64", "int32", "int16", "int8", "uint8")
TOLERANCES: Final = {"bfloat16": 2**-7, "float16": 2**-10, "float32": 4e-6}

ANY_UNARY: Final[dict[str, Function]] = {
    name: getattr(torch, name)
    for name in (
        "abs", "neg", "sign", "signbit", "isnan", "isinf", "isfinite", "logical_not", "relu",
        "square", "ceil", "floor", "round", "trunc",
    )
}  # fmt: skip
FLOAT_UNARY: Final[dict[str, Function]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf",
            "exp", "exp2", "expm1", "frac", "log", "log10", "log1p", "log2", "nan_to_num",
            "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
        )
    },
    **{
        name: getattr(functional, name)
        for name in (
            "silu", "elu", "selu", "celu", "hardtanh", "hardswish", "hardsigmoid", "relu6",
            "leaky_relu", "mish", "softplus", "softsign", "softshrink", "hardshrink",
        )
    },
    **{f"pow({p})": lambda x, p=p: x**p for p in (2, 3, -1, -2, 0.5, -0.5, 0, 1.5)},
    **{f"rpow({p})": lambda x, p=p: p**x for p in (2, 0.5, -1)},
    "clamp": lambda x: torch.clamp(x, -0.3, 2.7),
    "clamp(nan)": lambda x: torch.clamp(x, math.nan, 2),
    "log_softmax(0)": lambda x: functional.log_softmax(x[3:8], 0),
    "softmax": lambda x: functional.softmax(x[2:], 0),
    "softmax(nan)": lambda x: functional.softmax(x, 0),
}  # fmt: skip
ANY_BINARY: Final = (
    "add", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "lt", "le", "gt", "ge",
    "logical_and", "logical_or", "logical_xor", "true_divide",
)  # fmt: skip
DIVISIONS: Final[dict[str, Function]] = {
    "floor_divide": torch.floor_divide,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}
FLOAT_BINARY: Final = ("pow", "atan2", "copysign", "xlogy", "logaddexp", "heaviside")
BITWISE: Final = ("bitwise_and", "bitwise_or", "bitwise_xor")
SHIFTS: Final = ("bitwise_left_shift", "bitwise_right_shift")
REDUCTIONS: Final = (
    "sum", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all",
)  # fmt: skip
FLOAT_REDUCTIONS: Final = ("mean", "var", "std", "nansum")


def special(dtype: str) -> Any:
    """The special values of a type."""
    if dtype in FLOATS:
        return torch.tensor(_FLOATS, dtype=torch.float64).to(getattr(torch, dtype))
    numbers = _UNSIGNED if dtype == "uint8" else _INTEGERS
    return torch.tensor(numbers, dtype=getattr(torch, dtype))


def hold(functions: dict[str, Function], dtype: str, *tensors: Any) -> None:
    """Compile all functions as one graph, and compare each result with eager torch's."""
    report = Report()

    def together(*tensors: Any) -> list[Any]:
        return [function(*tensors) for function in functions.values()]

    def compiler(module: Any, inputs: Any) -> Any:
        return compile_graph(module, inputs, kind="inference", report=report)

    expected = together(*tensors)
    compiled = aot_function(
        together, fw_compiler=compiler, decompositions=decompositions(), partition_fn=partition
    )
    actual = compiled(*tensors)
    assert not {(f.op, f.reason) for f in report.fallbacks}
    tolerance = TOLERANCES.get(dtype, 1e-9)
    for name, a, e in zip(functions, actual, expected, strict=True):
        torch.testing.assert_close(
            a, e, rtol=tolerance, atol=1e-6, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}"
        )


def by_name(names: tuple[str, ...]) -> dict[str, Function]:
    """Functions of torch."""
    return {name: getattr(torch, name) for name in names}


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_unary(dtype: str) -> None:
    functions = {**ANY_UNARY, **(FLOAT_UNARY if dtype in FLOATS else {})}
    hold(functions, dtype, special(dtype))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("kind", ["scalar", "empty"])
def test_unary_of_other_shapes(kind: str, dtype: str) -> None:
    x = special(dtype)
    hold(ANY_UNARY, dtype, x[1] if kind == "scalar" else x[:0].reshape(0, 3))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_binary(dtype: str) -> None:
    x = special(dtype)
    functions = by_name(ANY_BINARY)
    functions |= by_name(FLOAT_BINARY if dtype in FLOATS else BITWISE)
    if dtype in FLOATS:
        functions |= DIVISIONS
    hold(functions, dtype, x[:, None], x[None])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_divisions_and_shifts_of_integers(dtype: str) -> None:
    x = special(dtype)
    hold(DIVISIONS, dtype, x[:, None], x[x != 0][None])
    amounts = torch.tensor([0, 1, 3, 6], dtype=x.dtype)
    hold(by_name(SHIFTS), dtype, x[:, None], amounts[None])


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("number", [2, 0.1])
def test_type_promotion_of_python_numbers(number: float, dtype: str) -> None:
    names = ("add", "sub", "mul", "true_divide", "eq", "lt", "ge", "remainder", "fmod", "pow")
    scalars = {n: lambda x, f=f: f(x, number) for n, f in by_name(names).items()}
    hold(scalars, dtype, special(dtype))
    tensors = {n: lambda x, y, f=f: f(x, y) for n, f in by_name(names).items()}
    hold(tensors, dtype, special(dtype), torch.tensor(number))


def _reductions(dtype: str, *, is_empty: bool = False) -> dict[str, Function]:
    names = (*REDUCTIONS, *(FLOAT_REDUCTIONS if dtype in FLOATS else ()))
    needs_one = ("amax", "amin", "max", "min", "argmax", "argmin")
    return by_name(tuple(n for n in names if not (is_empty and n in needs_one)))


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("first", [0, 1, 3, 5])
def test_reductions(first: int, dtype: str) -> None:
    """Of NaN and infinities, of infinities, of signed zeros, and of ordinary numbers."""
    x = special(dtype)[first : first + 4].reshape(2, 2)
    functions = _reductions(dtype)
    whole = {n: lambda x, f=f: f(x) for n, f in functions.items()}
    along = {
        f"{n}({d})": lambda x, f=f, d=d: _values(f(x, d))
        for n, f in functions.items()
        for d in (0, -1)
    }
    keeping = {
        f"{n}(keepdim)": lambda x, f=f: _values(f(x, 1, keepdim=True)) for n, f in functions.items()
    }
    hold({**whole, **along, **keeping}, dtype, x)


def _values(result: Any) -> Any:
    """Values and indices of max and min, as one tensor."""
    return result if isinstance(result, torch.Tensor) else result[0].double() + 1000 * result[1]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "uint8"])
def test_reductions_of_scalars_and_empty_tensors(dtype: str) -> None:
    x = special(dtype)
    functions = _reductions(dtype)
    hold({n: lambda x, f=f: _values(f(x, -1)) for n, f in functions.items()}, dtype, x[1])
    empty = x[:0].reshape(0, 3)
    functions = _reductions(dtype, is_empty=True)
    hold(functions, dtype, empty)
    hold({n: lambda x, f=f: f(x, 0) for n, f in functions.items()}, dtype, empty)


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_scans(dtype: str) -> None:
    scans = {
        f"{name}({n})": lambda x, f=f, n=n: f(x[n:], 0)
        for name, f in by_name(("cumsum", "cumprod")).items()
        for n in (0, 1, 3)
    }
    hold(scans, dtype, special(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("order", [2, 1, math.inf, -math.inf, 0, 3])
def test_norms(order: float, dtype: str) -> None:
    norms = {
        str(n): lambda x, n=n: torch.linalg.vector_norm(x[n : n + 6], order) for n in (0, 1, 3, 5)
    }
    hold(norms, dtype, special(dtype))


@pytest.mark.parametrize("source", FLOATS + INTEGERS)
def test_casts(source: str) -> None:
    x = special(source)
    if source in FLOATS:  # what integers cannot hold is undefined
        x = x[(x.abs() < 100) & (x >= 0)]
    elif source != "uint8":
        x = x[x >= 0]
    casts = {to: lambda x, to=to: x.to(getattr(torch, to)).clone() for to in (*FLOATS, *INTEGERS)}
    del casts[source]
    hold({**casts, "bool": lambda x: x.bool()}, source, x)


def test_nan_casts_to_true() -> None:
    hold({"bool": lambda x: x.bool()}, "float32", special("float32"))


@pytest.mark.parametrize("n", [2, 3])
def test_numbers_outside_the_type_fall_back_to_torch(n: int) -> None:
    report = Report()

    def compiler(module: Any, inputs: Any) -> Any:
        return compile_graph(module, inputs, kind="inference", report=report)

    x = special("uint8")
    function = aot_function(lambda x: x == -n, fw_compiler=compiler)
    torch.testing.assert_close(function(x), x == -n)
    assert [f.reason for f in report.fallbacks] == [
        f"the number -{n} is outside the range of torch.uint8"
    ]
