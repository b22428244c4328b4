// Arguments and helpers shared by the n-bit matmuls.
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/matmul/tile.h"
#include "kernels/nbits/weights.h"

namespace sdx::SDX_ISA::nbits {

struct MatMul {
  Weights w;
  int64_t m;
  DType x, y;
  const Chain* chain;    // epilogue program, or null
  int64_t row_blocks;    // blocks of rows: items with the same columns
  int64_t item_columns;  // of an item of the GEMM in float
  int64_t depth;         // of a pass along k of the GEMM in float
};

// Epilogue and output conversion of columns [column, column + n) of one row.
void finish_row(const MatMul& p, const Data& data, int64_t row, int64_t column, int64_t n,
                const float* acc);

// Elements [begin, begin + n) of a row of x as floats.
void widen_row(const MatMul& p, const Data& data, int64_t row, int64_t begin, int64_t n, float* to);

// Weights [depth, depth + depths) of columns [column, column + width). The tile to prefetch is the
// next one along the depth, or the first of columns `next_columns` further on.
struct WeightTile {
  int64_t depth, depths, column, width, next_columns = 0;
};

// Dequantizes a tile of at most `columns` columns into panels of floats [kDepth][32].
struct Unpack {
  void (*run)(const Weights& w, const Data& data, const WeightTile& at, float* to,
              std::byte* local);
  int64_t columns;
};
constexpr int64_t kMaxUnpackColumns = 4 * kPanel;
Unpack find_unpack(const Weights& w);
constexpr int64_t kUnpackBytes = 2 * kDepth * kPanel * int64_t(sizeof(float));

// Matmul in float for any number of rows, with panels dequantized on the fly.
void plan_gemm_float(MatMul& p, Plan& plan);

}  // namespace sdx::SDX_ISA::nbits
