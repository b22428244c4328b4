// Exponentials and logarithms of vectors of float: range reduction by Cody and Waite with Cephes'
// constants, and polynomials close to minimax. That of log has the degree of Cephes' logf, that of
// e^r one less than expf; before rounding, relative errors are below 1e-8.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 p. ln 2 is split in two constants; the
// first has 9 significant bits, so n times it is exact.
struct Exponent {
  f32v n, r, p;
};
SDX_INLINE Exponent reduced(f32v x) {
  const f32v shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to integers
  const f32v n = (x * 1.44269504f + shift) - shift;
  const f32v r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  f32v p = splat(1.390140504e-03f);
  p = p * r + 8.363439701e-03f;
  p = p * r + 4.166685790e-02f;
  p = p * r + 1.666657478e-01f;
  p = p * r + 5.000000000e-01f;
  return {n, r, p};
}

// 2^n for whole numbers in [-126, 127].
SDX_INLINE f32v power_of_two(f32v n) {
  return (f32v)((__builtin_convertvector(n, i32v) + 127) << 23);
}

// e^x, accurate up to both ends of the range, subnormals included: where scalef does not exist, 2^n
// is applied in two factors, since n may be outside the exponents of normal numbers.
SDX_INLINE f32v vexp(f32v x) {
  const Exponent e = reduced(vclamp(x, -104.0f, 89.0f));
  const f32v y = (e.p * e.r + 1.0f) * e.r + 1.0f;
#if defined(__AVX512F__)
  return (f32v)_mm512_maskz_scalef_ps(0xffff, (__m512)y, (__m512)e.n);
#else
  const f32v safe = x == x ? e.n : f32v{};
  const i32v k = __builtin_convertvector(safe, i32v);
  const i32v half = k >> 1;
  const f32v a = (f32v)((half + 127) << 23), b = (f32v)((k - half + 127) << 23);
  return y * a * b;  // NaN passes through y
#endif
}

// e^x for x <= 0, cheaper; results that should be subnormal may be 0.
SDX_INLINE f32v vexp_nonpositive(f32v x) {
#if defined(__AVX512F__)
  const __m512 low = _mm512_set1_ps(-104.0f);
  const Exponent e = reduced((f32v)_mm512_maskz_max_ps(0xffff, low, (__m512)x));
  const f32v y = (e.p * e.r + 1.0f) * e.r + 1.0f;
  return (f32v)_mm512_maskz_scalef_ps(0xffff, (__m512)y, (__m512)e.n);
#else
  const f32v low = splat(-87.33f);
  const Exponent e = reduced(vclamp(x, -87.33f, 0.0f));
  const f32v y = ((e.p * e.r + 1.0f) * e.r + 1.0f) * power_of_two(x == x ? e.n : f32v{});
  return x < low ? f32v{} : y;
#endif
}

// e^x - 1 for x <= 0 without cancellation; below -30 it is -1.
SDX_INLINE f32v vexpm1_nonpositive(f32v x) {
  const Exponent e = reduced(vclamp(x, -30.0f, 0.0f));
  // NaN has no exponent: it passes through e.r.
  const f32v s = power_of_two(x == x ? e.n : f32v{});
  return (e.p * (e.r * e.r) + e.r) * s + (s - 1.0f);
}

// Natural logarithm: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and a polynomial for log m.
SDX_INLINE f32v vlog(f32v x) {
  const i32v is_small = x < 1.17549435e-38f;
  const f32v normal = is_small ? x * 8388608.0f : x;     // 2^23
  const i32v bits = (i32v)((u32v)normal - 0x3f3504f3u);  // of sqrt(1/2)
  const i32v e = (bits >> 23) - (is_small & 23);
  const f32v f = (f32v)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  f32v p = splat(7.037582994e-02f);
  p = p * f + -1.151456460e-01f;
  p = p * f + 1.167701557e-01f;
  p = p * f + -1.242014840e-01f;
  p = p * f + 1.424932182e-01f;
  p = p * f + -1.666805744e-01f;
  p = p * f + 2.000071406e-01f;
  p = p * f + -2.499999404e-01f;
  p = p * f + 3.333333135e-01f;
  const f32v n = __builtin_convertvector(e, f32v), f2 = f * f;
  f32v y = p * f2 * f + n * -2.12194440e-4f;
  y = (y - 0.5f * f2) + f + n * 0.693359375f;
  y = x == kInf ? x : y;
  y = x == 0.0f ? splat(-kInf) : y;
  return x >= 0.0f ? y : splat(__builtin_nanf(""));
}

// log(1 + x) for x in [0, 1], with a correction for the rounding error of 1 + x.
SDX_INLINE f32v vlog1p_unit(f32v x) {
  const f32v u = x + 1.0f;
  return vlog(u) + vratio(x - (u - 1.0f), u);  // what 1 + x lost
}

}  // namespace sdx::SDX_ISA
