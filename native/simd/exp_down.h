// e^x for x that are not positive: what is left of numbers once the largest is taken off.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// Within 2 units in the last place, where vexp of math.h takes care of large results besides.
#if SDX_VEC_BYTES == 64
// 2^(k / 32) for the nearest k: its fraction from a table in two registers, and of e^r for the rest
// r the first three terms, evened out over |r| <= ln 2 / 64.
SDX_INLINE f32v vexp_down(f32v x) {
  const f32v halves[2] = {
      {1.0f, 1.02189715f, 1.04427378f, 1.0671404f, 1.09050773f, 1.11438674f, 1.13878863f,
       1.16372486f, 1.18920712f, 1.21524736f, 1.24185781f, 1.26905096f, 1.29683955f, 1.32523664f,
       1.35425555f, 1.38390988f},
      {1.41421356f, 1.44518081f, 1.47682615f, 1.50916443f, 1.54221083f, 1.57598085f, 1.61049033f,
       1.64575548f, 1.68179283f, 1.7186193f, 1.75625216f, 1.79470908f, 1.83400809f, 1.87416763f,
       1.91520656f, 1.95714412f}};
  const f32v low = splat(-110.0f);
  const f32v c = low > x ? low : x;     // NaN passes
  const f32v shift = splat(393216.0f);  // 1.5 * 2^18: adding it rounds to multiples of 1 / 32
  const f32v rounded = c * 1.44269504f + shift;
  const f32v n = rounded - shift;
  const f32v r = c - n * 0.693147182f;
  const f32v p = (r * 0.500007331f + 1.00001466f) * r + 1.0f;
  const f32v fraction = __builtin_shuffle(halves[0], halves[1], (i32v)rounded);  // the low 5 bits
  return (f32v)_mm512_maskz_scalef_ps(0xffff, (__m512)(fraction * p), (__m512)n);
}
#else
// A polynomial for e^r, and 2^n from the bits of n; below e^-87.6 it is 0.
SDX_INLINE f32v vexp_down(f32v x) {
  const f32v low = splat(-88.0f);
  const f32v c = low > x ? low : x;       // NaN passes
  const f32v shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  const f32v rounded = c * 1.44269504f + shift;
  const f32v n = rounded - shift;
#if defined(__FMA__)
  const f32v r = c - n * 0.693147182f;  // whose product is exact
#else
  const f32v r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
#endif
  f32v p = splat(1.3814539902e-3f);
  p = p * r + 8.3687451268e-3f;
  p = p * r + 4.1668390789e-2f;
  p = p * r + 1.6666520399e-1f;
  p = p * r + 4.9999993432e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits of `rounded` are n; n = -127 makes the factor 0. Of NaN they may be any.
  return p * (f32v)(((u32v)rounded << 23) + 0x3f800000u);
}
#endif

SDX_INLINE Vec<double> vexp_down(Vec<double> x) {
  Vec<double> y{};
  for (int i = 0; i < kLanesOf<double>; ++i) y[i] = __builtin_exp(x[i]);
  return y;
}

}  // namespace sdx::SDX_ISA
