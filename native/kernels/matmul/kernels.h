// The kernels of the family, their operands and attributes, and where each is planned.
//
//   matmul         a, b, operands         batched matmul of operands with any strides
//   matmul_packed  a, packed b, operands  the same with b prepacked into panels (tile.h)
//     ints    a is transposed, b is transposed, kBias | kRelu | kStart | kBuffered, the rank of a
//             packed b and its dims (0 if b is not packed), the epilogue's program (chain.h)
//     floats  alpha, parameters of the program
//     operands are the bias, the initial accumulators (f32, of the output's shape, possibly the
//     output's own bytes; alpha is 1 then), and those of the epilogue's program, which may share
//     the output's bytes only with kBuffered
//   matmul_pack    b                      ints: b is transposed
//   matmul_bf16, matmul_packed_bf16, matmul_pack_bf16: both sides are rounded to bf16. Unpacked
//     f32 matmuls with few rows or columns (gemv.cc) keep f32: reading B is their limit.
//
// Dispatch by type and size, in matmul() of gemm.cc:
//   naive.cc    f32 of at most kTiny multiplications, f64 and integers of few or of one row
//   generic.cc  other f64 and integers
//   gemv.cc     f32 with at most 4 rows or columns: B is read in place, once
//   gemm.cc     everything else: panels of B and register tiles (tile.cc)
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

// Flags of a call. kStart: accumulators begin with an operand (GEMM's C with beta = 1) instead of
// zero. kBuffered: accumulators are kept in a thread's local memory until they are complete, since
// the output shares bytes with an operand that the epilogue still reads.
constexpr int64_t kBias = 1, kRelu = 2, kStart = 4, kBuffered = 8;

Status matmul(const Call& call, Plan& plan);
Status matmul_pack(const Call& call, Plan& plan);
Status matmul_packed(const Call& call, Plan& plan);
Status matmul_bf16(const Call& call, Plan& plan);
Status matmul_pack_bf16(const Call& call, Plan& plan);
Status matmul_packed_bf16(const Call& call, Plan& plan);
Status matmul_naive(const Call& call, Plan& plan);

// The blocked matmul of f64 and integers (generic.cc), and whether it pays.
struct MatMulShape;
bool is_generic_blocked(const MatMulShape& shape);
void plan_generic(const Call& call, const MatMulShape& shape, Plan& plan);

}  // namespace sdx::SDX_ISA
