// Inner loops of copies: contiguous bytes, and elements or runs of bytes at a stride. Most runs in
// models are too short to pay for a call of the C library's memcpy.
#pragma once

#include <cstddef>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

constexpr int64_t kLongRun = 2048;  // bytes from which the C library's copy is worth its call

// Copies n bytes. A length that is not a multiple of the vector ends with a vector that overlaps
// the one before it, which replaces a scalar tail.
SDX_INLINE void copy_bytes(std::byte* to, const std::byte* from, int64_t n) {
  typedef char Wide __attribute__((vector_size(SDX_VEC_BYTES)));
  constexpr int64_t kStep = sizeof(Wide);
  if (n >= kLongRun) {
    memcpy(to, from, size_t(n));
  } else if (n >= kStep) {
    Wide last;
    memcpy(&last, from + n - kStep, kStep);
    int64_t i = 0;
    for (; i + kStep <= n; i += kStep) {
      Wide v;
      memcpy(&v, from + i, kStep);
      memcpy(to + i, &v, kStep);
    }
    if (i < n) memcpy(to + n - kStep, &last, kStep);
  } else if (n >= 16) {
    // Up to 63 bytes: overlapping 16-byte copies from both ends towards the middle.
    for (int64_t i = 0; 2 * i < n; i += 16) {
      char head[16], tail[16];
      memcpy(head, from + (i + 16 <= n ? i : n - 16), 16);
      memcpy(tail, from + (n - 16 - i >= 0 ? n - 16 - i : 0), 16);
      memcpy(to + (i + 16 <= n ? i : n - 16), head, 16);
      memcpy(to + (n - 16 - i >= 0 ? n - 16 - i : 0), tail, 16);
    }
  } else if (n >= 8) {
    uint64_t head, tail;
    memcpy(&head, from, 8);
    memcpy(&tail, from + n - 8, 8);
    memcpy(to, &head, 8);
    memcpy(to + n - 8, &tail, 8);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

// `count` runs of n bytes.
SDX_INLINE void copy_runs(const std::byte* from, int64_t from_stride, std::byte* to,
                          int64_t to_stride, int64_t count, int64_t n) {
  for (int64_t i = 0; i < count; ++i) copy_bytes(to + i * to_stride, from + i * from_stride, n);
}

// `count` elements; strides that are compile-time constants let the compiler vectorize the loop.
template <class T, int64_t kFrom, int64_t kTo>
SDX_INLINE void copy_dense(const std::byte* from, std::byte* to, int64_t count) {
  typedef T Unaligned __attribute__((aligned(1), may_alias));
  const Unaligned* __restrict f = reinterpret_cast<const Unaligned*>(from);
  Unaligned* __restrict t = reinterpret_cast<Unaligned*>(to);
  for (int64_t i = 0; i < count; ++i) t[i * kTo] = f[i * kFrom];
}

template <class T>
SDX_INLINE void fill_elements(std::byte* to, const std::byte* from, int64_t count) {
  typedef T Unaligned __attribute__((aligned(1), may_alias));
  const T x = *reinterpret_cast<const Unaligned*>(from);
  Unaligned* t = reinterpret_cast<Unaligned*>(to);
  for (int64_t i = 0; i < count; ++i) t[i] = x;
}

// Strides in bytes. The constant ones are those of broadcasts (0), of reversals (-1) and of slices
// or interleaved channels (2 and 3); any other stride runs one element at a time.
template <class T>
void copy_elements(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
                   int64_t count) {
  constexpr int64_t kSize = sizeof(T);
  if (to_stride == kSize) {
    if (from_stride == kSize) return copy_bytes(to, from, count * kSize);
    if (from_stride == 0) return fill_elements<T>(to, from, count);
    if (from_stride == -kSize) return copy_dense<T, -1, 1>(from, to, count);
    if (from_stride == 2 * kSize) return copy_dense<T, 2, 1>(from, to, count);
    if (from_stride == 3 * kSize) return copy_dense<T, 3, 1>(from, to, count);
  }
  for (int64_t i = 0; i < count; ++i) memcpy(to + i * to_stride, from + i * from_stride, sizeof(T));
}

}  // namespace sdx::SDX_ISA
