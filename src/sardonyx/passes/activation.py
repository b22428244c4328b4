"""Activations that exporters spell out."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.graph import Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.pattern import P, about, hole
from sardonyx.passes.rule import need, rule

x = hole("x")
_phi = P.Erf(x / about(math.sqrt(2))) + 1
_phi_times = P.Erf(x * about(math.sqrt(0.5))) + 1


@rule(
    *(p for phi in (_phi, _phi_times) for p in ((x * 0.5) * phi, (x * phi) * 0.5, x * (phi * 0.5))),
    ort="GeluFusion",
)
def gelu(b: Builder, x: Value) -> Value:
    """x Phi(x), Phi by the error function, in each order that exporters multiply it."""
    need(x.tensor.dtype.is_float, "not floating point")
    made: Value = b.Gelu(x, like=x)
    return made


_cube = (P.Pow(x, 3.0), x * x * x, x * (x * x))
_inner = tuple((x + cube * about(0.044715)) * about(math.sqrt(2 / math.pi)) for cube in _cube)


@rule(
    *(
        p
        for inner in _inner
        for p in (
            (x * 0.5) * (P.Tanh(inner) + 1),
            x * ((P.Tanh(inner) + 1) * 0.5),
            (x * (P.Tanh(inner) + 1)) * 0.5,
        )
    ),
    ort="FastGeluFusion",
)
def gelu_tanh(b: Builder, x: Value) -> Value:
    """Gelu by the hyperbolic tangent."""
    need(x.tensor.dtype.is_float, "not floating point")
    made: Value = b.Gelu(x, like=x, approximate=b"tanh")
    return made


@rule(P.Gelu(x).named("whole"), ort="GeluApproximation")
def gelu_approximated(b: Builder, x: Value, whole: Node) -> Value:
    """Gelu by the error function becomes that by the hyperbolic tangent: where it is asked for."""
    need(whole.attrs["approximate"] != b"tanh", "it is approximated already")
    made: Value = b.Gelu(x, like=whole.outputs[0], approximate=b"tanh")
    return made


RULES: Final[tuple[Any, ...]] = (*gelu, *gelu_tanh)
APPROXIMATE: Final[tuple[Any, ...]] = gelu_approximated
