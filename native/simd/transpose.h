// Transposes of small blocks in registers, for elements of 1, 2, 4 and 8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

constexpr int kLaneBytes = 16;  // what shuffles stay within, whatever the width of a vector

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

// One vector of pieces of 16 bytes that lie `step` bytes apart.
template <class T, int kBytes>
SDX_INLINE Wide<T, kBytes> load_lanes(const std::byte* p, int64_t step) {
  if constexpr (kBytes == kLaneBytes) {
    Wide<T, kBytes> v;
    memcpy(&v, p, sizeof v);
    return v;
  } else {
    constexpr int kHalf = kBytes / 2;
    return joined(load_lanes<T, kHalf>(p, step),
                  load_lanes<T, kHalf>(p + kHalf / kLaneBytes * step, step),
                  std::make_index_sequence<kBytes / sizeof(T)>{});
  }
}

// Which element of the pair (a, b) comes to place i when the low (0) or high (1) halves of each
// lane are interleaved.
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

// Columns become rows: kPerLane elements of each of kBytes / sizeof(T) source rows, `from_step`
// bytes apart, to kPerLane rows of kBytes, `to_step` bytes apart.
template <class T, int kBytes>
SDX_INLINE void transpose_block(const std::byte* from, int64_t from_step, std::byte* to,
                                int64_t to_step) {
  constexpr int kPerLane = kLaneBytes / int(sizeof(T));
  constexpr auto kPlaces = std::make_index_sequence<kBytes / sizeof(T)>{};
  Wide<T, kBytes> v[kPerLane], w[kPerLane];
  for (int i = 0; i < kPerLane; ++i)
    v[i] = load_lanes<T, kBytes>(from + i * from_step, kPerLane * from_step);
  // Interleaving row i with row i + half, log2(kPerLane) times, transposes every lane.
  for (int rows = kPerLane; rows > 1; rows /= 2) {
    for (int i = 0; i < kPerLane / 2; ++i) {
      w[2 * i] = interleave<T, kBytes, 0>(v[i], v[i + kPerLane / 2], kPlaces);
      w[2 * i + 1] = interleave<T, kBytes, 1>(v[i], v[i + kPerLane / 2], kPlaces);
    }
    for (int i = 0; i < kPerLane; ++i) v[i] = w[i];
  }
  for (int i = 0; i < kPerLane; ++i) memcpy(to + i * to_step, &v[i], kBytes);
}

}  // namespace sdx::SDX_ISA
