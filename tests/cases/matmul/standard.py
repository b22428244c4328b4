"""Cases of MatMul, Gemm and Einsum."""

from __future__ import annotations

import numpy as np

from tests.op_cases import bf16, case, f16, f32, f64, fails, i64, ints, of

I8 = ints(np.int8, 20, 3, low=-100, high=100)


MATMUL = [
    *(
        case("MatMul", f32(*a), f32(*b), ulps=16)
        for a, b in (
            ((5, 7), (7, 2)),
            ((7,), (7,)),
            ((7,), (7, 3)),
            ((5, 7), (7,)),
            ((2, 3, 5, 7), (7, 4)),
            ((2, 1, 5, 7), (3, 7, 4)),
            ((7,), (2, 7, 3)),
            ((1, 33), (33, 65)),
            ((0, 3), (3, 4)),
            ((4, 0), (0, 3)),
            ((2, 0, 3), (3, 4)),
            ((0, 3, 5), (0, 5, 4)),
            ((1, 1), (1, 1)),
            ((13, 31), (31, 33)),
            ((16, 17), (17, 16)),
            ((1, 300), (300, 77)),
            ((3, 300), (300, 17)),
            ((37, 300), (300, 1)),
            ((37, 5), (5, 3)),
            ((29, 300), (300, 65)),
            ((5, 1, 16), (5, 16, 33)),
            ((6, 9, 16), (6, 16, 9)),
            ((2, 3, 4, 5), (3, 5, 6)),
            ((4, 5), (2, 3, 5, 6)),
        )
    ),
    case("MatMul", of([[1, np.inf, 2]]), f32(3, 5), oracle="onnx"),
    case("MatMul", of([[1, np.nan, 2], [3, 4, 5]]), f32(3, 33), ulps=16),
    case("MatMul", of([[0.0, -0.0]]), of([[-1.0], [1.0]])),
    case("MatMul", f16(9, 40), f16(40, 35), ulps=2),
    case("MatMul", f64(3, 5, 33), f64(33, 67), ulps=16),
    case("MatMul", ints(np.int32, 3, 7), ints(np.int32, 7, 70)),
    case("MatMul", ints(np.uint64, 2, 3, 7), ints(np.uint64, 7, 5)),
    case("MatMul", f64(4, 9), f64(9, 3), ulps=16),
    case("MatMul", f64(2, 13, 300), f64(2, 300, 41), ulps=64),
    case("MatMul", ints(np.int64, 17, 31), ints(np.int64, 31, 37)),
    case("MatMul", ints(np.int32, 100, 40), ints(np.int32, 40, 33)),
    case("Gemm", f64(300, 14), f64(35, 300), transA=1, transB=1, alpha=0.5, ulps=64),
    case("MatMul", i64(4, 3), i64(3, 2)),
    case("MatMul", ints(np.uint32, 4, 3), ints(np.uint32, 3, 2)),
    case("MatMul", f16(3, 8), f16(8, 5)),
    case("MatMul", bf16(3, 8), bf16(8, 5), expect=(
        (bf16(3, 8).astype(np.float32) @ bf16(8, 5).astype(np.float32)).astype(bf16(1).dtype),
    )),
    case("MatMul", f32(2, 3), f32(3, 2), opset=1, oracle="onnx"),
    fails("MatMul", f32(5, 7), f32(6, 2), match="inner dimensions differ: 7 and 6"),
    fails("MatMul", f32(2, 3, 4), f32(3, 4, 5), match="do not broadcast: 2 and 3"),
    fails("MatMul", f32(), f32(3), match="a scalar is not a matrix"),
]  # fmt: skip


GEMM = [
    case("Gemm", f32(5, 7), f32(7, 3), f32(3), ulps=16),
    case("Gemm", f32(5, 7), f32(7, 3), ulps=16),
    case("Gemm", f32(7, 5), f32(3, 7), f32(5, 1), transA=1, transB=1, ulps=16),
    case("Gemm", f32(5, 7), f32(3, 7), f32(), transB=1, alpha=0.5, beta=2.0, ulps=16),
    case("Gemm", f32(7, 5), f32(7, 3), f32(5, 3), transA=1, alpha=0.25, beta=0.0, ulps=16),
    case("Gemm", f64(4, 3), f64(3, 2), f64(1, 2), alpha=0.5, ulps=16),
    case("Gemm", f16(4, 3), f16(3, 2), f16(2), oracle="onnx"),
    case("Gemm", i64(4, 3), i64(3, 2), i64(2), oracle="onnx"),
    case("Gemm", i64(2, 3), i64(3, 2), i64(1), alpha=0.5, beta=2.0,
         expect=(((i64(2, 3) @ i64(3, 2)) * 0.5).astype(np.int64) + 2 * i64(1),)),
    case("Gemm", f32(13, 31), f32(65, 31), f32(65), transB=1, ulps=16),
    case("Gemm", f32(29, 300), f32(300, 33), f32(29, 1), ulps=16),
    case("Gemm", f32(29, 40), f32(40, 33), f32(29, 33), beta=0.5, ulps=16),
    case("Gemm", f32(40, 1), f32(40, 70), f32(1, 70), transA=1, alpha=-1.5, ulps=16),
    case("Gemm", f32(3, 40), f32(40, 2), f32(1), ulps=16),
    case("Gemm", f64(4, 3), f64(3, 2), f64(1, 2), alpha=0.5, beta=0.25, ulps=16),
    case("Gemm", f32(0, 7), f32(7, 3), f32(3)),
    case("Gemm", f32(2, 0), f32(0, 3), f32(3)),
    case("Gemm", f32(4, 3), f32(3, 2), f32(2), opset=6, broadcast=1,
         expect=(f32(4, 3) @ f32(3, 2) + f32(2),)),
    case("Gemm", f32(4, 3), f32(3, 2), f32(4, 2), opset=9, alpha=0.5),
    fails("Gemm", f32(5, 7), f32(6, 3), match="inner dimensions differ: 7 and 6"),
    fails("Gemm", f32(2, 5, 7), f32(7, 3), match="Gemm needs matrices"),
    fails("Gemm", f32(5, 7), f32(7, 3), f32(4), match="c does not broadcast to the product: 4"),
    fails("Gemm", f32(5, 7), f32(7, 3), f32(1, 5, 3), match="must broadcast to a matrix"),
]  # fmt: skip


EINSUM = [
    *(
        case("Einsum", *xs, equation=equation, ulps=32)
        for equation, *xs in (
            ("ij,jk->ik", f32(3, 4), f32(4, 5)),
            ("ij,jk", f32(3, 4), f32(4, 5)),
            ("bij, bjk -> bik", f32(2, 3, 4), f32(2, 4, 5)),
            ("...ij,...jk->...ik", f32(2, 1, 3, 4), f32(5, 4, 6)),
            ("bhid,bhjd->bhij", f32(2, 3, 4, 5), f32(2, 3, 6, 5)),
            ("ij->ji", f32(3, 4)),
            ("ij->j", f32(3, 4)),
            ("i,i", f32(7), f32(7)),
            ("i,j->ij", f32(3), f32(4)),
            ("ijk,jil->kl", f32(3, 4, 5), f32(4, 3, 2)),
            ("ab,bc,cd->ad", f32(2, 3), f32(3, 4), f32(4, 5)),
            ("a...,a...->...", f32(2, 3, 4), f32(2, 3, 4)),
            ("ij,ij->ij", f32(3, 4), f32(3, 4)),
            ("ij,jk->ik", f32(3, 0), f32(0, 5)),
        )
    ),
    case("Einsum", f32(3, 4), equation="ij->", ulps=64, why="the numbers nearly cancel"),
    case("Einsum", f32(2, 3, 3), equation="...ii->...i"),
    case("Einsum", f32(3, 3), equation="ii", ulps=8),
    case("Einsum", f32(), equation="->", oracle="onnx"),
    case("Einsum", f64(3, 1), f64(5), equation="ij,j->i", oracle="onnx", ulps=16),
    case("Einsum", f32(2, 3), f32(3, 2), equation="Ab,bA", ulps=16),
    case("Einsum", f32(2, 3, 4), equation="...a->a..."),
    case("Einsum", I8, I8.T.copy(), equation="ij,jk->ik", expect=(I8 @ I8.T,)),
    case("Einsum", f16(3, 4), f16(4, 2), equation="ij,jk->ik", oracle="onnx"),
    fails("Einsum", f32(2, 3), equation="ij->ijz", match="has 'z', and no input has"),
    fails("Einsum", f32(2, 3), equation="ij->ii", match="names a letter twice"),
    fails("Einsum", f32(2, 3), equation="i1->i", match="letters and ... only"),
    fails("Einsum", f32(2, 3), equation="ijk->i", match="stands for 3 dims, its input has 2"),
    fails("Einsum", f32(2, 3), equation="ij,jk->", match="has 2 terms for 1 inputs"),
    fails("Einsum", f32(2, 3), equation="i...->i", match="leaves out the ellipsis"),
    fails("Einsum", f32(2, 3), f32(4, 2), equation="ij,jk", match="sizes of j differ: 3 and 4"),
    fails("Einsum", f32(2, 3), equation="ii->i", match="i is two sizes of one input: 2 and 3"),
]


CASES = [
    *MATMUL,
    *GEMM,
    *EINSUM,
]
