// Interpolation taps of a coordinate along one axis: neighbours and weights, with padding.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

enum SampleMode : int64_t { kSampleNearest, kSampleLinear, kSampleCubic };
enum SamplePadding : int64_t { kZeros, kBorder, kReflection };

constexpr int kMaxTaps = 4;  // along one axis
constexpr int kOutside = -1;

template <class C>
struct AxisTaps {
  int32_t index[kMaxTaps];  // kOutside: zero padding
  C weight[kMaxTaps];
};

struct SampleAxis {
  int64_t size;
  double low, high;  // coordinates of -1 and 1: the centres or the outer edges of the end pixels
};

// Reflection padding: a triangle wave with period 2 * (high - low).
SDX_INLINE double reflected(double coordinate, const SampleAxis& axis) {
  const double width = axis.high - axis.low;
  if (!(width > 0)) return 0;
  double folded = __builtin_fmod(coordinate - axis.low, 2 * width);
  if (folded < 0) folded += 2 * width;
  return (folded > width ? 2 * width - folded : folded) + axis.low;
}

// Keys' cubic convolution kernel with a = -0.75 (as in PyTorch) at 1 + t, t, 1 - t and 2 - t.
template <class C>
SDX_INLINE void cubic_weights(C t, C (&w)[kMaxTaps]) {
  constexpr C a = C(-0.75);
  const C u = 1 - t, p = 1 + t, q = 1 + u;
  w[0] = ((a * p - 5 * a) * p + 8 * a) * p - 4 * a;
  w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  w[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
  w[3] = ((a * q - 5 * a) * q + 8 * a) * q - 4 * a;
}

// Applies the padding mode to a coordinate. What remains outside is clamped to [-3, size + 2],
// where even cubic taps are outside, so that it fits an integer; cubic border padding clamps tap by
// tap.
template <class C>
SDX_INLINE C padded_coordinate(C coordinate, const SampleAxis& axis, SampleMode mode,
                               SamplePadding padding) {
  if (coordinate < C(axis.low) || coordinate > C(axis.high)) {
    const C last = C(axis.size - 1);
    if (padding == kBorder && mode != kSampleCubic)
      coordinate = coordinate > last ? last : coordinate < 0 ? 0 : coordinate;
    if (padding == kReflection) coordinate = C(reflected(double(coordinate), axis));
  }
  if (!(coordinate >= -3)) return -3;  // NaN too
  const C end = C(axis.size + 2);
  return coordinate > end ? end : coordinate;
}

template <class C>
SDX_INLINE C floor_of(C x) {
  return sizeof(C) == 8 ? C(__builtin_floor(double(x))) : C(__builtin_floorf(float(x)));
}

// The taps of a coordinate; returns their number.
template <class C>
SDX_INLINE int taps_at(C coordinate, const SampleAxis& axis, SampleMode mode, SamplePadding padding,
                       AxisTaps<C>& taps) {
  coordinate = padded_coordinate(coordinate, axis, mode, padding);
  const C low = floor_of(coordinate), fraction = coordinate - low;
  const int n = mode == kSampleNearest ? 1 : mode == kSampleLinear ? 2 : 4;
  int64_t first = int64_t(low);
  taps.weight[0] = n == 1 ? 1 : 1 - fraction, taps.weight[1] = fraction;
  if (n == 4) cubic_weights(fraction, taps.weight), --first;
  for (int t = 0; t < n; ++t) {
    int64_t i = first + t;
    if (padding == kReflection) i = int64_t(reflected(double(i), axis));
    const bool is_inside = i >= 0 && i < axis.size;
    if (padding != kZeros) i = i < 0 ? 0 : i >= axis.size ? axis.size - 1 : i;
    taps.index[t] = is_inside || padding != kZeros ? int32_t(i) : kOutside;
  }
  return n;
}

// The pixel coordinate of a grid value in [-1, 1]; nearest mode rounds it half to even.
template <class C>
SDX_INLINE C pixel_coordinate(C point, const SampleAxis& axis, SampleMode mode) {
  const C coordinate = (point + 1) / 2 * C(axis.high - axis.low) + C(axis.low);
  if (mode != kSampleNearest) return coordinate;
  return sizeof(C) == 8 ? C(__builtin_rint(double(coordinate)))
                        : C(__builtin_rintf(float(coordinate)));
}

}  // namespace sdx::SDX_ISA
