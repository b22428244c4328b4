// Elementwise programs: what the row `chain` runs, and what products apply to their results.
//
// A program is a list of instructions over numbered values, each a tensor that is broadcast to the
// output. In a call it is a part of `ints`, and of `floats`:
//
//   ints    n_instructions, n_operands, then 6 for each instruction: op, type, to, a, b, c
//   floats  2 for each instruction: its parameters, 0 where it has fewer
//
// `op` is a number of ops.inc; `type` the element type (DType) of what it takes, `to` of its
// result; a, b and c are the numbers of its arguments, -1 for those it has not. Numbers [0,
// n_operands) are the operands, n_operands + i is the result of instruction i; the last result is
// the output. Of an epilogue operand 0 is the product, in f32; of the row `chain` it is the first
// input. Only `cast` knows f16 and bf16: all others compute in f32 between such casts. Zero
// instructions: there is no program. providers/cpu/chain.py writes programs.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

struct Chain;

// The program at ints[first_int] and floats[first_float] of a call, for its first output; operands
// 1.. are the call's inputs from `first_operand` on. Null where there are no instructions.
const Chain* chain_prepare(const Call& call, int first_operand, int first_int, int first_float,
                           Plan& plan);

// Bytes of a thread's own memory that chain_run needs, a multiple of 64; 0 for null.
int64_t chain_local_bytes(const Chain* chain);

// Applies the program to n elements of the last axis, from column `col` of row `row`: the axes
// before the last, counted through in row-major order. `incoming` are the elements of the product
// and `out` where the results go, in the type of the output; they may be the same.
void chain_run(const Chain& chain, const Data& data, int64_t row, int64_t col, int64_t n,
               const float* incoming, void* out, std::byte* local);

// The same for whole rows [row, row + rows), which lie side by side.
void chain_rows(const Chain& chain, const Data& data, int64_t row, int64_t rows,
                const float* incoming, void* out, std::byte* local);

// Numbers that a program takes in ints and floats.
SDX_INLINE int chain_int_count(const int64_t* ints) { return 2 + 6 * int(ints[0]); }
SDX_INLINE int chain_float_count(const int64_t* ints) { return 2 * int(ints[0]); }

}  // namespace sdx::SDX_ISA
