// n-bit GEMM in float, for many rows: tiles of weights are dequantized into panels of floats in
// local memory and multiplied by the micro-kernel of matmul/tile.h.
#include "kernels/nbits/matmul.h"

namespace sdx::SDX_ISA::nbits {
namespace {

// 144 rows of accumulators are 144 KB: they stay in L2.
constexpr int64_t kMaxItemPanels = 8, kItemColumns = kMaxItemPanels * kPanel;
// Narrow outputs have smaller items: few whole ones would not divide evenly among threads.
constexpr int64_t kMinItems = 8;

// A product along a long k has items of k instead of columns, where x is much larger than y: each
// part of x is then read by one item only, and need not be widened by a phase of its own.
constexpr int64_t kParts = 16, kLongDepth = 64;  // parts of k; k / n from which it is cut

// Views of local memory, after that of the epilogue.
struct Local {
  float* acc;    // [kBlockRows][kItemColumns]; of a long k: rows of x, [kBlockRows][kStride]
  float* panel;  // [kMaxUnpackColumns / kPanel][kDepth][kPanel]
  std::byte* unpack;
};
constexpr int64_t kSumBytes = kBlockRows * kStride * int64_t(sizeof(float));
static_assert(kItemColumns <= kStride);
constexpr int64_t kPanelBytes = kDepth * kMaxUnpackColumns * int64_t(sizeof(float));

SDX_INLINE Local local_of(const MatMul& p, const Data& data) {
  std::byte* at = data.local + chain_local_bytes(p.chain);
  return {reinterpret_cast<float*>(at), reinterpret_cast<float*>(at + kSumBytes),
          at + kSumBytes + kPanelBytes};
}

// Rows of x as the micro-kernel reads them: [k / depth of a pass][m][kStride].
SDX_INLINE float* rows_of(const MatMul& p, const Data& data, int64_t pass, int64_t row) {
  return reinterpret_cast<float*>(data.scratch) + (pass * p.m + row) * kStride;
}

// Partial sums of a part of k: [kParts][m][n].
SDX_INLINE float* sums_of(const MatMul& p, const Data& data, int64_t part, int64_t row) {
  return reinterpret_cast<float*>(data.scratch) + (part * p.m + row) * p.item_columns;
}

// Phase: widens rows of x. Items are rows.
Status widen_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const MatMul*>(args);
  for (int64_t row = begin; row < end; ++row)
    for (int64_t depth = 0; depth < p.w.k; depth += p.depth) {
      const int64_t left = p.w.k - depth;
      widen_row(p, data, row, depth, left < p.depth ? left : p.depth,
                rows_of(p, data, depth / p.depth, row));
    }
  return {};
}

// Adds the product of `rows` rows of x and a tile of weights of any width to accumulators.
SDX_INLINE void add_pass(const MatMul& p, const Data& data, const Unpack& unpack,
                         const Local& local, const WeightTile& at, int64_t rows, const float* x,
                         const Target& acc, bool is_first) {
  for (int64_t j = 0; j < at.width; j += unpack.columns) {
    const int64_t width = at.width - j < unpack.columns ? at.width - j : unpack.columns;
    unpack.run(p.w, data, {at.depth, at.depths, at.column + j, width, at.next_columns}, local.panel,
               local.unpack);
    for (int64_t i = 0; i < width; i += kPanel)
      gemm_pass(rows, at.depths, x, local.panel + i * kDepth,
                width - i < kPanel ? width - i : kPanel, {acc.c + j + i, acc.ldc}, !is_first);
  }
}

// Items: blocks of rows of blocks of columns. A panel is dequantized once per block of up to 144
// rows.
Status multiply(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const MatMul*>(args);
  const Weights& w = p.w;
  const Unpack unpack = find_unpack(w);
  const Local local = local_of(p, data);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % p.row_blocks, column = item / p.row_blocks * p.item_columns;
    const int64_t row = part_begin(p.m, p.row_blocks, block);
    const int64_t rows = part_begin(p.m, p.row_blocks, block + 1) - row;
    const int64_t columns = w.n - column < p.item_columns ? w.n - column : p.item_columns;
    if (w.k == 0) memset(local.acc, 0, size_t(rows * kItemColumns) * sizeof(float));
    for (int64_t depth = 0; depth < w.k; depth += p.depth) {
      const bool is_last = w.k - depth <= p.depth;
      const int64_t depths = is_last ? w.k - depth : p.depth;
      const int64_t next_columns = is_last ? p.item_columns : 0;
      add_pass(p, data, unpack, local, {depth, depths, column, columns, next_columns}, rows,
               rows_of(p, data, depth / p.depth, row), {local.acc, kItemColumns}, depth == 0);
    }
    for (int64_t i = 0; i < rows; ++i)
      finish_row(p, data, row + i, column, columns, local.acc + i * kItemColumns);
  }
  return {};
}

// Phase of a long k. Items: blocks of rows of parts of k, with all columns.
Status multiply_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const MatMul*>(args);
  const Unpack unpack = find_unpack(p.w);
  const Local local = local_of(p, data);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t block = item % p.row_blocks, part = item / p.row_blocks;
    const int64_t row = part_begin(p.m, p.row_blocks, block);
    const int64_t rows = part_begin(p.m, p.row_blocks, block + 1) - row;
    const int64_t passes = (p.w.k + p.depth - 1) / p.depth;
    const int64_t first = part_begin(passes, kParts, part);
    const int64_t last = part_begin(passes, kParts, part + 1);
    for (int64_t pass = first; pass < last; ++pass) {
      const int64_t depth = pass * p.depth, left = p.w.k - depth;
      const int64_t depths = left < p.depth ? left : p.depth;
      for (int64_t i = 0; i < rows; ++i)
        widen_row(p, data, row + i, depth, depths, local.acc + i * kStride);
      add_pass(p, data, unpack, local, {depth, depths, 0, p.w.n}, rows, local.acc,
               {sums_of(p, data, part, row), p.item_columns}, pass == first);
    }
  }
  return {};
}

// Phase after multiply_parts: adds the partial sums. Items are rows.
Status add_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& p = *static_cast<const MatMul*>(args);
  for (int64_t row = begin; row < end; ++row) {
    float* total = sums_of(p, data, 0, row);
    for (int64_t part = 1; part < kParts; ++part) {
      const float* from = sums_of(p, data, part, row);
      vloop(p.w.n, [&](int64_t j, auto lanes) {
        store(total + j, load(total + j, lanes) + load(from + j, lanes), lanes);
      });
    }
    finish_row(p, data, row, 0, p.w.n, total);
  }
  return {};
}

// Passes of nearly equal depth, which begin with a byte of codes and of packed zero points.
int64_t depth_of_pass(const Weights& w) {
  const int64_t passes = passes_of(w.k), unit = w.block < 32 ? 64 : 2 * w.block;
  const int64_t depth = ((w.k + passes - 1) / passes + unit - 1) / unit * unit;
  return depth == 0 || depth > kDepth ? kDepth : depth;
}

}  // namespace

void plan_gemm_float(MatMul& p, Plan& plan) {
  p.depth = depth_of_pass(p.w);
  p.row_blocks = (p.m + kBlockRows - 1) / kBlockRows;
  plan.local_bytes += kSumBytes + kPanelBytes + kUnpackBytes;
  const int64_t lanes = SDX_VEC_BYTES / 2, rows = p.m / p.row_blocks + 8;
  if (p.w.k >= kParts * kDepth && p.w.k >= kLongDepth * p.w.n) {
    p.item_columns = panels_of(p.w.n) * kPanel;
    plan.scratch_bytes = kParts * p.m * p.item_columns * int64_t(sizeof(float));
    plan.add(multiply_parts, p.row_blocks * kParts, rows * (p.w.k / kParts) * p.w.n / lanes);
    plan.add(add_parts, p.m, kParts * p.w.n / lanes);
    return;
  }
  const int64_t passes = (p.w.k + p.depth - 1) / p.depth;
  const int64_t panels = (panels_of(p.w.n) + kMinItems - 1) / kMinItems;
  p.item_columns = (panels < kMaxItemPanels ? panels : kMaxItemPanels) * kPanel;
  const int64_t column_blocks = (p.w.n + p.item_columns - 1) / p.item_columns;
  plan.scratch_bytes = passes * p.m * kStride * int64_t(sizeof(float));
  plan.add(widen_rows, p.m, p.w.k / 8);
  plan.add(multiply, p.row_blocks * column_blocks, rows * p.w.k * p.item_columns / lanes);
}

}  // namespace sdx::SDX_ISA::nbits
