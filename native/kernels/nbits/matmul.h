// What the phases of a product share.
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/matmul/tile.h"
#include "kernels/nbits/weights.h"

namespace sdx::SDX_ISA::nbits {

struct MatMul {
  Weights w;
  int64_t m;
  DType x, y;
  const Chain* chain;  // what follows, or null
  int64_t row_blocks;  // items with the same columns
};

// Sums of columns [column, column + n) of one row become part of the output.
void finish_row(const MatMul& p, const Data& data, int64_t row, int64_t column, int64_t n,
                const float* sums);

// Elements [begin, begin + n) of a row of x as floats.
void widen_row(const MatMul& p, const Data& data, int64_t row, int64_t begin, int64_t n, float* to);

// Rows [depth, depth + depths) of columns [column, column + width), at most a panel of them.
struct WeightTile {
  int64_t depth, depths, column, width;
};

// An area as a panel of floats [k][32].
using UnpackFn = void (*)(const Weights& w, const Data& data, const WeightTile& at, float* to,
                          std::byte* local);
UnpackFn find_unpack(const Weights& w);
constexpr int64_t kUnpackBytes = 2 * kDepth * kPanel * int64_t(sizeof(float));

// Exact products of any number of rows, by panels of floats that are unpacked on the way.
void plan_gemm_float(MatMul& p, Plan& plan);

}  // namespace sdx::SDX_ISA::nbits
