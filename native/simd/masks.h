// Bools in memory (a byte each) from and to masks of vectors (all bits of a lane).
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// Integer types by size: comparisons of vectors of T give vectors of the signed integer.
template <int size>
struct IntsOf;
template <>
struct IntsOf<1> {
  using Signed = int8_t;
  using Unsigned = uint8_t;
};
template <>
struct IntsOf<2> {
  using Signed = int16_t;
  using Unsigned = uint16_t;
};
template <>
struct IntsOf<4> {
  using Signed = int32_t;
  using Unsigned = uint32_t;
};
template <>
struct IntsOf<8> {
  using Signed = int64_t;
  using Unsigned = uint64_t;
};
template <class T>
using SignedOf = typename IntsOf<sizeof(T)>::Signed;
template <class T>
using UnsignedOf = typename IntsOf<sizeof(T)>::Unsigned;

// One byte for each lane of a vector of T.
template <class T>
struct BoolsOf {
  typedef uint8_t type __attribute__((vector_size(kLanesOf<T>)));
};
template <class T>
using Bools = typename BoolsOf<T>::type;

template <class T>
SDX_INLINE Bools<T> load_bools(const uint8_t* p, Full) {
  Bools<T> v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
SDX_INLINE Bools<T> load_bools(const uint8_t* p, Part k) {
  Bools<T> v{};
  memcpy(&v, p, size_t(k.n));
  return v;
}

// Mask of the lanes whose bool is not 0.
template <class T>
SDX_INLINE auto mask_of(Bools<T> bools) {
  using Mask = Vec<SignedOf<T>>;
#if defined(__AVX512BW__)
  if constexpr (sizeof(T) == 2)
    return (Mask)_mm512_maskz_cvtepi8_epi16(~__mmask32(0), (__m256i)bools) != 0;
  else if constexpr (sizeof(T) == 4)
    return (Mask)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)bools) != 0;
  else
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 2) {
    return (Mask)_mm256_cvtepi8_epi16((__m128i)bools) != 0;
  } else if constexpr (sizeof(T) == 4) {
    int64_t bits;
    memcpy(&bits, &bools, sizeof bits);
    return (Mask)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(bits)) != 0;
  } else
#endif
    return __builtin_convertvector(bools, Mask) != 0;
}

// 1 for each lane of a mask that is set, else 0.
template <class T, class M>
SDX_INLINE Bools<T> bools_of(M mask) {
#if defined(__AVX2__) && !defined(__AVX512BW__)
  if constexpr (sizeof(T) == 4) {
    const __m256i m = (__m256i)mask;
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    const int64_t bytes = _mm_cvtsi128_si64(_mm_packs_epi16(words, words));
    Bools<T> bools;
    memcpy(&bools, &bytes, sizeof bools);
    return bools & 1;
  }
#endif
  return __builtin_convertvector(mask, Bools<T>) & 1;
}

}  // namespace sdx::SDX_ISA
