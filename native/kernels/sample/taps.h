// Neighbours of positions along one axis, and what each of them weighs.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

enum SampleMode : int64_t { kSampleNearest, kSampleLinear, kSampleCubic };
enum SamplePadding : int64_t { kZeros, kBorder, kReflection };

constexpr int kMaxTaps = 4;  // along one axis
constexpr int kOutside = -1;

template <class C>
struct AxisTaps {
  int32_t index[kMaxTaps];  // kOutside where there is nothing
  C weight[kMaxTaps];
};

struct SampleAxis {
  int64_t size;
  double low, high;  // positions of -1 and 1
};

SDX_INLINE double reflected(double place, const SampleAxis& axis) {
  const double width = axis.high - axis.low;
  if (!(width > 0)) return 0;
  double folded = __builtin_fmod(place - axis.low, 2 * width);
  if (folded < 0) folded += 2 * width;
  return (folded > width ? 2 * width - folded : folded) + axis.low;
}

// Keys' kernel with a = -0.75 on the distances 1 + t, t, 1 - t and 2 - t.
template <class C>
SDX_INLINE void cubic_weights(C t, C (&w)[kMaxTaps]) {
  constexpr C a = C(-0.75);
  const C u = 1 - t, p = 1 + t, q = 1 + u;
  w[0] = ((a * p - 5 * a) * p + 8 * a) * p - 4 * a;
  w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  w[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
  w[3] = ((a * q - 5 * a) * q + 8 * a) * q - 4 * a;
}

// A place where it is looked for: mirrored, at the border, or where nothing near it weighs.
template <class C>
SDX_INLINE C settled(C place, const SampleAxis& axis, SampleMode mode, SamplePadding padding) {
  if (place < C(axis.low) || place > C(axis.high)) {
    const C last = C(axis.size - 1);
    if (padding == kBorder && mode != kSampleCubic)
      place = place > last ? last : place < 0 ? 0 : place;
    if (padding == kReflection) place = C(reflected(double(place), axis));
  }
  if (!(place >= -3)) return -3;  // NaN too
  const C end = C(axis.size + 2);
  return place > end ? end : place;
}

template <class C>
SDX_INLINE C floor_of(C x) {
  return sizeof(C) == 8 ? C(__builtin_floor(double(x))) : C(__builtin_floorf(float(x)));
}

// The neighbours of a place; says how many.
template <class C>
SDX_INLINE int taps_at(C place, const SampleAxis& axis, SampleMode mode, SamplePadding padding,
                       AxisTaps<C>& taps) {
  place = settled(place, axis, mode, padding);
  const C low = floor_of(place), part = place - low;
  const int n = mode == kSampleNearest ? 1 : mode == kSampleLinear ? 2 : 4;
  int64_t first = int64_t(low);
  taps.weight[0] = n == 1 ? 1 : 1 - part, taps.weight[1] = part;
  if (n == 4) cubic_weights(part, taps.weight), --first;
  for (int t = 0; t < n; ++t) {
    int64_t i = first + t;
    if (padding == kReflection) i = int64_t(reflected(double(i), axis));
    const bool is_inside = i >= 0 && i < axis.size;
    if (padding != kZeros) i = i < 0 ? 0 : i >= axis.size ? axis.size - 1 : i;
    taps.index[t] = is_inside || padding != kZeros ? int32_t(i) : kOutside;
  }
  return n;
}

// Where a point between -1 and 1 lies.
template <class C>
SDX_INLINE C place_of(C point, const SampleAxis& axis, SampleMode mode) {
  const C place = (point + 1) / 2 * C(axis.high - axis.low) + C(axis.low);
  if (mode != kSampleNearest) return place;
  return sizeof(C) == 8 ? C(__builtin_rint(double(place))) : C(__builtin_rintf(float(place)));
}

}  // namespace sdx::SDX_ISA
