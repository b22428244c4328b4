// Elementary functions on vectors of double, accurate to a few units in the last place: reductions
// by Cody and Waite, Taylor polynomials for e^r, and fdlibm's coefficients for log, sin and cos.
// NaN passes through all of them.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

using f64v = Vec<double>;
using i64v = Vec<int64_t>;

constexpr double kDoubleShift = 0x1.8p52;  // adding it rounds to integers, in the low bits

SDX_INLINE f64v dabs(f64v x) { return (f64v)((i64v)x & int64_t(0x7fffffffffffffff)); }
SDX_INLINE f64v with_sign(f64v x, f64v sign) {
  return (f64v)((i64v)dabs(x) | ((i64v)sign & int64_t(0x8000000000000000)));
}
SDX_INLINE f64v dround(f64v x) { return (x + kDoubleShift) - kDoubleShift; }

// 2^n for whole numbers in [-1022, 1023].
SDX_INLINE f64v double_power_of_two(f64v n) {
  return (f64v)((((i64v)(n + kDoubleShift) - (i64v)splat(kDoubleShift)) + 1023) << 52);
}

// x = n ln 2 + r with |r| <= ln 2 / 2; p = e^r - 1.
struct DoubleExponent {
  f64v n, p;
};
SDX_INLINE DoubleExponent reduced(f64v x) {
  const f64v n = dround(x * 1.44269504088896338700);
  const f64v r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
  f64v p = splat(1.0 / 6227020800);
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  return {n, p * (r * r) + r};
}

// e^x, subnormal results included: 2^n is applied in two factors.
SDX_INLINE f64v dexp(f64v x) {
  const f64v low = splat(-746.0), high = splat(710.0);
  const DoubleExponent e = reduced(at_most(at_least(x, low), high));
  const f64v safe = x == x ? e.n : f64v{};
  const f64v half = dround(safe * 0.5);
  return (e.p + 1.0) * double_power_of_two(half) * double_power_of_two(safe - half);
}

// e^x - 1 for x <= 0 without cancellation.
SDX_INLINE f64v dexpm1_nonpositive(f64v x) {
  const DoubleExponent e = reduced(at_least(x, splat(-50.0)));
  const f64v s = double_power_of_two(x == x ? e.n : f64v{});
  return e.p * s + (s - 1.0);
}

// tanh a = -m / (2 + m) with m = e^-2a - 1.
SDX_INLINE f64v dtanh(f64v x) {
  const f64v m = dexpm1_nonpositive(-2.0 * dabs(x));
  return with_sign(-m / (2.0 + m), x);
}

// By e^-|x|, which cannot overflow.
SDX_INLINE f64v dsigmoid(f64v x) {
  const f64v e = dexp(-dabs(x));
  const f64v r = 1.0 / (1.0 + e);
  return x < 0.0 ? e * r : r;
}

// Natural logarithm: x = 2^k m with m in [sqrt(1/2), sqrt(2)).
SDX_INLINE f64v dlog(f64v x) {
  const auto is_small = x < 0x1p-1022;
  const i64v bits = (i64v)(is_small ? x * 0x1p54 : x);
  const i64v above = bits - int64_t(0x3fe6a09e667f3bcd);  // of sqrt(1/2)
  const i64v exponent = (above >> 52) - (is_small & 54);
  const f64v f = (f64v)(bits - ((above >> 52) << 52)) - 1.0;
  const f64v k = (f64v)(exponent + (i64v)splat(kDoubleShift)) - kDoubleShift;
  const f64v s = f / (2.0 + f), z = s * s;
  f64v r = splat(1.479819860511658591e-01);
  r = r * z + 1.531383769920937332e-01;
  r = r * z + 1.818357216161805012e-01;
  r = r * z + 2.222219843214978396e-01;
  r = r * z + 2.857142874366239149e-01;
  r = r * z + 3.999999999940941908e-01;
  r = r * z + 6.666666666666735130e-01;
  r = r * z;
  const f64v half = 0.5 * f * f;
  f64v y = k * 6.93147180369123816490e-01 -
           ((half - (s * (half + r) + k * 1.90821492927058770002e-10)) - f);
  y = x == __builtin_inf() ? x : y;
  y = x == 0.0 ? splat(-__builtin_inf()) : y;
  return x >= 0.0 ? y : splat(__builtin_nan(""));
}

constexpr double kDoubleTrigMax = 1e5;  // above, the reduction loses too many bits

// sin(x + quarters * pi/2) for |x| <= kDoubleTrigMax. pi/2 is split in three constants of 33 bits,
// whose products with the quadrant are exact, and the rest.
SDX_INLINE f64v double_sine_shifted(f64v x, int64_t quarters) {
  const f64v n = dround(x * 6.36619772367581382433e-01);
  const i64v q = (i64v)(n + kDoubleShift) - (i64v)splat(kDoubleShift) + quarters;
  f64v r = x - n * 1.57079632673412561417e+00;
  r = r - n * 6.07710050630396597660e-11;
  r = r - n * 2.02226624871116645580e-21;
  const f64v z = r * r;
  f64v s = splat(1.58969099521155010221e-10);
  s = s * z + -2.50507602534068634195e-08;
  s = s * z + 2.75573137070700676789e-06;
  s = s * z + -1.98412698298579493134e-04;
  s = s * z + 8.33333333332248946124e-03;
  s = s * z + -1.66666666666666324348e-01;
  f64v c = splat(-1.13596475577881948265e-11);
  c = c * z + 2.08757232129817482790e-09;
  c = c * z + -2.75573143513906633035e-07;
  c = c * z + 2.48015872894767294178e-05;
  c = c * z + -1.38888888888741095749e-03;
  c = c * z + 4.16666666666666019037e-02;
  const f64v sine = s * (z * r) + r, cosine = c * (z * z) + (1.0 - 0.5 * z);
  const f64v y = (q & 1) != 0 ? cosine : sine;
  return (f64v)((i64v)y ^ ((q & 2) << 62));
}

// Recomputes lanes that are too large for the reduction with the C library; rare in practice.
template <class F>
SDX_INLINE f64v replace_large(f64v x, f64v y, F&& f) {
  const auto is_far = dabs(x) > kDoubleTrigMax;
  for (int i = 0; i < kLanesOf<double>; ++i)
    if (is_far[i]) y[i] = f(x[i]);
  return y;
}
SDX_INLINE f64v dsin(f64v x) {
  const f64v y = x == 0.0 ? x : double_sine_shifted(x, 0);  // -0 keeps its sign
  return replace_large(x, y, [](double far) { return __builtin_sin(far); });
}
SDX_INLINE f64v dcos(f64v x) {
  return replace_large(x, double_sine_shifted(x, 1), [](double far) { return __builtin_cos(far); });
}

}  // namespace sdx::SDX_ISA
