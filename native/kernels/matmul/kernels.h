// The rows of the family, each prepared in a file of its own kind.
//
// matmul         a, b, operands         products of stacks of matrices, with any strides
// matmul_packed  a, packed b, operands  the same, where b was packed
//   ints    a is transposed, b is transposed, kBias | kRelu | kStart | kBuffered, the rank of a
//   packed
//           b and its dims (0 for one that is not packed), the program of an epilogue (chain.h)
//   floats  alpha, those of the program
//   operands are the bias, what sums begin with (of f32 and of the output's shape, which may be its
//   bytes; alpha is 1 then), and those of the program, which with kBuffered may be its bytes too
// matmul_pack    b                      ints: b is transposed
// matmul_bf16, matmul_packed_bf16, matmul_pack_bf16: both sides are rounded to bf16. Products of
//   f32 with few rows or columns, which take as long as B takes to read, are not where B is not
//   packed.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

constexpr int64_t kBias = 1, kRelu = 2, kStart = 4, kBuffered = 8;

Status matmul(const Call& call, Plan& plan);
Status matmul_pack(const Call& call, Plan& plan);
Status matmul_packed(const Call& call, Plan& plan);
Status matmul_bf16(const Call& call, Plan& plan);
Status matmul_pack_bf16(const Call& call, Plan& plan);
Status matmul_packed_bf16(const Call& call, Plan& plan);
Status matmul_naive(const Call& call, Plan& plan);  // f64, integers, tiny ones of f32

}  // namespace sdx::SDX_ISA
