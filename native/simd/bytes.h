// Vectors of bytes: partial loads and stores, interleaving of four rows into 32-bit lanes (the
// operand layout of dot4), and saturation of floats to bytes.
//
// Interleaving works within 128-bit lanes: of each 16 bytes, vector q of an interleaved four has
// the bytes 4q to 4q + 3.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "simd/narrow.h"

namespace sdx::SDX_ISA {

using u8v = Vec<uint8_t>;

SDX_INLINE u8v load_bytes(const uint8_t* p, Full) { return load(p); }
SDX_INLINE u8v load_bytes(const uint8_t* p, Part k) {
#if defined(__AVX512BW__)
  return (u8v)_mm512_maskz_loadu_epi8((uint64_t(1) << k.n) - 1, p);
#else
  return load(p, k);
#endif
}

SDX_INLINE void store_bytes(uint8_t* p, u8v v, Full) { store(p, v); }
// In pieces of 32, 16, ... bytes by the bits of n: masked byte stores are slow on some CPUs.
SDX_INLINE void store_bytes(uint8_t* p, u8v v, Part k) {
  alignas(SDX_VEC_BYTES) uint8_t bytes[SDX_VEC_BYTES];
  memcpy(bytes, &v, sizeof v);
  int at = 0;
  const auto piece = [&]<int n>() {
    if constexpr (n < SDX_VEC_BYTES) {
      if ((k.n & n) == 0) return;
      memcpy(p + at, bytes + at, n);
      at += n;
    }
  };
  piece.template operator()<32>();
  piece.template operator()<16>();
  piece.template operator()<8>();
  piece.template operator()<4>();
  piece.template operator()<2>();
  piece.template operator()<1>();
}

#if defined(__AVX512BW__)
#define SDX_BYTES(name) _mm512_##name
#define SDX_WHOLE __m512i
#elif defined(__AVX2__)
#define SDX_BYTES(name) _mm256_##name
#define SDX_WHOLE __m256i
#elif defined(__x86_64__)
#define SDX_BYTES(name) _mm_##name
#define SDX_WHOLE __m128i
#endif

// out: 32-bit lanes with byte i of a, b, c and d.
SDX_INLINE void interleave4(u8v a, u8v b, u8v c, u8v d, i32v* out) {
#if defined(SDX_WHOLE)
  const auto ab = SDX_BYTES(unpacklo_epi8)((SDX_WHOLE)a, (SDX_WHOLE)b);
  const auto ab_high = SDX_BYTES(unpackhi_epi8)((SDX_WHOLE)a, (SDX_WHOLE)b);
  const auto cd = SDX_BYTES(unpacklo_epi8)((SDX_WHOLE)c, (SDX_WHOLE)d);
  const auto cd_high = SDX_BYTES(unpackhi_epi8)((SDX_WHOLE)c, (SDX_WHOLE)d);
  out[0] = (i32v)SDX_BYTES(unpacklo_epi16)(ab, cd);
  out[1] = (i32v)SDX_BYTES(unpackhi_epi16)(ab, cd);
  out[2] = (i32v)SDX_BYTES(unpacklo_epi16)(ab_high, cd_high);
  out[3] = (i32v)SDX_BYTES(unpackhi_epi16)(ab_high, cd_high);
#else
  for (int i = 0; i < SDX_VEC_BYTES; ++i) {
    const uint32_t four = a[i] | b[i] << 8 | c[i] << 16 | uint32_t(d[i]) << 24;
    out[i % 16 / 4][i / 16 * 4 + i % 4] = int32_t(four);
  }
#endif
}

// The low bytes of four vectors of 32-bit lanes: the inverse order of interleave4.
SDX_INLINE u8v pack_low_bytes(const i32v* in) {
#if defined(SDX_WHOLE)
  const auto low = [&](int i) { return (SDX_WHOLE)(in[i] & 255); };
  const auto first = SDX_BYTES(packs_epi32)(low(0), low(1));
  const auto second = SDX_BYTES(packs_epi32)(low(2), low(3));
  return (u8v)SDX_BYTES(packus_epi16)(first, second);
#else
  u8v v;
  for (int i = 0; i < SDX_VEC_BYTES; ++i) v[i] = uint8_t(in[i % 16 / 4][i / 16 * 4 + i % 4]);
  return v;
#endif
}

// Quantization to bytes of T: values are rounded half to even and saturated to [low, high], then
// the zero point is added; NaN becomes `low`.
template <class T>
struct Saturation {
  float low, high, zero;
};

// Four vectors of values as bytes, in the order of pack_low_bytes. The saturating packs of x86
// clamp the lower side; the upper one is clamped first, since the conversion to integers turns 2^31
// and above, like NaN, into the smallest integer.
template <class T>
SDX_INLINE u8v saturate_to_bytes(const f32v* y, const Saturation<T>& to) {
#if defined(SDX_WHOLE)
  const auto zero = SDX_BYTES(set1_epi16)(int16_t(to.zero));
  const auto whole = [&](int i) {
    const f32v held = splat(to.high) < y[i] ? splat(to.high) : y[i];  // NaN stays NaN
#if defined(__AVX512F__)
    return _mm512_maskz_cvtps_epi32(__mmask16(-1), (__m512)held);
#else
    return SDX_BYTES(cvtps_epi32)(held);
#endif
  };
  const auto first = SDX_BYTES(adds_epi16)(SDX_BYTES(packs_epi32)(whole(0), whole(1)), zero);
  const auto second = SDX_BYTES(adds_epi16)(SDX_BYTES(packs_epi32)(whole(2), whole(3)), zero);
  Vec<T> bytes;
  if constexpr (T(-1) < T(0))
    bytes = (Vec<T>)SDX_BYTES(packs_epi16)(first, second);
  else
    bytes = (Vec<T>)SDX_BYTES(packus_epi16)(first, second);
  const Vec<T> low = splat(T(to.low + to.zero));
  return (u8v)(bytes > low ? bytes : low);
#else
  i32v held[4];
  for (int i = 0; i < 4; ++i)
    held[i] = round_bits(clamp(y[i], splat(to.low), splat(to.high))) + splat(int32_t(to.zero));
  return pack_low_bytes(held);
#endif
}

#undef SDX_BYTES
#undef SDX_WHOLE

}  // namespace sdx::SDX_ISA
