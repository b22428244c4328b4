// e^x for x that are not positive: what is left of numbers once the largest is taken off.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// As vexp of math.h without the care for large and for subnormal results: below e^-87.6 it is 0.
SDX_INLINE f32v vexp_down(f32v x) {
  const f32v low = splat(-88.0f);
  const f32v c = x < low ? low : x;       // NaN passes
  const f32v shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  const f32v rounded = c * 1.44269504f + shift;
  const f32v n = rounded - shift;
  const f32v r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
  f32v p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // The low bits of `rounded` are n; n = -127 makes the factor 0.
  return p * (f32v)(((i32v)rounded << 23) + 0x3f800000);
}

SDX_INLINE Vec<double> vexp_down(Vec<double> x) {
  Vec<double> y{};
  for (int i = 0; i < kLanesOf<double>; ++i) y[i] = __builtin_exp(x[i]);
  return y;
}

}  // namespace sdx::SDX_ISA
