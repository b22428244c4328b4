"""Matmul lowering: every variant, what is folded into it, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.load.graph_text import parse
from sardonyx.passes import einsum, matmul
from tests.graphs import canonical, random_feeds, rewrites, rewritten, run_graph, unchanged

# Inputs, what reads them, and what that becomes.
LOWERED = {
    "stacks": (
        "x: f32[B,3,8]; w: f32[8,4]",
        "y = MatMul(x, w)",
        "y = sardonyx.MatMul(x, w)",
    ),
    "a row": (
        "x: f32[8]; w: f32[2,8,4]",
        "y = MatMul(x, w)",
        "a = Unsqueeze(x, [0]); m = sardonyx.MatMul(a, w); y = Squeeze(m, [-2])",
    ),
    "a column": (
        "x: f32[3,8]; w: f32[8]",
        "y = MatMul(x, w)",
        "a = Unsqueeze(w, [1]); m = sardonyx.MatMul(x, a); y = Squeeze(m, [-1])",
    ),
    "gemm without a term": (
        "x: f32[8,B]; w: f32[8,4]; c: f32[4]",
        "y = Gemm(x, w, c, beta=0.0, transA=1)",
        "y = sardonyx.MatMul(x, w, trans_a=1)",
    ),
    "gemm in double": (
        "x: f64[B,8]; w: f64[8,4]; c: f64[4]",
        "y = Gemm(x, w, c, alpha=0.5)",
        "m = sardonyx.MatMul(x, w, alpha=0.5); y = Add(m, c)",
    ),
    "both transposed": (
        "x: f32[2,8,B]; w: f32[2,4,8]",
        "a = Transpose(x, perm=[0,2,1]); c = Transpose(w, perm=[0,2,1]); y = MatMul(a, c)",
        "y = sardonyx.MatMul(x, w, trans_a=1, trans_b=1)",
    ),
    "heads stay transposed": (
        "x: f32[2,4,3,8]; w: f32[2,3,8,5]",
        "a = Transpose(x, perm=[0,2,1,3]); y = MatMul(a, w)",
        "a = Transpose(x, perm=[0,2,1,3]); y = sardonyx.MatMul(a, w)",
    ),
    "scaled": (
        "x: f32[B,8]; w: f32[8,4]",
        "m = MatMul(x, w); y = Mul(m, 0.3)",
        "y = sardonyx.MatMul(x, w, alpha=0.30000001192092896)",
    ),
    "divided": (
        "x: f32[B,8]; w: f32[8,4]",
        "m = MatMul(x, w); y = Div(m, 8.0)",
        "y = sardonyx.MatMul(x, w, alpha=0.125)",
    ),
    "divided inexactly": (
        "x: f32[B,8]; w: f32[8,4]",
        "m = MatMul(x, w); y = Div(m, 3.0)",
        "m = sardonyx.MatMul(x, w); y = Div(m, 3.0)",
    ),
    "fused product": (
        "x: f32[B,8]; w: f32[4,8]",
        "y = com.microsoft.FusedMatMul(x, w, alpha=0.5, transB=1)",
        "y = sardonyx.MatMul(x, w, trans_b=1, alpha=0.5)",
    ),
    "transposed batches": (
        "x: f32[3,2,8]; w: f32[2,8,4]",
        "y = com.microsoft.FusedMatMul(x, w, transBatchA=1)",
        "t = Transpose(x, perm=[1,0,2]); y = sardonyx.MatMul(t, w)",
    ),
}


@pytest.mark.parametrize("name", LOWERED)
def test_lowered(name: str) -> None:
    inputs, before, after = LOWERED[name]
    head = "".join(f"in {line}\n" for line in inputs.split("; "))
    text, into = (f"{head}{body.replace('; ', chr(10))}\nout y" for body in (before, after))
    rewrites(text, matmul.RULES, into)


EINSUM = {
    "heads": (
        "x: f32[2,3,4,8]; w: f32[2,5,4,8]",
        'y = Einsum(x, w, equation="bqhd,bkhd->bhqk")',
        "a = Transpose(x, perm=[0,2,1,3]); c = Transpose(w, perm=[0,2,3,1]); y = MatMul(a, c)",
    ),
    "rows of several letters": (
        "x: f32[2,3,8]; w: f32[8,4]",
        'y = Einsum(x, w, equation="abc,cd->abd")',
        "c = Unsqueeze(w, [0]); y = MatMul(x, c)",
    ),
    "transposed output": (
        "x: f32[3,8]; w: f32[8,4]",
        'y = Einsum(x, w, equation="ik,kj->ji")',
        "m = MatMul(x, w); y = Transpose(m, perm=[1,0])",
    ),
    "vectors": (
        "x: f32[8]; w: f32[8]",
        'y = Einsum(x, w, equation="k,k->")',
        "a = Unsqueeze(x, [0]); c = Unsqueeze(w, [1]); m = MatMul(a, c); y = Squeeze(m, [-2, -1])",
    ),
}


@pytest.mark.parametrize("name", EINSUM)
def test_einsum(name: str) -> None:
    inputs, before, after = EINSUM[name]
    head = "".join(f"in {line}\n" for line in inputs.split("; "))
    text, into = (f"{head}{body.replace('; ', chr(10))}\nout y" for body in (before, after))
    rewrites(text, einsum.RULES, into)


EQUATIONS = {
    "ij,jk->ijk": ("f32[3,4]", "f32[4,2]"),
    "ii,ij->j": ("f32[3,3]", "f32[3,4]"),
    "ij,kl->": ("f32[3,4]", "f32[2,5]"),
    "ijk,ijl->kl": ("f32[3,4,2]", "f32[3,4,5]"),
    "abcd,cde->abe": ("f32[B,T,2,3]", "f32[2,3,4]"),
    "abcd,ecd->ebad": ("f32[B,T,2,3]", "f32[4,2,3]"),
    "i, j -> i j": ("f32[N]", "f32[4]"),
    "ij,j->i": ("f32[3,1]", "f32[5]"),
    "...a->a...": ("f32[B,3,4]",),
    "iijj->ji": ("f32[3,3,2,2]",),
    "ij": ("f32[3,4]",),
    "ab,bc,cd,de->ea": ("f32[2,3]", "f32[3,4]", "f32[4,5]", "f32[5,B]"),
    "abc,bd,ce->ade": ("f32[2,3,4]", "f32[3,5]", "f32[4,6]"),
    "ij,ij->": ("i32[3,4]", "i32[3,4]"),
    "ij,ik,il->jkl": ("i8[3,4]", "i8[3,2]", "i8[3,5]"),
    "ij,ik->k": ("f16[3,4]", "f16[3,2]"),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_of_several_operands(equation: str) -> None:
    names = [f"x{i}" for i in range(len(EQUATIONS[equation]))]
    head = "".join(f"in {n}: {t}\n" for n, t in zip(names, EQUATIONS[equation], strict=True))
    text = f'{head}y = Einsum({", ".join(names)}, equation="{equation}")\nout y'
    before, after = parse(text), rewritten(text, einsum.RULES)
    assert "Einsum" not in {node.op.name for node in after.nodes}
    feeds = random_feeds(before)
    got, want = run_graph(after, feeds)[0], run_graph(before, feeds)[0]
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("equation", "first", "second"),
    [("ij,jk->ik", "f32[3,A]", "f32[B,4]"), ("ii,ij->j", "f32[N,N]", "f32[N,4]")],
)
def test_einsum_of_symbolic_sizes(equation: str, first: str, second: str) -> None:
    unchanged(
        f'in x: {first}\nin w: {second}\ny = Einsum(x, w, equation="{equation}")\nout y',
        einsum.RULES,
    )


@pytest.mark.parametrize(("beta", "n_nodes"), [(1.0, 1), (0.5, 2)])
def test_a_term_is_an_epilogue(beta: float, n_nodes: int) -> None:
    text = (
        "in x: f32[B,8]\nin w: f32[8,4]\nin c: f32[4]\n"
        f"y = Gemm(x, w, c, alpha=0.5, beta={beta})\nout y"
    )
    before, after = parse(text), rewritten(text, matmul.RULES)
    assert len(after.nodes) == n_nodes
    assert "alpha=0.5, code=[Add(%0, %1):f32]" in canonical(after)
    feeds = random_feeds(before)
    np.testing.assert_allclose(run_graph(after, feeds)[0], run_graph(before, feeds)[0], rtol=1e-5)


KEPT = {
    "integers that are rounded": (
        "in x: i64[B,8]\nin w: i64[8,4]\ny = Gemm(x, w, alpha=0.5)\nout y"
    ),
    "a transposed matrix beside a vector": (
        "in x: f32[3]\nin w: f32[4,3]\ny = com.microsoft.FusedMatMul(x, w, transB=1)\nout y"
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_not_lowered(name: str) -> None:
    unchanged(KEPT[name], matmul.RULES)
