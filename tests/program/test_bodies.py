"""Bodies that run as parts of a native segment."""

from __future__ import annotations

from tests.op_cases import f32
from tests.test_control import NO, YES, check


def test_sizes_that_only_unread_values_of_a_branch_have() -> None:
    text = """
    g (bool c, float[N, 3] x, float[M, 3] z) => (float[N, 3] y) {
      y = If (c) <
        then_branch = t () => (float[N, 3] a) { unread = Sub (x, z)  a = Neg (x) },
        else_branch = e () => (float[N, 3] b) { b = Abs (x) }
      >
    }
    """
    for c in (YES, NO):
        check(text, c=c, x=f32(2, 3), z=f32(2, 3))
