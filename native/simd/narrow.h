// Lanes<T>: as many elements of another type as a vector of float has lanes; widening to 32 bits
// and narrowing from them.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "simd/half.h"

namespace sdx::SDX_ISA {

template <class T>
struct LanesOf {
  typedef T type __attribute__((vector_size(kLanes * sizeof(T))));
};
template <class T>
using Lanes = typename LanesOf<T>::type;

template <class T>
SDX_INLINE Lanes<T> load_lanes(const T* p, Full) {
  Lanes<T> v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
SDX_INLINE Lanes<T> load_lanes(const T* p, Part k) {
#if defined(__AVX512VL__)
  if constexpr (sizeof(T) == 1) return (Lanes<T>)_mm_maskz_loadu_epi8(__mmask16(first_lanes(k)), p);
  if constexpr (sizeof(T) == 2)
    return (Lanes<T>)_mm256_maskz_loadu_epi16(__mmask16(first_lanes(k)), p);
#endif
  Lanes<T> v{};
  memcpy(&v, p, size_t(k.n) * sizeof(T));
  return v;
}

// The first n bytes of a vector in pieces of 32, 16, ... bytes by the bits of n: masked stores of
// bytes are slow on some CPUs, and so is a copy whose length is not constant.
template <class V>
SDX_INLINE void store_pieces(void* to, const V& v, int n) {
  alignas(sizeof(V)) uint8_t bytes[sizeof(V)];
  memcpy(bytes, &v, sizeof v);
  auto* p = static_cast<uint8_t*>(to);
  int at = 0;
  const auto piece = [&]<int size>() {
    if constexpr (size < int(sizeof(V))) {
      if ((n & size) == 0) return;
      memcpy(p + at, bytes + at, size);
      at += size;
    }
  };
  piece.template operator()<32>();
  piece.template operator()<16>();
  piece.template operator()<8>();
  piece.template operator()<4>();
  piece.template operator()<2>();
  piece.template operator()<1>();
}

template <class T>
SDX_INLINE void store_lanes(T* p, Lanes<T> v, Full) {
  memcpy(p, &v, sizeof v);
}
template <class T>
SDX_INLINE void store_lanes(T* p, Lanes<T> v, Part k) {
  store_pieces(p, v, k.n * int(sizeof(T)));
}

// Lanes of 8 or 16 bits as 32 bits. GCC 12 converts these element by element without intrinsics.
template <class T>
SDX_INLINE i32v widen(Lanes<T> v) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(T) == 1)
    return (i32v)(T(-1) < T(0) ? _mm512_maskz_cvtepi8_epi32(__mmask16(-1), (__m128i)v)
                               : _mm512_maskz_cvtepu8_epi32(__mmask16(-1), (__m128i)v));
  else if constexpr (sizeof(T) == 2)
    return (i32v)(T(-1) < T(0) ? _mm512_maskz_cvtepi16_epi32(__mmask16(-1), (__m256i)v)
                               : _mm512_maskz_cvtepu16_epi32(__mmask16(-1), (__m256i)v));
#elif defined(__AVX2__)
  __m128i low{};
  memcpy(&low, &v, sizeof v < sizeof low ? sizeof v : sizeof low);
  if constexpr (sizeof(T) == 1)
    return (i32v)(T(-1) < T(0) ? _mm256_cvtepi8_epi32(low) : _mm256_cvtepu8_epi32(low));
  else if constexpr (sizeof(T) == 2)
    return (i32v)(T(-1) < T(0) ? _mm256_cvtepi16_epi32(low) : _mm256_cvtepu16_epi32(low));
#endif
  return __builtin_convertvector(v, i32v);
}

// The low bits of each lane.
template <class T>
SDX_INLINE Lanes<T> truncate_lanes(i32v v) {
#if defined(__AVX2__) && !defined(__AVX512BW__)
  __m128i low;
  if constexpr (sizeof(T) == 1) {
    const __m256i bytes = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));
    low = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, _mm256_set1_epi64x(4ll << 32)));
  } else {
    const __m256i pairs = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi64x(0x0d0c090805040100));
    low = _mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 8));
  }
  Lanes<T> cut;
  memcpy(&cut, &low, sizeof cut);
  return cut;
#else
  return __builtin_convertvector(v, Lanes<T>);
#endif
}

// kLanes integers, widened, and as float.
template <class T, class L>
SDX_INLINE i32v load_i32(const T* p, L lanes) {
  return widen<T>(load_lanes(p, lanes));
}
template <class T, class L>
SDX_INLINE f32v load_int_as_float(const T* p, L lanes) {
  return __builtin_convertvector(load_i32(p, lanes), f32v);
}

// Integers truncated to a narrower type, in which they must fit.
template <class T, class L>
SDX_INLINE void store_i32(T* p, i32v v, L lanes) {
  store_lanes(p, truncate_lanes<T>(v), lanes);
}
// Nearest integer, half to even, for |x| < 2^22: near 1.5 * 2^23 the last bit of a float is 1.
SDX_INLINE f32v round_small(f32v x) {
  const f32v shift = splat(12582912.0f);  // 1.5 * 2^23
  return (x + shift) - shift;
}

// Low 16 bits of the nearest integer, half to even, for |x| < 2^22; the upper bits are arbitrary.
SDX_INLINE i32v round_bits(f32v x) { return (i32v)(x + splat(12582912.0f)); }

// x within [low, high]; NaN becomes low.
SDX_INLINE f32v clamp(f32v x, f32v low, f32v high) {
  const f32v above = x > low ? x : low;
  return above < high ? above : high;
}

}  // namespace sdx::SDX_ISA
