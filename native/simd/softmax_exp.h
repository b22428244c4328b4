// e^x for x <= 0, as softmax needs it after subtracting the maximum. Within 2 units in the last
// place; cheaper than vexp of exponential.h, which also handles large results.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

#if SDX_VEC_BYTES == 64
// e^x for x in [-127 ln 2, 88], by table and polynomial: x / ln 2 is rounded to the nearest k / 32;
// 2^(k / 32) has its fraction from a table in two registers and its exponent added to the bits; e^r
// of the remainder, |r| <= ln 2 / 64, is a minimax polynomial of degree 2. Results that would be
// subnormal are arbitrary values below the normal range.
SDX_INLINE f32v vexp_in_range(f32v x) {
  // Bits of 2^(j / 32), minus j << 18: the shifted k below adds its low 5 bits there again.
  const i32v halves[2] = {{0x3f800000, 0x3f7ecd87, 0x3f7daac3, 0x3f7c980f, 0x3f7b95c2, 0x3f7aa43a,
                           0x3f79c3d3, 0x3f78f4f0, 0x3f7837f0, 0x3f778d3a, 0x3f76f532, 0x3f767043,
                           0x3f75fed7, 0x3f75a15b, 0x3f75583f, 0x3f7523f6},
                          {0x3f7504f3, 0x3f74fbaf, 0x3f7508a4, 0x3f752c4d, 0x3f75672a, 0x3f75b9be,
                           0x3f76248c, 0x3f76a81e, 0x3f7744fd, 0x3f77fbb8, 0x3f78ccdf, 0x3f79b907,
                           0x3f7ac0c7, 0x3f7be4ba, 0x3f7d257d, 0x3f7e83b3}};
  const f32v shift = splat(393216.0f);  // 1.5 * 2^18: adding it rounds to multiples of 1 / 32
  const f32v rounded = x * 1.44269504f + shift;
  const f32v n = rounded - shift;
  const f32v r = x - n * 0.693147182f;
  const f32v p = (r * 0.500007331f + 1.00001466f) * r + 1.0f;
  const auto fraction = (i32v)_mm512_permutex2var_epi32(
      (__m512i)halves[0], (__m512i)rounded, (__m512i)halves[1]);  // indexed by the low 5 bits
  return (f32v)(fraction + ((i32v)rounded << 18)) * p;
}
SDX_INLINE f32v vexp_softmax(f32v x) {
  const f32v low = splat(-88.029694f);  // its result is 0
  return vexp_in_range((f32v)_mm512_maskz_max_ps(0xffff, (__m512)low, (__m512)x));  // NaN passes
}
#else
// A polynomial for e^r, and 2^n from the bits of n (Cody and Waite); below e^-87.6 it is 0.
SDX_INLINE f32v vexp_softmax(f32v x) {
  const f32v low = splat(-88.0f);
  const f32v c = low > x ? low : x;       // NaN passes
  const f32v shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  const f32v rounded = c * 1.44269504f + shift;
  const f32v n = rounded - shift;
#if defined(__FMA__)
  const f32v r = c - n * 0.693147182f;  // FMA: the product is not rounded
#else
  const f32v r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
#endif
  f32v p = splat(1.3814539902e-3f);
  p = p * r + 8.3687451268e-3f;
  p = p * r + 4.1668390789e-2f;
  p = p * r + 1.6666520399e-1f;
  p = p * r + 4.9999993432e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits of `rounded` are n; n = -127 makes the factor 0. For NaN p is NaN anyway.
  return p * (f32v)(((u32v)rounded << 23) + 0x3f800000u);
}
#endif

SDX_INLINE Vec<double> vexp_softmax(Vec<double> x) {
  Vec<double> y{};
  for (int i = 0; i < kLanesOf<double>; ++i) y[i] = __builtin_exp(x[i]);
  return y;
}

}  // namespace sdx::SDX_ISA
