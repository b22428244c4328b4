// The reductions of pooling: an initial value, one more element, and the final value, on vectors of
// neighbouring channels or pixels. `join` combines partial results. A count is one number, or one
// for each lane.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// The identity of max: the lowest value of a type, -inf for floats.
template <class T>
constexpr T kLowest = T(-1) < T(0) ? T(T(1) << (sizeof(T) * 8 - 1)) : T(0);
template <>
inline constexpr float kLowest<float> = -kInf;

template <class T>
struct MaxReduction {
  using Element = T;
  SDX_INLINE Vec<T> start() const { return splat(kLowest<T>); }
  SDX_INLINE Vec<T> step(Vec<T> total, Vec<T> x) const { return vmax(total, x); }
  SDX_INLINE Vec<T> join(Vec<T> a, Vec<T> b) const { return vmax(a, b); }
  template <class Count>
  SDX_INLINE Vec<T> finish(Vec<T> total, Count) const {
    return total;
  }
};

struct MeanReduction {
  using Element = float;
  SDX_INLINE f32v start() const { return f32v{}; }
  SDX_INLINE f32v step(f32v total, f32v x) const { return total + x; }
  SDX_INLINE f32v join(f32v a, f32v b) const { return a + b; }
  template <class Count>
  SDX_INLINE f32v finish(f32v total, Count count) const {
    return total / count;
  }
};

// The p-norm, (sum |x|^p)^(1/p).
struct NormReduction {
  using Element = float;
  int64_t p;

  SDX_INLINE f32v start() const { return f32v{}; }
  SDX_INLINE f32v join(f32v a, f32v b) const { return a + b; }
  SDX_INLINE f32v step(f32v total, f32v x) const {
    if (p == 2) return total + x * x;
    const f32v size = x < 0.0f ? -x : x;
    f32v power = splat(1.0f);
    // Exponentiation by squaring: p is an attribute of the model and may be huge.
    f32v square = size;
    for (int64_t left = p; left > 0; left >>= 1) {
      if (left & 1) power *= square;
      square *= square;
    }
    return total + power;
  }
  template <class Count>
  SDX_INLINE f32v finish(f32v total, Count) const {
    if (p == 1) return total;
    f32v y;
    for (int i = 0; i < kLanes; ++i)
      y[i] = p == 2 ? __builtin_sqrtf(total[i]) : __builtin_powf(total[i], 1 / float(p));
    return y;
  }
};

}  // namespace sdx::SDX_ISA
