// Trigonometric functions of vectors of float: Cody and Waite reduction to a quadrant, then minimax
// polynomials.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

constexpr float kTrigMax = 8192.0f;  // above, the reduction loses too many bits

SDX_INLINE f32v vabs(f32v x) { return (f32v)((i32v)x & 0x7fffffff); }
SDX_INLINE f32v with_sign(f32v x, f32v sign) {
  return (f32v)(((i32v)x & 0x7fffffff) | ((i32v)sign & int32_t(0x80000000)));
}

// x = q pi/2 + r with |r| <= pi/4, for |x| <= kTrigMax. pi/2 is split in four constants, the first
// three with so few significant bits that their products with q are exact.
struct Quadrant {
  f32v r;
  i32v q;
};
SDX_INLINE Quadrant quadrant(f32v x) {
  const f32v shift = splat(12582912.0f);  // 1.5 * 2^23
  const f32v n = (x * 0.636619772f + shift) - shift;
  f32v r = x - n * 0x1.92p+0f;
  r = r - n * 0x1.fb4p-12f;
  r = r - n * 0x1.444p-24f;
  r = r - n * 2.56334415e-12f;
  return {r, __builtin_convertvector(n, i32v)};
}

// Sine and cosine for |r| <= pi/4.
SDX_INLINE f32v sine_near(f32v r) {
  const f32v u = r * r;
  f32v p = splat(2.723704256e-06f);
  p = p * u + -1.983998518e-04f;
  p = p * u + 8.333331905e-03f;
  p = p * u + -1.666666716e-01f;
  return p * (u * r) + r;
}
SDX_INLINE f32v cosine_near(f32v r) {
  const f32v u = r * r;
  f32v p = splat(-2.762795361e-07f);
  p = p * u + 2.480364310e-05f;
  p = p * u + -1.388889388e-03f;
  p = p * u + 4.166666791e-02f;
  return p * (u * u) + (1.0f - 0.5f * u);
}

// sin(x + quarters * pi/2): cosine is the sine a quarter turn later.
SDX_INLINE f32v sine_shifted(f32v x, int quarters) {
  const Quadrant at = quadrant(x);
  const i32v q = at.q + quarters;
  const f32v y = (q & 1) != 0 ? cosine_near(at.r) : sine_near(at.r);
  return (f32v)((i32v)y ^ ((q & 2) << 30));
}

// Recomputes lanes that are too large for the reduction with the C library; rare in practice.
template <class F>
SDX_INLINE f32v replace_large(f32v x, f32v y, F&& f) {
  const i32v is_far = vabs(x) > kTrigMax;
  if (!any(is_far)) return y;
  for (int i = 0; i < kLanes; ++i)
    if (is_far[i]) y[i] = f(x[i]);
  return y;
}

SDX_INLINE f32v vsin(f32v x) {
  // -0 would lose its sign in the reduction.
  const f32v y = x == 0.0f ? x : sine_shifted(x, 0);
  return replace_large(x, y, [](float far) { return __builtin_sinf(far); });
}
SDX_INLINE f32v vcos(f32v x) {
  return replace_large(x, sine_shifted(x, 1), [](float far) { return __builtin_cosf(far); });
}
SDX_INLINE f32v vtan(f32v x) {
  const Quadrant at = quadrant(x);
  const f32v s = sine_near(at.r), c = cosine_near(at.r);
  const i32v odd = (at.q & 1) != 0;
  const f32v y = (odd ? -c : s) / (odd ? s : c);
  return replace_large(x, x == 0.0f ? x : y, [](float far) { return __builtin_tanf(far); });
}

// The arc sine of a in [0, 1/2]; larger arguments use asin(a) = pi/2 - 2 asin(sqrt((1 - a) / 2)).
SDX_INLINE f32v asine_near(f32v a) {
  const f32v u = a * a;
  f32v p = splat(3.379913419e-02f);
  p = p * u + 1.708204858e-02f;
  p = p * u + 3.111522272e-02f;
  p = p * u + 4.459811747e-02f;
  p = p * u + 7.500098646e-02f;
  p = p * u + 1.666666567e-01f;
  return p * (u * a) + a;
}

constexpr float kHalfPi = 1.57079633f;

SDX_INLINE f32v vasin(f32v x) {
  const f32v a = vabs(x);
  const i32v is_far = a > 0.5f;
  const f32v y = asine_near(is_far ? vsqrt((1.0f - a) * 0.5f) : a);
  return with_sign(is_far ? kHalfPi - 2.0f * y : y, x);
}
SDX_INLINE f32v vacos(f32v x) {
  const f32v a = vabs(x);
  const i32v is_far = a > 0.5f;
  const f32v y = asine_near(is_far ? vsqrt((1.0f - a) * 0.5f) : a);
  const f32v far = x < 0.0f ? 3.14159265f - 2.0f * y : 2.0f * y;
  return is_far ? far : kHalfPi - with_sign(y, x);
}
SDX_INLINE f32v vatan(f32v x) {
  const f32v a = vabs(x);
  const i32v is_far = a > 2.41421356f,
             is_middle = a > 0.414213562f;  // tan of 3/8 pi and 1/8 pi: |t| <= tan(pi/8)
  const f32v t = is_far ? -1.0f / a : is_middle ? (a - 1.0f) / (a + 1.0f) : a;
  const f32v base = is_far ? splat(kHalfPi) : is_middle ? splat(0.785398163f) : f32v{};
  const f32v u = t * t;
  f32v p = splat(-6.456374377e-02f);
  p = p * u + 1.074526533e-01f;
  p = p * u + -1.426412165e-01f;
  p = p * u + 1.999954581e-01f;
  p = p * u + -3.333333135e-01f;
  return with_sign(base + (p * (u * t) + t), x);
}

}  // namespace sdx::SDX_ISA
