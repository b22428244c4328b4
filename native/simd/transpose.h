// Transposes of small blocks in registers, for elements of 1, 2, 4 and 8 bytes. A lane here is 128
// bits of a vector: shuffles within it are cheap on every ISA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

constexpr int kLaneBytes = 16;  // 128 bits, whatever the width of a vector

template <class T, int kBytes>
struct WideOf {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <class T, int kBytes>
using Wide = typename WideOf<T, kBytes>::type;

template <class V, size_t... I>
SDX_INLINE auto joined(V a, V b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, int(I)...);
}

// One vector of 16-byte pieces that are `stride` bytes apart.
template <class T, int kBytes>
SDX_INLINE Wide<T, kBytes> load_lanes(const std::byte* p, int64_t stride) {
  if constexpr (kBytes == kLaneBytes) {
    Wide<T, kBytes> v;
    memcpy(&v, p, sizeof v);
    return v;
  } else {
    constexpr int kHalf = kBytes / 2;
    return joined(load_lanes<T, kHalf>(p, stride),
                  load_lanes<T, kHalf>(p + kHalf / kLaneBytes * stride, stride),
                  std::make_index_sequence<kBytes / sizeof(T)>{});
  }
}

// Source element of index i when the low (0) or high (1) halves of each lane of (a, b) are
// interleaved: the x86 unpack instructions.
template <int kPerLane, int kCount>
constexpr int interleaved(int high, int i) {
  const int lane = i / kPerLane, j = i % kPerLane;
  return lane * kPerLane + high * kPerLane / 2 + j / 2 + (j % 2) * kCount;
}

template <class T, int kBytes, int kHigh, size_t... I>
SDX_INLINE Wide<T, kBytes> interleave(Wide<T, kBytes> a, Wide<T, kBytes> b,
                                      std::index_sequence<I...>) {
  constexpr int kPerLane = kLaneBytes / int(sizeof(T)), kCount = kBytes / int(sizeof(T));
  return __builtin_shufflevector(a, b, interleaved<kPerLane, kCount>(kHigh, int(I))...);
}

// Transposes the rows x elements within every lane: interleaving row i with row i + half,
// log2(kPerLane) times, does it.
template <class T, int kBytes, int kPerLane>
SDX_INLINE void transpose_lanes(Wide<T, kBytes> (&v)[kPerLane]) {
  constexpr auto kIndices = std::make_index_sequence<kBytes / sizeof(T)>{};
  Wide<T, kBytes> w[kPerLane];
  for (int rows = kPerLane; rows > 1; rows /= 2) {
    for (int i = 0; i < kPerLane / 2; ++i) {
      w[2 * i] = interleave<T, kBytes, 0>(v[i], v[i + kPerLane / 2], kIndices);
      w[2 * i + 1] = interleave<T, kBytes, 1>(v[i], v[i + kPerLane / 2], kIndices);
    }
    for (int i = 0; i < kPerLane; ++i) v[i] = w[i];
  }
}

// Columns become rows: kPerLane elements of each of kBytes / sizeof(T) source rows, `from_stride`
// bytes apart, to kPerLane rows of kBytes, `to_stride` bytes apart.
template <class T, int kBytes>
SDX_INLINE void transpose_block(const std::byte* from, int64_t from_stride, std::byte* to,
                                int64_t to_stride) {
  constexpr int kPerLane = kLaneBytes / int(sizeof(T));
  Wide<T, kBytes> v[kPerLane];
  for (int i = 0; i < kPerLane; ++i)
    v[i] = load_lanes<T, kBytes>(from + i * from_stride, kPerLane * from_stride);
  transpose_lanes<T, kBytes>(v);
  for (int i = 0; i < kPerLane; ++i) memcpy(to + i * to_stride, &v[i], kBytes);
}

// Transposes lanes between rows: lane k of row i and lane i of row k are exchanged.
SDX_INLINE void swap_lanes(Wide<uint64_t, 32> (&v)[2]) {
  const auto low = __builtin_shufflevector(v[0], v[1], 0, 1, 4, 5);
  v[1] = __builtin_shufflevector(v[0], v[1], 2, 3, 6, 7);
  v[0] = low;
}
SDX_INLINE void swap_lanes(Wide<uint64_t, 64> (&v)[4]) {
  const auto a = __builtin_shufflevector(v[0], v[1], 0, 1, 2, 3, 8, 9, 10, 11);
  const auto b = __builtin_shufflevector(v[0], v[1], 4, 5, 6, 7, 12, 13, 14, 15);
  const auto c = __builtin_shufflevector(v[2], v[3], 0, 1, 2, 3, 8, 9, 10, 11);
  const auto d = __builtin_shufflevector(v[2], v[3], 4, 5, 6, 7, 12, 13, 14, 15);
  v[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5, 8, 9, 12, 13);
  v[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7, 10, 11, 14, 15);
  v[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5, 8, 9, 12, 13);
  v[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7, 10, 11, 14, 15);
}
SDX_INLINE void swap_lanes(Wide<uint64_t, 16> (&)[1]) {}

// A square of kBytes / sizeof(T) rows, in two stages: lanes between rows, then elements within
// lanes. Every source row is read once and whole, so that rows in the same cache set do not evict
// each other.
template <class T, int kBytes>
SDX_INLINE void transpose_square(const std::byte* from, int64_t from_stride, std::byte* to,
                                 int64_t to_stride) {
  constexpr int kPerLane = kLaneBytes / int(sizeof(T)), kGroups = kBytes / kLaneBytes;
  Wide<T, kBytes> v[kGroups][kPerLane];
  for (int i = 0; i < kPerLane; ++i) {
    Wide<uint64_t, kBytes> rows[kGroups];
    for (int k = 0; k < kGroups; ++k)
      memcpy(&rows[k], from + (i + k * kPerLane) * from_stride, kBytes);
    swap_lanes(rows);
    for (int k = 0; k < kGroups; ++k) v[k][i] = (Wide<T, kBytes>)rows[k];
  }
  for (int k = 0; k < kGroups; ++k) {
    transpose_lanes<T, kBytes>(v[k]);
    for (int i = 0; i < kPerLane; ++i)
      memcpy(to + (k * kPerLane + i) * to_stride, &v[k][i], kBytes);
  }
}

}  // namespace sdx::SDX_ISA
