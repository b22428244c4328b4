// Where each output of a resized axis reads, and how much of what.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

enum ResizeMode : int64_t { kNearest, kLinear, kCubic };
enum Transform : int64_t {
  kHalfPixel,
  kHalfPixelSymmetric,
  kPytorchHalfPixel,
  kAlignCorners,
  kAsymmetric,
  kHalfPixelForNearest,
};
enum Rounding : int64_t { kPreferFloor, kPreferCeil, kFloor, kCeil };

struct Filter {
  ResizeMode mode;
  Transform transform;
  Rounding rounding;
  bool excludes_outside;
  double cubic_a;
};

// Tap t of output j reads input index[t * out + j] and takes weight[t * out + j] of it.
struct Taps {
  int64_t size = 1, out = 1;
  int n = 1;
  int64_t repeats = 0;  // if each input is one output as often as all others, side by side
  const int32_t* index = nullptr;
  const float* weight = nullptr;
};

// An axis that goes from `size` to `out` elements, stretched by `scale`.
Taps make_taps(Plan& plan, const Filter& filter, int64_t size, int64_t out, double scale);

}  // namespace sdx::SDX_ISA
