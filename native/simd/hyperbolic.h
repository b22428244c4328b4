// Hyperbolic functions of vectors of float and their inverses. NaN passes through all of them.
#pragma once

#include "simd/math.h"

namespace sdx::SDX_ISA {

// sinh a = e^a (1 - e^-2a) / 2, with e^a in two factors, since e^a may overflow before sinh does.
SDX_INLINE f32v vsinh(f32v x) {
  const f32v a = vabs(x), half = vexp(0.5f * a);
  return with_sign(0.5f * half * half * -vexpm1_nonpositive(-2.0f * a), x);
}
SDX_INLINE f32v vcosh(f32v x) {
  const f32v half = vexp(0.5f * vabs(x)), inverse = 1.0f / half;
  return 0.5f * half * half + 0.5f * inverse * inverse;
}

// log(1 + x), with a correction for the rounding error of 1 + x.
SDX_INLINE f32v vlog1p(f32v x) {
  const f32v u = x + 1.0f;
  return x < 0x1p24f ? vlog(u) + (x - (u - 1.0f)) / u : vlog(x);
}

constexpr float kSquareMax = 1e9f;  // above, sqrt(x^2 + 1) is x, and x^2 may overflow

SDX_INLINE f32v vasinh(f32v x) {
  const f32v a = vabs(x), square = a * a;
  const f32v near = vlog1p(a + square / (1.0f + vsqrt(1.0f + square)));
  return with_sign(a > kSquareMax ? vlog(a) + 0.693147181f : near, x);
}
SDX_INLINE f32v vacosh(f32v x) {
  const f32v t = x - 1.0f;
  const f32v near = vlog1p(t + vsqrt(t * (t + 2.0f)));
  return x > kSquareMax ? vlog(x) + 0.693147181f : near;
}
SDX_INLINE f32v vatanh(f32v x) {
  const f32v a = vabs(x);
  return with_sign(0.5f * vlog1p(2.0f * a / (1.0f - a)), x);
}

}  // namespace sdx::SDX_ISA
