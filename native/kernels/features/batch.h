// Batches of feature rows, of the element types that the estimators of ai.onnx.ml take.
#pragma once

#include "kernels/kernel.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {

constexpr int64_t kRowsPerItem = 16;  // enough work for an item even with few features

// Rows of features, row_stride elements apart; a 1-d input is a single row.
struct Batch {
  DType dtype = DType::none;
  int64_t n_rows = 0, width = 0, row_stride = 0;
};

SDX_INLINE Batch batch_of(const View& x) {
  if (x.rank < 2) return {x.dtype, 1, x.rank < 1 ? 1 : x.dims[0], 0};
  return {x.dtype, x.dims[0], x.dims[1], x.strides[0]};
}

SDX_INLINE int64_t items_of(int64_t n_rows) { return (n_rows + kRowsPerItem - 1) / kRowsPerItem; }

// Calls body(row) for the rows of items [begin, end).
template <class Body>
SDX_INLINE void each_row(int64_t n_rows, int64_t begin, int64_t end, Body&& body) {
  const int64_t last = end * kRowsPerItem < n_rows ? end * kRowsPerItem : n_rows;
  for (int64_t row = begin * kRowsPerItem; row < last; ++row) body(row);
}

// Calls f with a null pointer to the element type of a batch.
template <class F>
SDX_INLINE void visit_features(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(static_cast<const float*>(nullptr));
    case DType::f64: return f(static_cast<const double*>(nullptr));
    case DType::i32: return f(static_cast<const int32_t*>(nullptr));
    default: return f(static_cast<const int64_t*>(nullptr));
  }
}

}  // namespace sdx::SDX_ISA
