// Fused elementwise programs (chains): the kernel `chain`, and epilogues of matmuls and
// convolutions.
//
// A program is a list of instructions over numbered values, each a tensor that is broadcast to the
// output. An interpreter runs it tile by tile: a tile of a few thousand elements goes through all
// instructions while its intermediate values stay in L1, so the dispatch of an instruction is
// amortized over the tile and memory is read and written once. In a call the program is a part of
// `ints`, and of `floats`:
//
//   ints    n_instructions, n_operands, then 6 for each instruction: op, type, to, a, b, c
//   floats  2 for each instruction: its parameters, 0 if it has fewer
//
// `op` is an index into ops.inc; `type` the element type (DType) of its arguments, `to` of its
// result; a, b and c are the numbers of its arguments, -1 if it has fewer. Numbers [0, n_operands)
// are the operands, n_operands + i is the result of instruction i; the last result is the output.
// Operand 0 of an epilogue is the accumulators, in f32; of the kernel `chain` it is the first
// input. Only `cast` has f16 and bf16: everything else computes in f32 between such casts. Zero
// instructions: there is no program. providers/cpu/elementwise.py writes programs.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

struct Chain;

// Prepares the program at ints[first_int] and floats[first_float] as an epilogue of the call's
// first output; operands 1.. are the call's inputs from `first_operand` on. Null without
// instructions.
const Chain* chain_prepare(const Call& call, int first_operand, int first_int, int first_float,
                           Plan& plan);

// Bytes of local memory that chain_run needs, a multiple of 64; 0 for null.
int64_t chain_local_bytes(const Chain* chain);

// Applies the program to n elements of the last axis, from column `col` of row `row` (the axes
// before the last, in row-major order). `incoming` is operand 0 and `out` the destination, in the
// output's type; they may be the same.
void chain_run(const Chain& chain, const Data& data, int64_t row, int64_t col, int64_t n,
               const float* incoming, void* out, std::byte* local);

// The same for whole contiguous rows [row, row + rows).
void chain_rows(const Chain& chain, const Data& data, int64_t row, int64_t rows,
                const float* incoming, void* out, std::byte* local);

// Length of a program in ints and floats.
SDX_INLINE int chain_int_count(const int64_t* ints) { return 2 + 6 * int(ints[0]); }
SDX_INLINE int chain_float_count(const int64_t* ints) { return 2 * int(ints[0]); }

}  // namespace sdx::SDX_ISA
