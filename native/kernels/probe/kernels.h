// Kernels that report about the machine and this build instead of computing model values.
//
// isa_name      the ISA that the kernels were built for
// fma_limit     x: two f32; y: [n, 2] of f32, for each of n rounds the number of multiplications,
//               and a value that depends on all of them, so that none is optimized away
// fma_limit_64  the same in f64
// dot_limit     the same for u8 x s8 dot products: x are two i32 of four bytes each
// bf16_limit    the same for bf16 pairs: x are two f32, each the bits of two bf16
// stream_limit  x and y: bytes, all of which are read and written; partial sums: i32, one per item;
//               ints: the number of passes
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

Status isa_name(const Call& call, Plan& plan);
Status fma_limit(const Call& call, Plan& plan);
Status fma_limit_64(const Call& call, Plan& plan);
Status dot_limit(const Call& call, Plan& plan);
Status bf16_limit(const Call& call, Plan& plan);
Status stream_limit(const Call& call, Plan& plan);

}  // namespace sdx::SDX_ISA
