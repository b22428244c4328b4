// As many elements of another type as a vector of float has lanes, widened and narrowed.
#pragma once

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
  Lanes<T> v{};
  memcpy(&v, p, size_t(k.n) * sizeof(T));
  return v;
}

// kLanes integers or halves as float.
template <class T, class L>
SDX_INLINE f32v load_f32(const T* p, L lanes) {
  return __builtin_convertvector(load_lanes(p, lanes), f32v);
}
template <class L>
SDX_INLINE f32v load_f32(const float* p, L lanes) {
  return load(p, lanes);
}
template <class L>
SDX_INLINE f32v load_f32(const F16* p, L lanes) {
  return load_float(p, lanes);
}

// Integers cut off to a narrower type; they fit.
template <class T, class L>
SDX_INLINE void store_i32(T* p, i32v v, L lanes) {
  store(p, __builtin_convertvector(v, Lanes<T>), lanes);
}
template <class L>
SDX_INLINE void store_f32(float* p, f32v v, L lanes) {
  store(p, v, lanes);
}
template <class L>
SDX_INLINE void store_f32(F16* p, f32v v, L lanes) {
  store_float(p, v, lanes);
}

// The nearest integer, halves to even, for |x| < 2^22.
SDX_INLINE f32v round_small(f32v x) {
  const f32v shift = splat(12582912.0f);  // 1.5 * 2^23: there a float's last bit is 1
  return (x + shift) - shift;
}

// The low 16 bits of the nearest integer, halves to even, for |x| < 2^22; the rest is arbitrary.
SDX_INLINE i32v round_bits(f32v x) { return (i32v)(x + splat(12582912.0f)); }

// x within [low, high]; NaN becomes low.
SDX_INLINE f32v clamp(f32v x, f32v low, f32v high) {
  const f32v above = x > low ? x : low;
  return above < high ? above : high;
}

}  // namespace sdx::SDX_ISA
