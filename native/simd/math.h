// Elementary functions on vectors of float, accurate to a few units in the last place.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// e^x. Cody-Waite: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial for e^r, and 2^n in two
// factors so that results near both ends of the range, subnormals included, come out right.
SDX_INLINE f32v vexp(f32v x) {
  const f32v high = splat(89.0f), low = splat(-104.0f);
  const f32v c = x > high ? high : x < low ? low : x;  // NaN passes
  const f32v shift = splat(12582912.0f);               // 1.5 * 2^23: adding it rounds to integers
  const f32v n = (c * 1.44269504f + shift) - shift;
  const f32v r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
  f32v p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const f32v safe = x == x ? n : splat(0.0f);
  const i32v k = __builtin_convertvector(safe, i32v);
  const i32v half = k >> 1;
  const f32v a = (f32v)((half + 127) << 23), b = (f32v)((k - half + 127) << 23);
  return x == x ? p * a * b : x;
}

}  // namespace sdx::SDX_ISA
