// Rotary embedding (RoPE): rotates pairs of features by the angle of a position.
#pragma once

#include <utility>

#include "simd/half.h"

namespace sdx::SDX_ISA {

// `half` pairs are rotated: feature i with i + half (NeoX layout), or 2i with 2i + 1 if interleaved
// (GPT-J layout). Features from 2 * half on are copied.
struct Rotation {
  int64_t half, width;
  bool is_interleaved;
};

// The even (kOdd = 0) or odd lanes of two vectors.
template <int kOdd, size_t... I>
SDX_INLINE f32v deinterleave(f32v a, f32v b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (2 * I + kOdd)...);
}
// A vector of interleaved lanes of two vectors, from the kFrom-th pair on.
template <size_t kFrom, size_t... I>
SDX_INLINE f32v interleave(f32v a, f32v b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, (kFrom + I / 2 + I % 2 * kLanes)...);
}

template <class T>
SDX_INLINE void rotate_interleaved(const T* x, const T* cos, const T* sin, int64_t half, T* y) {
  constexpr auto kIndices = std::make_index_sequence<kLanes>{};
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const f32v low = load_float(x + 2 * i, Full{}), high = load_float(x + 2 * i + kLanes, Full{});
    const f32v a = deinterleave<0>(low, high, kIndices), b = deinterleave<1>(low, high, kIndices);
    const f32v c = load_float(cos + i, Full{}), s = load_float(sin + i, Full{});
    const f32v first = c * a - s * b, second = s * a + c * b;
    store_float(y + 2 * i, interleave<0>(first, second, kIndices), Full{});
    store_float(y + 2 * i + kLanes, interleave<kLanes / 2>(first, second, kIndices), Full{});
  }
  for (; i < half; ++i) {
    const float a = to_float(x + 2 * i), b = to_float(x + 2 * i + 1);
    const float c = to_float(cos + i), s = to_float(sin + i);
    store_float(y + 2 * i, splat(c * a - s * b), Part{1});
    store_float(y + 2 * i + 1, splat(s * a + c * b), Part{1});
  }
}

template <class T>
SDX_INLINE void rotate_row(const Rotation& rotation, const T* x, const T* cos, const T* sin, T* y) {
  const int64_t half = rotation.half;
  if (rotation.is_interleaved) {
    rotate_interleaved(x, cos, sin, half, y);
  } else {
    vloop(half, [&](int64_t i, auto lanes) {
      const f32v a = load_float(x + i, lanes), b = load_float(x + half + i, lanes);
      const f32v c = load_float(cos + i, lanes), s = load_float(sin + i, lanes);
      store_float(y + i, c * a - s * b, lanes);
      store_float(y + half + i, s * a + c * b, lanes);
    });
  }
  memcpy(y + 2 * half, x + 2 * half, size_t(rotation.width - 2 * half) * sizeof(T));
}

}  // namespace sdx::SDX_ISA
