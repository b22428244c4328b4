// The rows of the family: they compute nothing that a model wants, but tell about the machine.
//
// isa_name      which build of the kernels runs
// fma_limit     x: two of f32; y: [n, 2] of f32, for each of n rounds how many multiplications it
//               made, and a number that depends on all of them
// fma_limit_64  the same in f64
// dot_limit     the same of bytes: x are two of i32, each four bytes
// bf16_limit    the same of bf16: x are two of f32, whose bits are two of bf16
// stream_limit  x and y: bytes, of which all are read and written; sums: i32, one for each part;
//               ints: how often
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
