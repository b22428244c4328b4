// The error function of vectors of float by piecewise polynomials whose coefficients are looked up
// in registers (AVX-512 only; math.h has a rational approximation for others).
#pragma once

#include "simd/trigonometry.h"

#if SDX_VEC_BYTES == 64
namespace sdx::SDX_ISA {

// erf(u / sqrt(2)) / u for u in [0, 6] as polynomials of degree 4 in v = 1 + u, one for each eighth
// of an octave of v: row i has the coefficients of degree i of [2, 4), [4, 8) and last [1, 2), the
// order of the two low exponent bits and the top mantissa bits of v. The piece of u = 6 is a
// constant, large enough for a product of 1.
constexpr float kErfTerms[5][2 * kLanes] = {
    {6.8268949e-01f, 6.3096035e-01f, 5.7759041e-01f, 5.2564669e-01f, 4.7724986e-01f, 4.3357825e-01f,
     3.9503226e-01f, 3.6146927e-01f, 3.3243343e-01f, 2.8558135e-01f, 2.4998416e-01f, 2.2222070e-01f,
     1.9999988e-01f, 1.8181817e-01f, 1.6666669e-01f, 0.0000000e+00f, 0.0000000e+00f, 0.0000000e+00f,
     0.0000000e+00f, 0.0000000e+00f, 0.0000000e+00f, 0.0000000e+00f, 0.0000000e+00f, 0.0000000e+00f,
     7.9788458e-01f, 7.9581159e-01f, 7.8965062e-01f, 7.7957207e-01f, 7.6584983e-01f, 7.4884629e-01f,
     7.2899371e-01f, 7.0677269e-01f},
    {-1.9874635e-01f, -2.1252894e-01f, -2.1237016e-01f, -2.0176747e-01f, -1.8463480e-01f,
     -1.6448922e-01f, -1.4399089e-01f, -1.2483028e-01f, -1.0785902e-01f, -8.1095748e-02f,
     -6.2428430e-02f, -4.9374767e-02f, -3.9999079e-02f, -3.3057630e-02f, 0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  1.8629116e-08f,
     -3.3089727e-02f, -6.5257393e-02f, -9.5631614e-02f, -1.2343824e-01f, -1.4803883e-01f,
     -1.6895834e-01f, -1.8590008e-01f},
    {-4.3276951e-02f, -1.2651632e-02f, 1.2062661e-02f,  2.9036457e-02f,  3.8352322e-02f,
     4.1391954e-02f,  4.0087871e-02f,  3.6312189e-02f,  3.1560987e-02f,  2.2294223e-02f,
     1.5462467e-02f,  1.0948169e-02f,  7.9934979e-03f,  6.0075265e-03f,  0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  -1.3298188e-01f,
     -1.3112313e-01f, -1.2564421e-01f, -1.1684499e-01f, -1.0519762e-01f, -9.1308154e-02f,
     -7.5868867e-02f, -5.9606254e-02f},
    {4.3839246e-02f,  3.7805252e-02f,  2.7945705e-02f,  1.7115343e-02f,  7.5421119e-03f,
     4.3085756e-04f,  -3.9837579e-03f, -6.1150421e-03f, -6.8114204e-03f, -5.4227500e-03f,
     -3.6401884e-03f, -2.3658739e-03f, -1.5694409e-03f, -1.0762258e-03f, 0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  2.2259310e-05f,
     9.9621862e-03f,  1.9350559e-02f,  2.7683944e-02f,  3.4546103e-02f,  3.9639190e-02f,
     4.2802129e-02f,  4.4014845e-02f},
    {-5.8123288e-03f, -9.6512102e-03f, -1.0687536e-02f, -9.5112082e-03f, -7.1154768e-03f,
     -4.4567869e-03f, -2.1843745e-03f, -5.7886407e-04f, 6.1768474e-04f,  8.7962020e-04f,
     6.4292998e-04f,  4.0414324e-04f,  2.5023756e-04f,  1.5931585e-04f,  0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,
     0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  0.0000000e+00f,  1.9794423e-02f,
     1.8701736e-02f,  1.6607856e-02f,  1.3685461e-02f,  1.0169252e-02f,  6.3306191e-03f,
     2.4495691e-03f,  -1.2124559e-03f},
};

// erf(|x| / sqrt(2)); from 6 on it is 1.
SDX_INLINE f32v verf_pieces(f32v x) {
  constexpr int kBits = 20;  // mantissa bits below the eighth of an octave
  const f32v u = (f32v)_mm512_maskz_min_ps(0xffff, (__m512)splat(6.0f), (__m512)vabs(x));
  const f32v v = u + 1.0f;
  // Tables are indexed by its low 5 bits: 2 of the exponent, 3 of the mantissa.
  const auto at = (__m512i)((i32v)v >> kBits);
  const f32v r = v - (f32v)((i32v)v & -(1 << kBits));
  const auto term = [&](int i) {
    return (f32v)_mm512_permutex2var_ps(load(kErfTerms[i]), at, load(kErfTerms[i] + kLanes));
  };
  f32v y = term(4);
  for (int i = 3; i >= 0; --i) y = y * r + term(i);
  return (f32v)_mm512_maskz_min_ps(0xffff, (__m512)splat(1.0f), (__m512)(y * u));
}

}  // namespace sdx::SDX_ISA
#endif
