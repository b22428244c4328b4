// Dot products of narrow numbers, accumulated in each 32-bit lane: 4 unsigned by 4 signed bytes,
// exact in int32 (VNNI's VPDPBUSD); 2 by 2 bf16 in float (VDPBF16PS); with emulations for other
// ISAs.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "simd/vec.h"

namespace sdx::SDX_ISA {

#if defined(__AVX512VNNI__)

constexpr bool kHasDot4 = true;  // as one instruction

SDX_INLINE i32v dot4(i32v total, i32v a, i32v b) {
  return (i32v)_mm512_dpbusd_epi32((__m512i)total, (__m512i)a, (__m512i)b);
}

#elif defined(__x86_64__)

constexpr bool kHasDot4 = false;

// Dot products of two 16-bit pairs (PMADDWD).
SDX_INLINE i32v dot2(i32v a, i32v b) {
#if defined(__AVX512BW__)
  return (i32v)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (i32v)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#else
  return (i32v)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}

// Even and odd bytes separately as 16 bits. PMADDUBSW would be shorter but saturates its 16-bit
// sums.
SDX_INLINE i32v dot4(i32v total, i32v a, i32v b) {
  using i16v = Vec<int16_t>;
  using u16v = Vec<uint16_t>;
  const i32v even = (i32v)((u16v)a & 255), odd = (i32v)((u16v)a >> 8);
  const i32v even_b = (i32v)(((i16v)b << 8) >> 8), odd_b = (i32v)((i16v)b >> 8);
  return total + dot2(even, even_b) + dot2(odd, odd_b);
}

#else

constexpr bool kHasDot4 = false;

SDX_INLINE i32v dot4(i32v total, i32v a, i32v b) {
  for (int shift = 0; shift < 32; shift += 8)
    total += (i32v)(((u32v)a >> shift) & 255) * ((b << (24 - shift)) >> 24);
  return total;
}

#endif

// total + a[0] * b[0] + a[1] * b[1], the first of a pair in the low bits. The instruction flushes
// subnormal numbers to zero, which the emulation does not.
SDX_INLINE f32v dot2_bf16(f32v total, u32v a, u32v b) {
#if defined(__AVX512BF16__)
  return (f32v)_mm512_dpbf16_ps((__m512)total, (__m512bh)b, (__m512bh)a);
#else
  const u32v high = u32v{} + 0xffff0000u;
  total += (f32v)(a << 16) * (f32v)(b << 16);
  return total + (f32v)(a & high) * (f32v)(b & high);
#endif
}

}  // namespace sdx::SDX_ISA
