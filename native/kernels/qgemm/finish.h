// What becomes of the sums of a tile: zero points, scales, bias, and the output's type.
#pragma once

#include "kernels/qgemm/product.h"
#include "simd/bytes.h"

namespace sdx::SDX_ISA::q8 {

// Where the sums of rows go, and what belongs to their columns.
template <class T>
struct Target {
  Columns columns;
  Output out;
  const int32_t* row_sums;  // null where weights have no zero point
  T* to;
  int64_t stride;
  int64_t n;  // columns that there are
};

// Sums of kLanes columns from the j-th on, as steps or as numbers.
template <bool has_sums>
SDX_INLINE i32v whole_sums(i32v sums, const Columns& c, int64_t j, int32_t row) {
  if constexpr (has_sums) return (i32v)((u32v)sums - (u32v)load(c.zero + j) * uint32_t(row));
  return sums;
}
SDX_INLINE f32v scaled(i32v sums, const Columns& c, int64_t j) {
  return __builtin_convertvector(sums, f32v) * load(c.scale + j) + load(c.shift + j);
}

// Rows in turns of 4 bytes, as pack_steps leaves vectors that follow each other, made rows.
SDX_INLINE u8v untwist(u8v v) {
  constexpr int kParts = SDX_VEC_BYTES / 16;
  i32v order;
  for (int i = 0; i < kLanes; ++i) order[i] = i % kParts * 4 + i / kParts;
  return (u8v)__builtin_shuffle((i32v)v, order);
}

// n bytes of a vector's part, of which there are whole ones where `is_whole`.
template <int size>
SDX_INLINE void store_part(uint8_t* to, const u8v& v, int part, int64_t n, bool is_whole) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(&v) + part * size;
  if (is_whole || n >= size) {
    memcpy(to, from, size);
    return;
  }
  if (n <= 0) return;
  alignas(SDX_VEC_BYTES) uint8_t bytes[SDX_VEC_BYTES];
  memcpy(bytes, from, size);
  copy_bytes(to, bytes, n);
}

// R rows of V vectors of columns, the first of which is the j-th.
template <bool has_sums, bool is_whole, int R, int V, class T>
SDX_INLINE void finish_tile(const i32v (&sums)[R][V], const Target<T>& t, int64_t row, int64_t j) {
  T* to = t.to + row * t.stride + j;
  const auto sums_of = [&](int i, int v) {
    const int32_t own = has_sums ? t.row_sums[row + i] : 0;
    return whole_sums<has_sums>(sums[i][v], t.columns, j + v * kLanes, own);
  };
  if constexpr (sizeof(T) == 1) {
    constexpr int kAtOnce = 4 / V;
    const Held<T> held{t.out.low, t.out.high, t.out.zero};
#pragma GCC unroll 12
    for (int i = 0; i < R; i += kAtOnce) {
      f32v y[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        const int at = i + q / V < R ? i + q / V : R - 1, v = q % V;
        y[q] = scaled(sums_of(at, v), t.columns, j + v * kLanes);
      }
      const u8v bytes = untwist(pack_steps(y, held));
#pragma GCC unroll 4
      for (int q = 0; q < kAtOnce; ++q)
        if (i + q < R)
          store_part<V * kLanes>(reinterpret_cast<uint8_t*>(to + (i + q) * t.stride), bytes, q,
                                 t.n - j, is_whole);
    }
  } else {
#pragma GCC unroll 24
    for (int q = 0; q < R * V; ++q) {
      const int i = q % R, v = q / R;
      const int64_t at = j + v * kLanes, left = t.n - at;
      const i32v total = sums_of(i, v);
      const auto write = [&](auto lanes) {
        if constexpr (__is_same(T, int32_t)) {
          store(to + i * t.stride + v * kLanes, total, lanes);
        } else {
          const f32v y = scaled(total, t.columns, at);
          store(to + i * t.stride + v * kLanes, vmin(vmax(y, splat(t.out.low)), splat(t.out.high)),
                lanes);
        }
      };
      if (is_whole || left >= kLanes)
        write(Full{});
      else if (left > 0)
        write(Part{int(left)});
    }
  }
}

}  // namespace sdx::SDX_ISA::q8
