// Batches of matrices with any strides, and the shape of a batched matmul after broadcasting.
#pragma once

#include "kernels/kernel.h"
#include "kernels/matmul/tile.h"

namespace sdx::SDX_ISA {

// Axes iterated in row-major order, with a stride for each; axes of size 1 are dropped.
struct StridedAxes {
  int rank = 0;
  int64_t dims[kMaxRank];
  int64_t strides[kMaxRank];

  // Appends an axis, merged with the last one where both together have a single stride.
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

// One operand: matrices [rows, columns], and the batch axes before them.
struct MatrixBatch {
  int64_t rows = 1, columns = 1, row_stride = 0, column_stride = 0;
  int rank = 0;  // number of batch axes
  int64_t dims[kMaxRank], strides[kMaxRank];

  // Size and stride of the batch axis `from_end` axes before the matrices; size 1, and stride 0
  // where it is broadcast.
  SDX_INLINE int64_t dim(int from_end) const {
    return from_end < rank ? dims[rank - 1 - from_end] : 1;
  }
  SDX_INLINE int64_t stride(int from_end) const {
    return dim(from_end) == 1 ? 0 : strides[rank - 1 - from_end];
  }
};

// A vector is a row on the left side, a column on the right (ONNX MatMul).
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

// A matmul [batches] x [m, k] x [k, n] into a row-major output. The innermost batch axes along
// which B does not change are merged into m: one larger matmul in place of many small ones.
struct MatMulShape {
  int64_t m, n, k;
  StridedAxes rows;  // offsets of the m rows of A
  int64_t k_stride;  // of A
  int64_t batches;
  StridedAxes a;               // offset of A for each batch
  StridedAxes b;               // offset of each distinct matrix of B
  StridedAxes b_matrix_index;  // index of the matrix of B that a batch multiplies by
  int64_t b_row_stride, b_column_stride;
};

SDX_INLINE MatMulShape matmul_shape(const MatrixBatch& a, const MatrixBatch& b) {
  MatMulShape p{a.rows, b.columns, a.columns, {},           a.column_stride, 1,
                {},     {},        {},        b.row_stride, b.column_stride};
  const int rank = a.rank > b.rank ? a.rank : b.rank;
  // innermost batch axes along which B is broadcast
  int merged = 0;
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
    p.b_matrix_index.add(dim, step[i]);
    p.b.add(b.dim(i), b.stride(i));
  }
  return p;
}

}  // namespace sdx::SDX_ISA
