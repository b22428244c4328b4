// Stacks of matrices with any strides, and how the operands of a product go together.
#pragma once

#include "kernels/kernel.h"
#include "kernels/matmul/tile.h"

namespace sdx::SDX_ISA {

// StridedAxes that are counted through in row-major order, with a stride for each.
struct StridedAxes {
  int rank = 0;
  int64_t dims[kMaxRank];
  int64_t strides[kMaxRank];

  // Joins the last axis where both can be walked as one.
  SDX_INLINE void add(int64_t dim, int64_t stride) {
    if (dim == 1) return;
    if (rank > 0 && strides[rank - 1] == dim * stride) {
      dims[rank - 1] *= dim;
      strides[rank - 1] = stride;
      return;
    }
    dims[rank] = dim;
    strides[rank++] = stride;
  }

  SDX_INLINE int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }

  SDX_INLINE int64_t offset(int64_t index) const {
    int64_t at = 0;
    for (int i = rank - 1; i >= 0; --i) {
      at += index % dims[i] * strides[i];
      index /= dims[i];
    }
    return at;
  }
};

// One operand: matrices [rows, columns], and the axes before them.
struct MatrixBatch {
  int64_t rows = 1, columns = 1, row_stride = 0, column_stride = 0;
  int rank = 0;  // of the axes before the matrices
  int64_t dims[kMaxRank], strides[kMaxRank];

  // The axis that is `from_end` axes before the matrices.
  SDX_INLINE int64_t dim(int from_end) const {
    return from_end < rank ? dims[rank - 1 - from_end] : 1;
  }
  SDX_INLINE int64_t stride(int from_end) const {
    return dim(from_end) == 1 ? 0 : strides[rank - 1 - from_end];
  }
};

// A vector is a row on the left, a column on the right.
SDX_INLINE MatrixBatch matrix_batch(const View& view, bool is_left, bool is_transposed) {
  MatrixBatch s;
  if (view.rank == 1) {
    (is_left ? s.columns : s.rows) = view.dims[0];
    (is_left ? s.column_stride : s.row_stride) = view.strides[0];
    return s;
  }
  const int row = is_transposed ? -1 : -2, column = is_transposed ? -2 : -1;
  s.rows = view.dim(row), s.columns = view.dim(column);
  s.row_stride = view.stride(row), s.column_stride = view.stride(column);
  s.rank = view.rank - 2;
  for (int i = 0; i < s.rank; ++i) s.dims[i] = view.dims[i], s.strides[i] = view.strides[i];
  return s;
}

// A product [batches] x [m, k] x [k, n] into a row-major output. StridedAxes along which there is
// one B are rows of one larger product.
struct MatMulShape {
  int64_t m, n, k;
  StridedAxes rows;  // of A, m in all
  int64_t k_stride;  // of A
  int64_t batches;
  StridedAxes a;      // where the batches of A lie
  StridedAxes b;      // where each matrix of B lies, those it has: its batches without repeats
  StridedAxes which;  // the number of its B, for each batch
  int64_t b_row_stride, b_column_stride;
};

SDX_INLINE MatMulShape matmul_shape(const MatrixBatch& a, const MatrixBatch& b) {
  MatMulShape p{a.rows, b.columns, a.columns, {},           a.column_stride, 1,
                {},     {},        {},        b.row_stride, b.column_stride};
  const int rank = a.rank > b.rank ? a.rank : b.rank;
  int merged = 0;  // axes next to the matrices along which there is one B
  while (merged < rank && b.dim(merged) == 1) ++merged;
  for (int i = merged - 1; i >= 0; --i) {
    p.rows.add(a.dim(i), a.stride(i));
    p.m *= a.dim(i);
  }
  p.rows.add(a.rows, a.row_stride);
  int64_t matrices = 1;
  int64_t step[kMaxRank];
  for (int i = 0; i < rank; ++i) {
    step[i] = b.dim(i) == 1 ? 0 : matrices;
    matrices *= b.dim(i);
  }
  for (int i = rank - 1; i >= merged; --i) {
    const int64_t dim = a.dim(i) == 1 ? b.dim(i) : a.dim(i);
    p.batches *= dim;
    p.a.add(dim, a.stride(i));
    p.which.add(dim, step[i]);
    p.b.add(b.dim(i), b.stride(i));
  }
  return p;
}

}  // namespace sdx::SDX_ISA
