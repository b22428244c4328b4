// Interpolation taps of a resized axis: for every output, which inputs it reads with which weights.
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
  kCrop,
};
enum Rounding : int64_t { kPreferFloor, kPreferCeil, kFloor, kCeil };

// An axis resized from `size` to `out` elements by `scale`; `start` and `end` are its roi,
// normalized to [0, 1], of tf_crop_and_resize.
struct ResizedAxis {
  int64_t size = 1, out = 1;
  double scale = 1, start = 0, end = 1;
};

struct Filter {
  ResizeMode mode;
  Transform transform;
  Rounding rounding;
  bool excludes_outside;
  bool is_antialias;
  double cubic_a;

  // Whether an axis is not resized at all.
  SDX_INLINE bool is_plain(const ResizedAxis& s) const {
    return s.size == s.out && s.scale == 1 && transform != kCrop;
  }
};

// Tap t of output j reads input index[t * out + j] with weight[t * out + j]. Taps are the outer
// dimension, so that loops over outputs vectorize.
struct Taps {
  int64_t size = 1, out = 1;
  int n = 1;
  int64_t repeats = 0;  // nearest by an integer factor: outputs per input; 0: not such a case
  const int32_t* index = nullptr;
  const float* weight = nullptr;
  const uint8_t* outside = nullptr;  // crops: which outputs are outside the input
};

// A bump allocator for tables, in memory of the plan or of the run; max_bytes for each axis.
struct TableMemory {
  std::byte* at;

  template <class T>
  SDX_INLINE T* take(int64_t n) {
    auto* made = reinterpret_cast<T*>(at);
    at += (n * int64_t(sizeof(T)) + 63) / 64 * 64;
    return made;
  }
};

Taps make_taps(TableMemory& memory, const Filter& filter, const ResizedAxis& stretch);

// An upper bound on the bytes of an axis' tables, whatever its scale.
int64_t max_bytes(const Filter& filter, const ResizedAxis& stretch);

}  // namespace sdx::SDX_ISA
