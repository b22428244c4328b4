// Elementary functions on vectors of float, accurate to a few units in the last place. Coefficients
// are minimax fits; functions are named v<name>, and NaN passes through all of them.
#pragma once

#include "simd/error_function.h"
#include "simd/exponential.h"
#include "simd/softmax_exp.h"
#include "simd/trigonometry.h"

namespace sdx::SDX_ISA {

// Nearest whole number, half to even. From 2^23 on all floats are whole.
SDX_INLINE f32v vround(f32v x) {
  const f32v a = vabs(x), shift = splat(8388608.0f);
  const f32v near = (a + shift) - shift;
  return a < shift ? with_sign(near, x) : x;
}
SDX_INLINE f32v vfloor(f32v x) {
  const f32v near = vround(x);
  return near > x ? with_sign(near - 1.0f, x) : near;
}
SDX_INLINE f32v vceil(f32v x) {
  const f32v near = vround(x);
  return near < x ? with_sign(near + 1.0f, x) : near;
}

SDX_INLINE f32v vsign(f32v x) {
  const f32v one = x > 0.0f ? splat(1.0f) : x < 0.0f ? splat(-1.0f) : f32v{};
  return x == x ? one : x;
}

// Odd rational function (degree 9 / 8); 1 to the last bit from 9 on.
SDX_INLINE f32v vtanh(f32v x) {
  const f32v c = vclamp(x, -9.0f, 9.0f);
  const f32v u = c * c;
  f32v p = splat(1.335491362e-08f), q = splat(7.776673101e-07f);
  p = p * u + 2.060930274e-05f;
  p = p * u + 3.495603334e-03f;
  p = p * u + 1.338103861e-01f;
  p = p * u + 1.0f;
  q = q * u + 3.285658604e-04f;
  q = q * u + 2.587704174e-02f;
  q = q * u + 4.671435356e-01f;
  q = q * u + 1.0f;
  return vclamp(vratio(c * p, q), -1.0f, 1.0f);
}

#if SDX_VEC_BYTES == 64
SDX_INLINE f32v verf(f32v x) { return with_sign(verf_pieces(x * 1.41421356f), x); }

SDX_INLINE f32v vgelu(f32v x) {
  const f32v half = 0.5f * x;
  return with_sign(vabs(half) * verf_pieces(x) + half, x);
}
#else
// Odd rational function; 1 to the last bit from 4 on.
SDX_INLINE f32v verf(f32v x) {
  const f32v c = vclamp(x, -4.0f, 4.0f);
  const f32v u = c * c;
  f32v p = splat(1.986648158e-06f), q = splat(3.741820547e-05f);
  p = p * u + 2.845554263e-04f;
  p = p * u + 3.883339697e-03f;
  p = p * u + 5.310175568e-02f;
  p = p * u + 1.935464591e-01f;
  p = p * u + 1.128379107e+00f;
  q = q * u + 1.185549423e-03f;
  q = q * u + 1.520727109e-02f;
  q = q * u + 1.153504103e-01f;
  q = q * u + 5.048586130e-01f;
  q = q * u + 1.0f;
  return vclamp(vratio(c * p, q), -1.0f, 1.0f);
}

SDX_INLINE f32v vgelu(f32v x) { return 0.5f * x * (1.0f + verf(x * 0.707106781f)); }
#endif

SDX_INLINE f32v minus_abs(f32v x) { return (f32v)((i32v)x | int32_t(0x80000000)); }

#if SDX_VEC_BYTES == 64
// 1 / (1 + e^-x): reciprocal estimate and one Newton step, whose residual 1 - (1 + e^-x) * near is
// computed without rounding the sum. Below -87.3, where e^-x is arbitrary, the result is 0, and so
// is x * sigmoid(x) (swish), which is below 2e-36 there.
SDX_INLINE f32v vsigmoid(f32v x) {
  const f32v clamped = (f32v)_mm512_maskz_min_ps(0xffff, (__m512)splat(88.0f), (__m512)x);
  const f32v e = vexp_in_range(-clamped);
  const f32v near = (f32v)_mm512_maskz_rcp14_ps(0xffff, (__m512)(1.0f + e));
  const f32v y = near + near * ((1.0f - near) - e * near);
  return x < -87.3f ? f32v{} : y;
}
#else
// By e^-|x|, which cannot overflow.
SDX_INLINE f32v vsigmoid(f32v x) {
  const f32v e = vexp_nonpositive(minus_abs(x));
  const f32v near = 1.0f / (1.0f + e);
  const f32v r = near + near * ((1.0f - near) - e * near);  // as if the sum were not rounded
  return x < 0.0f ? e * r : r;
}
#endif

// max(x, 0) + log(1 + e^-|x|).
SDX_INLINE f32v vsoftplus(f32v x) {
  return vmax(x, f32v{}) + vlog1p_unit(vexp_nonpositive(minus_abs(x)));
}

// x tanh(log(1 + e^x)), where tanh(log s) = (s^2 - 1) / (s^2 + 1); from 20 on it is x.
SDX_INLINE f32v vmish(f32v x) {
  const f32v end = splat(20.0f);
  const f32v e = vexp(x > end ? end : x);
  const f32v n = e * (e + 2.0f);
  return x * vratio(n, n + 2.0f);
}

// 1 + tanh z = 2 sigmoid(2 z), which does not cancel.
SDX_INLINE f32v vgelu_tanh(f32v x) {
  const f32v z = (x * x * 0.044715f + 1.0f) * (x * 1.59576912f);
  return x * vsigmoid(z);
}

}  // namespace sdx::SDX_ISA
