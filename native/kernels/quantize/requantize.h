// The epilogue of a tile: scales, bias, and the output's type (int32 accumulators, floats, or 8-bit
// codes).
#pragma once

#include "kernels/quantize/gemm_int8.h"
#include "simd/bytes.h"

namespace sdx::SDX_ISA::int8 {

// The output of a block of rows, and the parameters of its columns.
template <class T>
struct Target {
  ColumnParams columns;
  Output out;
  T* to;
  int64_t stride;
  int64_t n;  // columns that exist; panels may be wider
};

SDX_INLINE f32v scaled(i32v accumulators, const ColumnParams& c, int64_t j) {
  return __builtin_convertvector(accumulators, f32v) * load(c.scale + j) + load(c.shift + j);
}

// Stores the first n bytes (all `size` of them if `is_whole`) of part number `part` of a vector.
template <int size>
SDX_INLINE void store_part(uint8_t* to, const u8v& v, int part, int64_t n, bool is_whole) {
  const uint8_t* from = reinterpret_cast<const uint8_t*>(&v) + part * size;
  if (is_whole || n >= size) {
#if SDX_VEC_BYTES == 64
    const auto whole = (Vec<uint64_t>)v;  // halves stay in registers
    const auto half = part == 0 ? __builtin_shufflevector(whole, whole, 0, 1, 2, 3)
                                : __builtin_shufflevector(whole, whole, 4, 5, 6, 7);
    if constexpr (size == 32) return void(memcpy(to, &half, size));
#endif
    memcpy(to, from, size);
    return;
  }
  if (n <= 0) return;
  alignas(SDX_VEC_BYTES) uint8_t bytes[SDX_VEC_BYTES];
  memcpy(bytes, from, size);
  copy_bytes(to, bytes, n);
}

// Packs R rows of V vectors of columns from the j-th on as 8-bit codes, four vectors at a time: 4 /
// V rows at a time.
template <bool is_whole, int R, int V, class T>
SDX_INLINE void write_codes(const Target<T>& t, T* to, int64_t j, const i32v (&total)[R][V]) {
  constexpr int kAtOnce = 4 / V;
  const Saturation<T> bounds{t.out.low, t.out.high, t.out.zero};
#pragma GCC unroll 12
  for (int i = 0; i < R; i += kAtOnce) {
    f32v y[4];
#pragma GCC unroll 4
    for (int q = 0; q < 4; ++q) {
      const int at = i + q / V < R ? i + q / V : R - 1, v = q % V;
      y[q] = scaled(total[at][v], t.columns, j + v * kLanes);
    }
    const u8v bytes = deinterleave_rows(saturate_to_bytes(y, bounds));
#pragma GCC unroll 4
    for (int q = 0; q < kAtOnce; ++q)
      if (i + q < R)
        store_part<V * kLanes>(reinterpret_cast<uint8_t*>(to + (i + q) * t.stride), bytes, q,
                               t.n - j, is_whole);
  }
}

// The same as int32 accumulators or as clamped floats.
template <bool is_whole, int R, int V, class T>
SDX_INLINE void write_words(const Target<T>& t, T* to, int64_t j, const i32v (&totals)[R][V]) {
#pragma GCC unroll 24
  for (int q = 0; q < R * V; ++q) {
    const int i = q % R, v = q / R;
    const int64_t at = j + v * kLanes, left = t.n - at;
    const i32v total = totals[i][v];
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

// Writes the accumulators of R rows from `row` on and of V vectors of columns from the j-th on.
template <bool is_whole, int R, int V, class T>
SDX_INLINE void requantize_tile(const i32v (&accumulators)[R][V], const Target<T>& t, int64_t row,
                                int64_t j) {
  T* to = t.to + row * t.stride + j;
  if constexpr (sizeof(T) == 1)
    write_codes<is_whole>(t, to, j, accumulators);
  else
    write_words<is_whole>(t, to, j, accumulators);
}

}  // namespace sdx::SDX_ISA::int8
