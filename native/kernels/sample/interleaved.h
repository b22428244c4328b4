// Images whose channels are interleaved in groups of 16, a cache line of floats: an interpolation
// tap is one load for 16 channels, where it would gather 16 lines of planar images.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

constexpr int kGroup = 16;

// The copy of images in scratch memory, [unit, group, pixel, channel of the group]: a unit is an
// image, or the channels of it that share their taps. After the last pixel of each group is one of
// zeros, for taps outside. Arguments of kernels that use it begin with it.
struct Interleaved {
  int64_t units = 0, channels = 0, plane = 0;  // planar: [unit, channel, pixel]; no units: not used
  int64_t groups = 0, blocks = 0;

  // Whether few enough of the group's lanes are empty.
  static bool pays(int64_t channels) { return channels >= kGroup / 2; }

  SDX_INLINE const float* pixels(const Data& data, int64_t unit, int64_t group) const {
    return reinterpret_cast<const float*>(data.scratch) +
           (unit * groups + group) * (plane + 1) * kGroup;
  }
  SDX_INLINE int64_t live_channels(int64_t group) const {
    const int64_t left = channels - group * kGroup;
    return left < kGroup ? left : kGroup;
  }
};

// Adds the phase that copies input 0 to scratch memory.
void add_interleaved(int64_t units, int64_t channels, int64_t plane, Interleaved& images,
                     Plan& plan);

// Offsets and weights of the taps of n points, [tap][pitch].
struct TapTable {
  int32_t* at;  // a pixel, or negative: outside
  float* weight;
  int n_taps;
  int64_t pitch, n;
};

// Replaces taps outside by the pixel of zeros.
void point_outside(const TapTable& taps, int64_t plane);

// The weighted sums of one group of channels at n points, times `mask` if that is given. Channels
// of the result are `stride` elements apart.
void sum_group(const TapTable& taps, const float* pixels, int64_t live, const float* mask, float* y,
               int64_t stride);

}  // namespace sdx::SDX_ISA
