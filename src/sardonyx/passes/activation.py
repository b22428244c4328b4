"""Gelu fusion: Gelu written out by exporters as Erf or Tanh arithmetic becomes one node."""

from __future__ import annotations

import math
from typing import Any, Final

from sardonyx.graph.graph import Node, Value
from sardonyx.ops.builder import Builder
from sardonyx.passes.rule import P, Pattern, about, hole, need, rule

x = hole("x")
# Phi(x) * 2, the normal distribution's CDF; exporters divide by sqrt(2) or multiply by its inverse.
_phi = P.Erf(x / about(math.sqrt(2))) + 1
_phi_times = P.Erf(x * about(math.sqrt(0.5))) + 1


def _halved_products(*factors: Pattern) -> list[Pattern]:
    """0.5 x f for each factor f, in each order in which exporters multiply."""
    return [p for f in factors for p in ((x * 0.5) * f, (x * f) * 0.5, x * (f * 0.5))]


@rule(*_halved_products(_phi, _phi_times), aliases="GeluFusion")
def gelu(b: Builder, x: Value) -> Value:
    """x Phi(x), with the error function."""
    # Integer models can contain the same arithmetic.
    need(x.tensor.dtype.is_float, "not floating point")
    return b.Gelu(x, like=x)


# The tanh approximation: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
_cube = (P.Pow(x, 3.0), x * x * x, x * (x * x))
_inner = tuple((x + cube * about(0.044715)) * about(math.sqrt(2 / math.pi)) for cube in _cube)


# The same with x factored out.
_factored = (x * about(math.sqrt(2 / math.pi))) * (x * about(0.044715) * x + 1)
_tanhs = tuple(P.Tanh(inner) + 1 for inner in (*_inner, _factored))


@rule(*_halved_products(*_tanhs), aliases="FastGeluFusion")
def gelu_tanh(b: Builder, x: Value) -> Value:
    """Gelu by its tanh approximation, which exporters call FastGelu or gelu_new."""
    need(x.tensor.dtype.is_float, "not floating point")
    return b.Gelu(x, like=x, approximate=b"tanh")


@rule(P.Gelu(x).named("whole"), aliases="GeluApproximation")
def gelu_approximated(b: Builder, x: Value, whole: Node) -> Value:
    """Replace the exact Gelu by its tanh approximation, if the session option allows it."""
    need(whole.attrs["approximate"] != b"tanh", "it is the approximation already")
    return b.Gelu(x, like=whole.outputs[0], approximate=b"tanh")


RULES: Final[tuple[Any, ...]] = (*gelu, *gelu_tanh)
# A separate table: it changes results, so only an option enables it.
APPROXIMATE: Final[tuple[Any, ...]] = gelu_approximated
