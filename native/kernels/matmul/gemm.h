// Arguments and helpers shared by the phases of a matmul (gemm.cc, gemv.cc).
#pragma once

#include "kernels/elementwise/chain.h"
#include "kernels/matmul/operands.h"
#include "kernels/matmul/pack.h"

namespace sdx::SDX_ISA {

struct GemmArgs {
  MatMulShape p;
  int64_t out_row_stride;  // elements between rows of the output
  Split split;             // of one batch, or of its widest stripe
  int64_t stripes;         // of columns of B, packed one after the other
  int64_t packed_floats;   // elements of one packed matrix of B
  TileEpilogue finish;
  int bias_operand, start_operand;  // of the inputs; -1: not given
  StridedAxes start_rows;           // offsets of the rows of the initial accumulators
  int64_t start_stride;             // stride of their columns
  bool is_start_whole;              // it and the output are contiguous
  const Chain* chain;               // epilogue program, or null
  DType to;                         // element type of the output
  bool is_buffered;                 // accumulators are in local memory, not in the output
  int64_t c_at, chain_at, b_at;     // offsets in local memory, after the rows of A
};

// Rows [row, row + rows) and columns [column, column + columns) of one batch of the output.
struct OutputTile {
  int64_t batch, row, rows, column, columns;
};

// Epilogue program and conversion to the output type, for rows whose accumulators are complete and
// still in cache.
void finish_tile(const GemmArgs& args, const Data& data, const OutputTile& at, const Target& acc);

// Initial accumulators of a tile: read in place if they have the output's layout, else first copied
// to the accumulators; null if they are zero.
const float* start_of(const GemmArgs& args, const Data& data, const OutputTile& at,
                      const Target& acc);

// Plans gemv.cc for small-m and small-n matmuls of f32; false if panels are faster.
bool plan_gemv(const GemmArgs& args, Plan& plan);

// Packs panels [begin, end), counted through all matrices of B.
template <class T, class U>
SDX_INLINE void pack_panels(const MatMulShape& p, const T* from, U* to, int64_t begin,
                            int64_t end) {
  const int64_t panels = panels_of(p.n);
  for (int64_t i = begin; i < end; ++i)
    pack_panel(from + p.b.offset(i / panels), p.b_row_stride, p.b_column_stride, p.k, p.n,
               i % panels, to + i * kPanel * depth_of<U>(p.k));
}

// Rows of A into the local block, as floats or bf16 pairs.
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

// The `fill` of gemm_block: rows [row, row + rows) of one batch of A, elements (or pairs) [depth,
// depth + depths) of each.
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
