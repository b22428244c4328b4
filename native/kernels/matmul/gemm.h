// What the phases of a product share.
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/matmul/operands.h"
#include "kernels/matmul/pack.h"

namespace sdx::SDX_ISA {

struct GemmArgs {
  MatMulShape p;
  int64_t out_row_stride;  // elements between rows of the output
  Split split;             // of one batch
  int64_t packed_floats;   // of one matrix of B, or pairs
  TileEpilogue finish;
  int bias_slot, start_slot;     // of the inputs; -1: not given
  StridedAxes start_rows;        // where rows of the start lie
  int64_t start_stride;          // of its columns
  bool is_start_whole;           // it lies as the output does, both without gaps
  const Chain* chain;            // what follows, or null
  DType to;                      // of the output
  bool is_buffered;              // acc do not grow where they end up
  int64_t c_at, chain_at, b_at;  // in a thread's own memory, behind the rows of A
};

// A part of the output.
struct OutputTile {
  int64_t batch, row, rows, column, columns;
};

// Sums become rows of the output while they are hot, where that takes more than `TileEpilogue` did.
void finish_tile(const GemmArgs& args, const Data& data, const OutputTile& at, const Target& acc);

// Where the acc of an area begin: what lies as the output does is read there, all else is first
// brought to where they grow. Null: with nothing.
const float* start_of(const GemmArgs& args, const Data& data, const OutputTile& at,
                      const Target& acc);

// Products of f32 with few rows or few columns, which read B once and do not pack it. False where
// panels are faster.
bool plan_gemv(const GemmArgs& args, Plan& plan);

// Items of a pack are panels of the matrices of B.
template <class T, class U>
SDX_INLINE void pack_panels(const MatMulShape& p, const T* from, U* to, int64_t begin,
                            int64_t end) {
  const int64_t panels = panels_of(p.n);
  for (int64_t i = begin; i < end; ++i)
    pack_panel(from + p.b.offset(i / panels), p.b_row_stride, p.b_column_stride, p.k, p.n,
               i % panels, to + i * kPanel * depth_of<U>(p.k));
}

template <class T>
SDX_INLINE void copy_a(const T* from, int64_t row_stride, int64_t k_stride, int64_t rows, int64_t k,
                       float* to) {
  copy_matrix(from, row_stride, k_stride, rows, k, to, kStride);
}
template <class T>
SDX_INLINE void copy_a(const T* from, int64_t row_stride, int64_t k_stride, int64_t rows, int64_t k,
                       Bf16Pair* to) {
  copy_rows_to_pairs(from, row_stride, k_stride, rows, k, to);
}

// Rows [row, row + rows) of a batch of A, which begins at `from`: elements [depth, depth + depths)
// of them, or pairs.
template <class T, class U>
SDX_INLINE void fill_rows(const MatMulShape& p, const T* from, U* to, int64_t row, int64_t rows,
                          int64_t depth, int64_t depths) {
  const int64_t first = depth * kValuesPer<U>, last = (depth + depths) * kValuesPer<U>;
  const int64_t k = (last < p.k ? last : p.k) - first;
  from += first * p.k_stride;
  if (p.rows.rank <= 1) {
    const int64_t stride = p.rows.rank == 0 ? 0 : p.rows.strides[0];
    return copy_a(from + row * stride, stride, p.k_stride, rows, k, to);
  }
  for (int64_t i = 0; i < rows; ++i)
    copy_a(from + p.rows.offset(row + i), 0, p.k_stride, 1, k, to + i * kStride);
}

}  // namespace sdx::SDX_ISA
