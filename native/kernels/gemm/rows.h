// The rows of the family, each prepared in a file of its own kind.
//
// matmul         a, b, bias?           products of stacks of matrices, with any strides
// matmul_packed  a, packed b, bias?    the same, where b was packed
//   ints    a is transposed, b is transposed, kBias | kRelu, then for a packed b its rank and dims
//   floats  alpha
// matmul_pack    b                     ints: b is transposed
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

constexpr int64_t kBias = 1, kRelu = 2;

Status fma_limit(const Call& call, Plan& plan);
Status matmul(const Call& call, Plan& plan);
Status matmul_pack(const Call& call, Plan& plan);
Status matmul_packed(const Call& call, Plan& plan);
Status matmul_plain(const Call& call, Plan& plan);  // f64 and integers

}  // namespace sdx::SDX_ISA
