// Copies of matrices into the forms that tiles read: panels of B, rows of A.
#pragma once

#include "kernels/gemm/tile.h"
#include "simd/half.h"

namespace sdx::SDX_ISA {

typedef float Four __attribute__((vector_size(16)));

// A square of 4 x 4: to[i * to_stride + j] = from[j * from_stride + i].
SDX_INLINE void turn_square(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  Four a, b, c, d;
  memcpy(&a, from, sizeof a);
  memcpy(&b, from + from_stride, sizeof b);
  memcpy(&c, from + 2 * from_stride, sizeof c);
  memcpy(&d, from + 3 * from_stride, sizeof d);
  const Four ac = __builtin_shufflevector(a, c, 0, 4, 1, 5);
  const Four bd = __builtin_shufflevector(b, d, 0, 4, 1, 5);
  const Four ca = __builtin_shufflevector(a, c, 2, 6, 3, 7);
  const Four db = __builtin_shufflevector(b, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(ac, bd, 0, 4, 1, 5);
  b = __builtin_shufflevector(ac, bd, 2, 6, 3, 7);
  c = __builtin_shufflevector(ca, db, 0, 4, 1, 5);
  d = __builtin_shufflevector(ca, db, 2, 6, 3, 7);
  memcpy(to, &a, sizeof a);
  memcpy(to + to_stride, &b, sizeof b);
  memcpy(to + 2 * to_stride, &c, sizeof c);
  memcpy(to + 3 * to_stride, &d, sizeof d);
}

// to[i * to_stride + j] = from[i * row_stride + j * column_stride], as float.
template <class T>
SDX_INLINE void copy_scattered(const T* from, int64_t row_stride, int64_t column_stride,
                               int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      to[i * to_stride + j] = to_float(from + i * row_stride + j * column_stride);
}

// The same where columns of the result lie in memory as they are: row_stride is 1.
template <class T>
SDX_INLINE void copy_turned(const T* from, int64_t column_stride, int64_t rows, int64_t columns,
                            float* to, int64_t to_stride) {
  int64_t whole = 0;  // rows that are done
  if constexpr (sizeof(T) == sizeof(float)) {
    whole = rows & ~int64_t(3);
    const int64_t across = columns & ~int64_t(3);
    for (int64_t i = 0; i < whole; i += 4) {
      for (int64_t j = 0; j < across; j += 4)
        turn_square(from + i + j * column_stride, column_stride, to + i * to_stride + j, to_stride);
      copy_scattered(from + i + across * column_stride, 1, column_stride, 4, columns - across,
                     to + i * to_stride + across, to_stride);
    }
  }
  copy_scattered(from + whole, 1, column_stride, rows - whole, columns, to + whole * to_stride,
                 to_stride);
}

template <class T>
SDX_INLINE void copy_straight(const T* from, int64_t row_stride, int64_t rows, int64_t columns,
                              float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i)
    vloop(columns, [&](int64_t j, auto lanes) {
      store(to + i * to_stride + j, load_float(from + i * row_stride + j, lanes), lanes);
    });
}

template <class T>
SDX_INLINE void copy_matrix(const T* from, int64_t row_stride, int64_t column_stride, int64_t rows,
                            int64_t columns, float* to, int64_t to_stride) {
  if (column_stride == 1 || columns <= 1) {
    copy_straight(from, row_stride, rows, columns, to, to_stride);
  } else if (row_stride == 1) {
    copy_turned(from, column_stride, rows, columns, to, to_stride);
  } else {
    copy_scattered(from, row_stride, column_stride, rows, columns, to, to_stride);
  }
}

// Panel `panel` of a matrix [k, n].
template <class T>
SDX_INLINE void pack_panel(const T* from, int64_t row_stride, int64_t column_stride, int64_t k,
                           int64_t n, int64_t panel, float* to) {
  const int64_t first = panel * kPanel, left = n - first;
  const int64_t width = left < kPanel ? left : kPanel;
  copy_matrix(from + first * column_stride, row_stride, column_stride, k, width, to, kPanel);
  if (width == kPanel) return;
  for (int64_t i = 0; i < k; ++i)
    memset(to + i * kPanel + width, 0, size_t(kPanel - width) * sizeof(float));
}

}  // namespace sdx::SDX_ISA
