// Conversions between float and the 16-bit types f16 and bf16, rounded to nearest even.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// As many 16-bit elements as a vector of float has lanes.
typedef uint16_t u16h __attribute__((vector_size(SDX_VEC_BYTES / 2)));

SDX_INLINE u16h load_half(const uint16_t* p, Full) {
  u16h v;
  memcpy(&v, p, sizeof v);
  return v;
}
SDX_INLINE u16h load_half(const uint16_t* p, Part k) {
  u16h v{};
  memcpy(&v, p, size_t(k.n) * sizeof(uint16_t));
  return v;
}

SDX_INLINE f32v widen_bf16(u16h v) { return (f32v)(__builtin_convertvector(v, u32v) << 16); }

// Adds just below half a unit of the result plus its last bit (round half to even) and truncates;
// NaN keeps its payload's top bits and becomes quiet.
SDX_INLINE u16h narrow_bf16(f32v x) {
  const u32v bits = (u32v)x;
  const u32v rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const u32v quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector(x == x ? rounded : quiet, u16h);
}

// Lanes of two vectors rounded to bf16, in pairs: those of `low` in the low 16 bits.
SDX_INLINE u32v pair_bf16(f32v low, f32v high) {
#if defined(__AVX512BF16__)
  const auto both = (Vec<uint16_t>)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  return (u32v)__builtin_shufflevector(both, both, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                       7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                       15, 31);
#else
  const auto rounded = [](f32v x) {
    const u32v bits = (u32v)x;
    return x == x ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits | 0x400000u;
  };
  return (rounded(low) >> 16) | (rounded(high) & 0xffff0000u);
#endif
}

// The elements of both vectors in sequence, rounded to bf16, as pairs of neighbours.
SDX_INLINE u32v pair_row_bf16(f32v first, f32v second) {
#if defined(__AVX512BF16__)
  return (u32v)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#elif SDX_VEC_BYTES == 64
  return pair_bf16(__builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                                           24, 26, 28, 30),
                   __builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23,
                                           25, 27, 29, 31));
#elif SDX_VEC_BYTES == 32
  return pair_bf16(__builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14),
                   __builtin_shufflevector(first, second, 1, 3, 5, 7, 9, 11, 13, 15));
#else
  return pair_bf16(__builtin_shufflevector(first, second, 0, 2, 4, 6),
                   __builtin_shufflevector(first, second, 1, 3, 5, 7));
#endif
}

SDX_INLINE f32v widen_f16(u16h v) {
#if defined(__AVX512F__)
  return (f32v)_mm512_maskz_cvtph_ps(0xffff, (__m256i)v);
#elif defined(__AVX2__)
  return (f32v)_mm256_cvtph_ps((__m128i)v);
#else
  const u32v h = __builtin_convertvector(v, u32v);
  const u32v sign = (h & 0x8000u) << 16, body = (h & 0x7fffu) << 13;
  // Multiplying by 2^112 corrects the exponent bias (127 - 15), and normalizes subnormal numbers.
  const f32v scaled = (f32v)body * 0x1p112f;
  const u32v special = body | 0x7f800000u;
  return (f32v)((((h & 0x7c00u) == 0x7c00u) ? special : (u32v)scaled) | sign);
#endif
}

SDX_INLINE u16h narrow_f16(f32v x) {
#if defined(__AVX512F__)
  return (u16h)_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__AVX2__)
  return (u16h)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#else
  const u32v bits = (u32v)x;
  const u32v sign = (bits >> 16) & 0x8000u, a = bits & 0x7fffffffu;
  const u32v normal = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
  // Below 2^-14 adding 1/2 rounds at the last bit of a subnormal result.
  const u32v tiny = (u32v)((f32v)a + 0.5f) - 0x3f000000u;
  u32v h = a < 0x38800000u ? tiny : normal;
  h = a >= 0x477ff000u ? u32v{} + 0x7c00u : h;
  h = a > 0x7f800000u ? ((a >> 13) & 0x3ffu) | 0x7e00u : h;
  return __builtin_convertvector(h | sign, u16h);
#endif
}

// Rounding to odd, for a second rounding to a narrower type: rounding to nearest twice is wrong
// where the first result is half way between two narrower numbers, and an odd last bit prevents
// that.
SDX_INLINE float round_odd(double x) {
  const float near = float(x);
  uint32_t bits;
  memcpy(&bits, &near, sizeof bits);
  const bool is_wrong =
      double(near) != x && (bits & 1u) == 0 && (bits & 0x7f800000u) != 0x7f800000u;
  if (!is_wrong) return near;  // NaN has all exponent bits set
  bits += __builtin_fabs(double(near)) < __builtin_fabs(x) ? 1u : -1u;
  float odd;
  memcpy(&odd, &bits, sizeof odd);
  return odd;
}

}  // namespace sdx::SDX_ISA
