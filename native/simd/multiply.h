// Products of vectors of integers for which GCC does not find the instruction.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// The products of the low 32 bits of each lane and a number.
SDX_INLINE Vec<uint64_t> multiply_low(Vec<uint64_t> a, uint32_t b) {
#if defined(__AVX512F__)
  return (Vec<uint64_t>)_mm512_maskz_mul_epu32(0xff, (__m512i)a, (__m512i)splat(uint64_t(b)));
#elif defined(__AVX2__)
  return (Vec<uint64_t>)_mm256_mul_epu32((__m256i)a, (__m256i)splat(uint64_t(b)));
#else
  return (a & 0xffffffffu) * uint64_t(b);
#endif
}

}  // namespace sdx::SDX_ISA
