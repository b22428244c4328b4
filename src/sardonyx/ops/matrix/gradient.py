"""The gradient of Det: the cofactors."""

from __future__ import annotations

from typing import Final

from sardonyx.graph.dtype import I64
from sardonyx.graph.graph import Node, Value, input_of
from sardonyx.graph.op import MICROSOFT
from sardonyx.ops.gradient_rules import GradientBuilder, gradient, ranked
from sardonyx.ops.normalize.standard import widened

# All minors of larger matrices would take too much memory: n^4 elements.
_MAX_MINORS: Final = 32


@gradient("Det")
def _(b: GradientBuilder, node: Node, dy: Value) -> Value:
    x = input_of(node, 0)
    size = ranked(x).dims[-1]
    dy = b.Unsqueeze(dy, b.ints(-2, -1))
    if isinstance(size, int) and size > _MAX_MINORS:
        # Jacobi's formula, for matrices that are not singular.
        det = b.Unsqueeze(node.outputs[0], b.ints(-2, -1))
        inverse = b.cast(b.Inverse(widened(b, x), domain=MICROSOFT), x.tensor.dtype)
        return b.Mul(b.Mul(dy, det), b.transposed(inverse))
    return b.Mul(dy, _cofactors(b, x))


def _cofactors(b: GradientBuilder, x: Value) -> Value:
    """Return the determinants of all minors, with alternating signs: also of singular matrices."""
    rank = ranked(x).rank
    count = b.length(x, rank - 1)
    removed, position = b.Unsqueeze(b.arange(count), b.ints(1)), b.arange(b.Sub(count, 1))
    # Row i has all positions but i.
    kept = b.Add(position, b.cast(b.GreaterOrEqual(position, removed), I64))
    minors = b.Gather(b.Gather(x, kept, axis=-1), kept, axis=rank - 2)
    # [..., row, rows, column, columns] to [..., row, column, rows, columns].
    lead = range(rank - 2)
    minors = b.Transpose(minors, perm=(*lead, rank - 2, rank, rank - 1, rank + 1))
    numbers = b.arange(count)
    parity = b.Mod(b.Add(numbers, b.Unsqueeze(numbers, b.ints(1))), b.const(2, I64))
    sign = b.cast(b.Sub(b.const(1, I64), b.Mul(parity, 2)), x.tensor.dtype)
    return b.Mul(b.Det(minors), sign)
