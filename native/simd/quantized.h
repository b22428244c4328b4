// Quantization of many numbers by one scale: correctly rounded division without division
// instructions, and rounding to codes.
#pragma once

#include "simd/bytes.h"

namespace sdx::SDX_ISA {

#if defined(__FMA__)
constexpr bool kHasFma = true;
#else
constexpr bool kHasFma = false;
#endif

// Whether quotients by a reciprocal are correctly rounded: with FMA their residual is exact, and
// for scales far from the ends of the exponent range neither it nor a quotient that is neither huge
// nor tiny becomes subnormal or infinite.
SDX_INLINE bool has_inverse(float scale) { return kHasFma && scale > 0x1p-60f && scale < 0x1p60f; }

// x / scale as a multiplication by the correctly rounded reciprocal, and one Newton correction.
struct Divisor {
  f32v scale, inverse;

  SDX_INLINE explicit Divisor(float by) : scale(splat(by)), inverse(splat(1.0f / by)) {}
  SDX_INLINE f32v quotient(f32v x) const {
    const f32v near = x * inverse;
    return near + (x - near * scale) * inverse;
  }
};

// Bytes of input that are prefetched ahead: rows are short, and pages end prefetching by hardware.
constexpr int64_t kPrefetchAhead = 2048;

template <class Q>
constexpr float kLowestCode = Q(-1) < Q(0) ? -float(1 << (8 * sizeof(Q) - 1)) : 0.0f;
template <class Q>
constexpr float kHighestCode = kLowestCode<Q> + float((1 << (8 * sizeof(Q))) - 1);

// round(x / scale) + zero, half to even, saturated to the type Q of 8 or 16 bits; NaN becomes the
// lowest code. load_at(i, lanes) loads x[i]. The scale must have an inverse. Values are clamped
// before they are divided, since a quotient that overflows has no residual; the bounds are integers
// times the scale, and are integers again when they are divided and rounded.
template <class Q, class LoadAt>
SDX_INLINE void quantize_run(int64_t n, float scale, float zero, LoadAt&& load_at, Q* to) {
  const Divisor by(scale);
  const f32v least = splat((kLowestCode<Q> - zero) * scale);
  const f32v most = splat((kHighestCode<Q> - zero) * scale);
  const i32v shift = splat(int32_t(zero));
  int64_t first = 0;
  if constexpr (sizeof(Q) == 1)
    for (; first + SDX_VEC_BYTES <= n; first += SDX_VEC_BYTES) {
      f32v y[4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q)  // packing saturates below, and makes NaN the lowest code
        y[q] = by.quotient(at_most(load_at(first + q * kLanes, Full{}), most));
      store(to + first, deinterleave_rows((u8v)round_to_bytes<Q>(y, zero)));
    }
  vloop(n - first, [&](int64_t i, auto lanes) {
    const f32v clamped = clamp(load_at(first + i, lanes), least, most);
    store_i32(to + first + i, round_bits(by.quotient(clamped)) + shift, lanes);
  });
}

}  // namespace sdx::SDX_ISA
