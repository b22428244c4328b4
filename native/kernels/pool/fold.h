// What pools do with the elements of a window: start, take one more, finish.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

// The lowest value of a type: nothing that a window holds is below it.
template <class T>
constexpr T kLowest = T(-1) < T(0) ? T(T(1) << (sizeof(T) * 8 - 1)) : T(0);
template <>
inline constexpr float kLowest<float> = -kInf;

template <class T>
struct MaxFold {
  using Element = T;
  SDX_INLINE Vec<T> start() const { return splat(kLowest<T>); }
  SDX_INLINE Vec<T> take(Vec<T> so_far, Vec<T> x) const { return vmax(so_far, x); }
  SDX_INLINE Vec<T> join(Vec<T> a, Vec<T> b) const { return vmax(a, b); }
  SDX_INLINE Vec<T> finish(Vec<T> so_far, float) const { return so_far; }
};

struct MeanFold {
  using Element = float;
  SDX_INLINE f32v start() const { return f32v{}; }
  SDX_INLINE f32v take(f32v so_far, f32v x) const { return so_far + x; }
  SDX_INLINE f32v join(f32v a, f32v b) const { return a + b; }
  SDX_INLINE f32v finish(f32v so_far, float count) const { return so_far / count; }
};

struct NormFold {
  using Element = float;
  int64_t p;

  SDX_INLINE f32v start() const { return f32v{}; }
  SDX_INLINE f32v join(f32v a, f32v b) const { return a + b; }
  SDX_INLINE f32v take(f32v so_far, f32v x) const {
    if (p == 2) return so_far + x * x;
    const f32v size = x < 0.0f ? -x : x;
    f32v power = splat(1.0f);
    f32v square = size;  // by squares: the exponent is the model's, and may be huge
    for (int64_t left = p; left > 0; left >>= 1) {
      if (left & 1) power *= square;
      square *= square;
    }
    return so_far + power;
  }
  SDX_INLINE f32v finish(f32v so_far, float) const {
    if (p == 1) return so_far;
    f32v y;
    for (int i = 0; i < kLanes; ++i)
      y[i] = p == 2 ? __builtin_sqrtf(so_far[i]) : __builtin_powf(so_far[i], 1 / float(p));
    return y;
  }
};

}  // namespace sdx::SDX_ISA
