// Vectors of bytes: parts of them, and four interleaved into lanes of 32 bits and back.
//
// Both directions work within 16 bytes: of each 16 bytes, vector q of an interleaved four holds
// the bytes 4q to 4q + 3.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "simd/vec.h"

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
// In pieces of known sizes: masked stores are slow on some machines.
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

// Byte i of a, b, c and d side by side.
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

// The low bytes of four vectors, as interleave4 has them.
SDX_INLINE u8v gather_low(const i32v* in) {
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

#undef SDX_BYTES
#undef SDX_WHOLE

}  // namespace sdx::SDX_ISA
