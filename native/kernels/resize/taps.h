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
  kCrop,
};
enum Rounding : int64_t { kPreferFloor, kPreferCeil, kFloor, kCeil };

// An axis that goes from `size` to `out` elements, stretched by `scale`; a crop reads from `start`
// to `end` of it.
struct Stretch {
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

  // Whether an axis stays as it is.
  SDX_INLINE bool is_plain(const Stretch& s) const {
    return s.size == s.out && s.scale == 1 && transform != kCrop;
  }
};

// Tap t of output j reads input index[t * out + j] and takes weight[t * out + j] of it.
struct Taps {
  int64_t size = 1, out = 1;
  int n = 1;
  int64_t repeats = 0;  // if each input is one output as often as all others, side by side
  const int32_t* index = nullptr;
  const float* weight = nullptr;
  const uint8_t* outside = nullptr;  // of crops: which outputs lie outside the input
};

// Where tables are made: memory of a plan or of a run, `most_bytes` for each axis.
struct Memory {
  std::byte* at;

  template <class T>
  SDX_INLINE T* take(int64_t n) {
    auto* made = reinterpret_cast<T*>(at);
    at += (n * int64_t(sizeof(T)) + 63) / 64 * 64;
    return made;
  }
};

Taps make_taps(Memory& memory, const Filter& filter, const Stretch& stretch);

// Bytes that tables of an axis take at most, whatever its scale.
int64_t most_bytes(const Filter& filter, const Stretch& stretch);

}  // namespace sdx::SDX_ISA
