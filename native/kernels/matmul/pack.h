// Packing: copies of matrices into the layouts that tiles read (tile.h), widened to float or
// rounded to bf16 pairs. Panels of B are [k][32]; rows of A are row-major, kStride apart.
// Transposed sources go through squares that are transposed in registers (simd/transpose.h).
#pragma once

#include "kernels/matmul/tile.h"
#include "simd/half.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA {

// to[i * to_stride + j] = from[i * row_stride + j * column_stride] as float, for any strides.
template <class T>
SDX_INLINE void copy_scattered(const T* from, int64_t row_stride, int64_t column_stride,
                               int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      to[i * to_stride + j] = to_float(from + i * row_stride + j * column_stride);
}

// The same for row_stride 1, in as many whole squares of N x N as there are.
template <int N, class U>
SDX_INLINE void transpose_squares(const U* from, int64_t column_stride, int64_t rows,
                                  int64_t columns, U* to, int64_t to_stride) {
  constexpr int kBytes = N * int(sizeof(U));
  for (int64_t i = 0; i + N <= rows; i += N)
    for (int64_t j = 0; j + N <= columns; j += N)
      transpose_square<uint32_t, kBytes>(
          reinterpret_cast<const std::byte*>(from + i + j * column_stride),
          column_stride * int64_t(sizeof(float)),
          reinterpret_cast<std::byte*>(to + i * to_stride + j), to_stride * int64_t(sizeof(float)));
}

// The same for row_stride 1 and any size: squares of a vector's lanes, then squares of 4, then the
// remaining elements one by one.
template <class T>
SDX_INLINE void copy_transposed(const T* from, int64_t column_stride, int64_t rows, int64_t columns,
                                float* to, int64_t to_stride) {
  int64_t whole = 0, across = 0;  // rows and columns copied so far
  if constexpr (sizeof(T) == sizeof(float)) {
    whole = rows / kLanes * kLanes, across = columns / kLanes * kLanes;
    transpose_squares<kLanes>(from, column_stride, whole, across, to, to_stride);
    const int64_t more = (columns - across) / 4 * 4;
    transpose_squares<4>(from + across * column_stride, column_stride, whole, more, to + across,
                         to_stride);
    across += more;
    const int64_t below = (rows - whole) / 4 * 4;
    transpose_squares<4>(from + whole, column_stride, below, across, to + whole * to_stride,
                         to_stride);
    whole += below;
  }
  copy_scattered(from + across * column_stride, 1, column_stride, whole, columns - across,
                 to + across, to_stride);
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
    copy_transposed(from, column_stride, rows, columns, to, to_stride);
  } else {
    copy_scattered(from, row_stride, column_stride, rows, columns, to, to_stride);
  }
}

// Panel `panel` of a matrix [k, n] as [k][32] floats, zero padded after column n.
template <class T>
SDX_INLINE void pack_panel(const T* from, int64_t row_stride, int64_t column_stride, int64_t k,
                           int64_t n, int64_t panel, float* to) {
  const int64_t first = panel * kPanel, left = n - first;
  const int64_t width = left < kPanel ? left : kPanel;
  if (width == kPanel && column_stride == 1) {
    for (int64_t i = 0; i < k; ++i)
#pragma GCC unroll 8
      for (int64_t j = 0; j < kPanel; j += kLanes)
        store(to + i * kPanel + j, load_float(from + first + i * row_stride + j, Full{}));
    return;
  }
  copy_matrix(from + first * column_stride, row_stride, column_stride, k, width, to, kPanel);
  if (width == kPanel) return;
  for (int64_t i = 0; i < k; ++i)
    memset(to + i * kPanel + width, 0, size_t(kPanel - width) * sizeof(float));
}

// n contiguous values as bf16 pairs; an odd last value is paired with 0.
template <class T>
SDX_INLINE void copy_pairs(const T* from, int64_t n, Bf16Pair* to) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes)
    store(to + i / 2,
          pair_row_bf16(load_float(from + i, Full{}), load_float(from + i + kLanes, Full{})));
  const int left = int(n - i);
  if (left == 0) return;
  const f32v first = load_float(from + i, Part{left < kLanes ? left : kLanes});
  const f32v second = left > kLanes ? load_float(from + i + kLanes, Part{left - kLanes}) : f32v{};
  store(to + i / 2, pair_row_bf16(first, second), Part{(left + 1) / 2});
}
SDX_INLINE void copy_pairs(const BF16* from, int64_t n, Bf16Pair* to) {
  if (n % 2 != 0) to[n / 2] = from[n - 1].bits;
  memcpy(to, from, size_t(n / 2) * sizeof(Bf16Pair));
}

// Rows of A for bf16 tiles: to[i * kStride + p] is the pair of elements (i, 2p) and (i, 2p + 1).
template <class T>
SDX_INLINE void copy_rows_to_pairs(const T* from, int64_t row_stride, int64_t column_stride,
                                   int64_t rows, int64_t columns, Bf16Pair* to) {
  if (column_stride == 1 || columns <= 1) {
    for (int64_t i = 0; i < rows; ++i) copy_pairs(from + i * row_stride, columns, to + i * kStride);
    return;
  }
  constexpr int64_t kRows = 16, kStep = 2 * kDepth + 16;
  float wide[kRows * kStep];
  for (int64_t i = 0; i < rows; i += kRows) {
    const int64_t n = rows - i < kRows ? rows - i : kRows;
    copy_matrix(from + i * row_stride, row_stride, column_stride, n, columns, wide, kStep);
    for (int64_t j = 0; j < n; ++j) copy_pairs(wide + j * kStep, columns, to + (i + j) * kStride);
  }
}

// A panel [k][32] of floats as pairs of neighbouring rows, [k / 2][32].
SDX_INLINE void pair_rows(const float* from, int64_t k, Bf16Pair* to) {
  for (int64_t i = 0; i < k; i += 2)
#pragma GCC unroll 8
    for (int64_t j = 0; j < kPanel; j += kLanes) {
      const float* at = from + i * kPanel + j;
      store(to + i / 2 * kPanel + j, pair_bf16(load(at), i + 1 < k ? load(at + kPanel) : f32v{}));
    }
}

// A panel of pairs from a B whose columns are contiguous: pairing first halves what is transposed.
// kStep keeps the 32 columns of the buffer out of one set of the L1 cache.
template <class T>
SDX_INLINE void transpose_to_pairs(const T* from, int64_t column_stride, int64_t k, int64_t width,
                                   Bf16Pair* to) {
  constexpr int64_t kPairs = 32, kStep = kPairs + 16;
  Bf16Pair columns[kPanel * kStep];
  for (int64_t i = 0; i < k; i += 2 * kPairs, to += kPairs * kPanel) {
    const int64_t n = k - i < 2 * kPairs ? k - i : 2 * kPairs, pairs = depth_of<Bf16Pair>(n);
    for (int64_t j = 0; j < width; ++j)
      copy_pairs(from + i + j * column_stride, n, columns + j * kStep);
    for (int64_t j = width; j < kPanel; ++j)
      memset(columns + j * kStep, 0, size_t(pairs) * sizeof(Bf16Pair));
    const int64_t whole = pairs / kLanes * kLanes;
    transpose_squares<kLanes>(columns, kStep, whole, kPanel, to, kPanel);
    for (int64_t p = whole; p < pairs; ++p)
      for (int64_t j = 0; j < kPanel; ++j) to[p * kPanel + j] = columns[j * kStep + p];
  }
}

// Panel `panel` of a matrix [k, n] as bf16 pairs, [k / 2][32].
template <class T>
SDX_INLINE void pack_panel(const T* from, int64_t row_stride, int64_t column_stride, int64_t k,
                           int64_t n, int64_t panel, Bf16Pair* to) {
  const int64_t first = panel * kPanel, left = n - first;
  if (row_stride == 1 && column_stride != 1)
    return transpose_to_pairs(from + first * column_stride, column_stride, k,
                              left < kPanel ? left : kPanel, to);
  constexpr int64_t kRows = 64;
  float wide[kRows * kPanel];
  for (int64_t i = 0; i < k; i += kRows) {
    const int64_t rows = k - i < kRows ? k - i : kRows;
    pack_panel(from + i * row_stride, row_stride, column_stride, rows, n, panel, wide);
    pair_rows(wide, rows, to + i / 2 * kPanel);
  }
}

}  // namespace sdx::SDX_ISA
