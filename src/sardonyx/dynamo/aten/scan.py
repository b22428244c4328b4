"""Cumulative sums and products."""

from __future__ import annotations

from typing import Any, Final

from sardonyx.dynamo.aten_builder import AtenBuilder
from sardonyx.dynamo.table import lowers
from sardonyx.graph import dtype as types
from sardonyx.graph.graph import Value

_SCANS: Final = {"cumsum": "CumSum", "cumprod": "CumProd"}


def _register(name: str, op: str) -> None:
    @lowers(f"{name}.default")
    def _(b: AtenBuilder, x: Value, dim: int, dtype: Any = None) -> Value:
        (x,) = b.in_compute_type(x)
        if not x.tensor.rank:
            return b.rounded(x)
        if x.tensor.dtype in (types.I8, types.I16, types.U8):  # modulo 2**n in any accumulator
            x = b.cast(x, types.I64)
        return b.rounded(b.node(op, x, b.const(dim, types.I64)).outputs[0])


for _name, _op in _SCANS.items():
    _register(_name, _op)
