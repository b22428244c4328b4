// SIMD vectors of the ISA that this file is compiled for (SSE2, AVX2 or AVX-512), as GCC vector
// extensions, and loops over them with one body and no scalar tail.
//
// Sources are compiled once per ISA into the namespace sdx::SDX_ISA (cmake/isa.cmake); the dispatch
// by ISA is in kernels/registry.cc. Intrinsics are used where GCC does not find the instruction
// itself, always next to a portable body, and only in simd/; the exceptions are permutations that
// one kernel needs (kernels/quantize/lookup.cc and grouped_int8.cc).
#pragma once

#include <cstdint>
#include <cstring>

#include "base/inline.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define SDX_VEC_BYTES 64
#elif defined(__AVX2__)
#define SDX_VEC_BYTES 32
#else
#define SDX_VEC_BYTES 16
#endif

namespace sdx::SDX_ISA {

template <class T>
struct VecOf {
  typedef T type __attribute__((vector_size(SDX_VEC_BYTES)));
};
template <class T>
using Vec = typename VecOf<T>::type;

using f32v = Vec<float>;
using i32v = Vec<int32_t>;
using u32v = Vec<uint32_t>;

template <class T>
constexpr int kLanesOf = SDX_VEC_BYTES / int(sizeof(T));
constexpr int kLanes = kLanesOf<float>;
constexpr float kInf = __builtin_inff();

// Lanes of a load or store: overloads on these two types let one loop body serve whole vectors and
// the remainder.
struct Full {};  // all lanes
struct Part {    // the first n lanes only
  int n;
};

// A vector of copies of x. `x - 0` keeps -0, which `x + 0` would not.
template <class T>
SDX_INLINE Vec<T> splat(T x) {
  return x - Vec<T>{};
}

template <class T>
SDX_INLINE Vec<T> load(const T* p, Full, T = 0) {
  Vec<T> v;
  memcpy(&v, p, sizeof v);
  return v;
}
#if defined(__AVX512BW__)
// Bit mask of the first n lanes, n < 64.
SDX_INLINE uint64_t first_lanes(Part k) { return _bzhi_u64(~uint64_t(0), unsigned(k.n)); }
#endif

// The first n lanes from memory, `fill` in the others; reads nothing past them.
template <class T>
SDX_INLINE Vec<T> load(const T* p, Part k, T fill = 0) {
  Vec<T> v = splat(fill);
#if defined(__AVX512BW__)
  const uint64_t live = first_lanes(k);
  if constexpr (sizeof(T) == 1) return (Vec<T>)_mm512_mask_loadu_epi8((__m512i)v, live, p);
  if constexpr (sizeof(T) == 2)
    return (Vec<T>)_mm512_mask_loadu_epi16((__m512i)v, __mmask32(live), p);
  if constexpr (sizeof(T) == 4)
    return (Vec<T>)_mm512_mask_loadu_epi32((__m512i)v, __mmask16(live), p);
  if constexpr (sizeof(T) == 8)
    return (Vec<T>)_mm512_mask_loadu_epi64((__m512i)v, __mmask8(live), p);
#endif
  memcpy(&v, p, size_t(k.n) * sizeof(T));
  return v;
}
template <class T>
SDX_INLINE Vec<T> load(const T* p) {
  return load(p, Full{});
}

template <class T, class V>
SDX_INLINE void store(T* p, V v, Full) {
  memcpy(p, &v, sizeof v);
}
template <class T, class V>
SDX_INLINE void store(T* p, V v, Part k) {
#if defined(__AVX512BW__)
  if constexpr (sizeof(V) == 64) {
    const uint64_t live = first_lanes(k);
    if constexpr (sizeof(T) == 1) return _mm512_mask_storeu_epi8(p, live, (__m512i)v);
    if constexpr (sizeof(T) == 2) return _mm512_mask_storeu_epi16(p, __mmask32(live), (__m512i)v);
    if constexpr (sizeof(T) == 4) return _mm512_mask_storeu_epi32(p, __mmask16(live), (__m512i)v);
    if constexpr (sizeof(T) == 8) return _mm512_mask_storeu_epi64(p, __mmask8(live), (__m512i)v);
  }
#endif
  memcpy(p, &v, size_t(k.n) * sizeof(T));
}
template <class T, class V>
SDX_INLINE void store(T* p, V v) {
  store(p, v, Full{});
}

// Calls body(i, Full) for whole vectors of T and body(i, Part) once for the remainder of n.
template <class T = float, class Body>
SDX_INLINE void vloop(int64_t n, Body&& body) {
  constexpr int64_t lanes = kLanesOf<T>;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) body(i, Full{});
  if (i < n) body(i, Part{int(n - i)});
}

// Maximum and minimum by lane that propagate NaN from either side, as ONNX's Max, Min and Relu do
// and the x86 instructions do not.
template <class V>
SDX_INLINE V vmax(V a, V b) {
  const V top = a > b ? a : b;
  return a != a ? a : top;  // b NaN: a > b is false, so top is b
}
template <class V>
SDX_INLINE V vmin(V a, V b) {
  const V low = a < b ? a : b;
  return a != a ? a : low;
}

// x bounded below or above; NaN in x stays NaN. The bound must not be NaN. The operand order makes
// GCC emit a single max or min instruction.
template <class V>
SDX_INLINE V at_least(V x, V low) {
  return low > x ? low : x;
}
template <class V>
SDX_INLINE V at_most(V x, V high) {
  return high < x ? high : x;
}

// Lane i of the result is lane at[i] of v.
SDX_INLINE f32v permute(f32v v, i32v at) {
#if defined(__clang__)
  f32v result;
  for (int i = 0; i < kLanes; ++i) result[i] = v[at[i]];
  return result;
#else
  return __builtin_shuffle(v, at);
#endif
}

// Hides the origin of a value from the compiler, which otherwise folds the load into every use as a
// memory operand: in a GEMM tile the load ports would then be the limit.
template <class V>
SDX_INLINE V pinned(V v) {
#if defined(__x86_64__)
  asm("" : "+v"(v));
#endif
  return v;
}

// x between two bounds that are not NaN; NaN stays NaN. The zero-masked forms of intrinsics, here
// and below, avoid a false warning of GCC 12 about uninitialized values.
SDX_INLINE f32v vclamp(f32v x, float low, float high) {
#if defined(__AVX512F__)
  const __m512 below = _mm512_maskz_min_ps(0xffff, (__m512)splat(high), (__m512)x);
  return (f32v)_mm512_maskz_max_ps(0xffff, (__m512)splat(low), below);
#elif defined(__AVX2__)
  return (f32v)_mm256_max_ps((__m256)splat(low), _mm256_min_ps((__m256)splat(high), (__m256)x));
#else
  const f32v a = splat(low), b = splat(high);
  return x > b ? b : x < a ? a : x;
#endif
}

// a / b to one or two units in the last place, for normal b with a normal reciprocal: a 14-bit
// reciprocal and one Newton step, cheaper than a division.
SDX_INLINE f32v vratio(f32v a, f32v b) {
#if defined(__AVX512F__)
  const f32v near = (f32v)_mm512_maskz_rcp14_ps(0xffff, (__m512)b);
  const f32v y = a * near;
  return y + near * (a - b * y);
#else
  return a / b;
#endif
}

SDX_INLINE f32v vsqrt(f32v x) {
#if defined(__AVX512F__)
  return (f32v)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);  // zero-masked: see vclamp
#elif defined(__AVX2__)
  return (f32v)_mm256_sqrt_ps((__m256)x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// Whether a lane of a mask is set.
SDX_INLINE bool any(i32v mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#else
  int32_t seen = 0;
  for (int i = 0; i < kLanes; ++i) seen |= mask[i];
  return seen != 0;
#endif
}

// Reductions lane by lane, in order; simd/reduction.h has faster trees.
template <class V>
SDX_INLINE auto reduce_sum(V v) {
  auto total = v[0];
  for (int i = 1; i < int(sizeof v / sizeof v[0]); ++i) total += v[i];
  return total;
}
template <class V>
SDX_INLINE auto reduce_max(V v) {
  auto top = v[0];
  for (int i = 1; i < int(sizeof v / sizeof v[0]); ++i) top = top != top || top > v[i] ? top : v[i];
  return top;
}

}  // namespace sdx::SDX_ISA
