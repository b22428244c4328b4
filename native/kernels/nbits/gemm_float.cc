// n-bit GEMM in float, for many rows: tiles of weights are dequantized into panels of floats in
// local memory and multiplied by the micro-kernel of matmul/tile.h.
#include "kernels/nbits/matmul.h"

namespace sdx::SDX_ISA::nbits {
namespace {

// 144 rows of accumulators are 144 KB: they stay in L2.
constexpr int64_t kMaxItemPanels = 8, kItemColumns = kMaxItemPanels * kPanel;
// Narrow outputs have smaller items: few whole ones would not divide evenly among threads.
constexpr int64_t kMinItems = 8;

// Views of local memory, after that of the epilogue.
struct Local {
  float* acc;    // [kBlockRows][kItemColumns]
  float* panel;  // [kDepth][kPanel]
  std::byte* unpack;
};
constexpr int64_t kSumBytes = kBlockRows * kItemColumns * int64_t(sizeof(float));
constexpr int64_t kPanelBytes = kDepth * kPanel * int64_t(sizeof(float));

SDX_INLINE Local local_of(const MatMul& p, const Data& data) {
  std::byte* at = data.local + chain_local_bytes(p.chain);
  return {reinterpret_cast<float*>(at), reinterpret_cast<float*>(at + kSumBytes),
          at + kSumBytes + kPanelBytes};
}

// Rows of x as the micro-kernel reads them: [k / kDepth][m][kStride].
SDX_INLINE float* rows_of(const MatMul& p, const Data& data, int64_t pass, int64_t row) {
  return reinterpret_cast<float*>(data.scratch) + (pass * p.m + row) * kStride;
}

// Phase: widens rows of x. Items are rows.
Status widen_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const MatMul*>(args);
  for (int64_t row = begin; row < end; ++row)
    for (int64_t depth = 0; depth < p.w.k; depth += kDepth) {
      const int64_t left = p.w.k - depth;
      widen_row(p, data, row, depth, left < kDepth ? left : kDepth,
                rows_of(p, data, depth / kDepth, row));
    }
  return {};
}

// Items: blocks of rows of blocks of columns. A panel is dequantized once per block of up to 144
// rows.
Status multiply(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const MatMul*>(args);
  const Weights& w = p.w;
  const UnpackFn unpack = find_unpack(w);
  const Local local = local_of(p, data);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % p.row_blocks, column = item / p.row_blocks * p.item_columns;
    const int64_t row = part_begin(p.m, p.row_blocks, block);
    const int64_t rows = part_begin(p.m, p.row_blocks, block + 1) - row;
    const int64_t columns = w.n - column < p.item_columns ? w.n - column : p.item_columns;
    if (w.k == 0) memset(local.acc, 0, size_t(rows * kItemColumns) * sizeof(float));
    for (int64_t depth = 0; depth < w.k; depth += kDepth) {
      const int64_t depths = w.k - depth < kDepth ? w.k - depth : kDepth;
      for (int64_t j = 0; j < columns; j += kPanel) {
        const int64_t width = columns - j < kPanel ? columns - j : kPanel;
        unpack(w, data, {depth, depths, column + j, width}, local.panel, local.unpack);
        gemm_pass(rows, depths, rows_of(p, data, depth / kDepth, row), local.panel, width,
                  {local.acc + j, kItemColumns}, depth > 0);
      }
    }
    for (int64_t i = 0; i < rows; ++i)
      finish_row(p, data, row + i, column, columns, local.acc + i * kItemColumns);
  }
  return {};
}

}  // namespace

void plan_gemm_float(MatMul& p, Plan& plan) {
  const int64_t passes = (p.w.k + kDepth - 1) / kDepth;
  const int64_t panels = (panels_of(p.w.n) + kMinItems - 1) / kMinItems;
  p.item_columns = (panels < kMaxItemPanels ? panels : kMaxItemPanels) * kPanel;
  const int64_t column_blocks = (p.w.n + p.item_columns - 1) / p.item_columns;
  p.row_blocks = (p.m + kBlockRows - 1) / kBlockRows;
  plan.local_bytes += kSumBytes + kPanelBytes + kUnpackBytes;
  plan.scratch_bytes = passes * p.m * kStride * int64_t(sizeof(float));
  plan.add(widen_rows, p.m, p.w.k / 8);
  plan.add(multiply, p.row_blocks * column_blocks,
           (p.m / p.row_blocks + 8) * p.w.k * p.item_columns / (SDX_VEC_BYTES / 2));
}

}  // namespace sdx::SDX_ISA::nbits
