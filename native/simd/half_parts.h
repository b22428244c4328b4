// Loads and stores of a part of a vector of 16-bit elements, by masks where these exist: rows that
// are shorter than a vector consist of them.
#pragma once

#include "simd/half.h"

namespace sdx::SDX_ISA {

SDX_INLINE u16h load_half_part(const uint16_t* p, Part k) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  return (u16h)_mm256_maskz_loadu_epi16(__mmask16(first_lanes(k)), p);
#else
  return load_half(p, k);
#endif
}
SDX_INLINE void store_half_part(uint16_t* p, u16h v, Part k) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  _mm256_mask_storeu_epi16(p, __mmask16(first_lanes(k)), (__m256i)v);
#else
  store(p, v, k);
#endif
}

SDX_INLINE f32v widen_half(const F16*, u16h v) { return widen_f16(v); }
SDX_INLINE f32v widen_half(const BF16*, u16h v) { return widen_bf16(v); }
SDX_INLINE u16h narrow_half(const F16*, f32v v) { return narrow_f16(v); }
SDX_INLINE u16h narrow_half(const BF16*, f32v v) { return narrow_bf16(v); }

}  // namespace sdx::SDX_ISA
