// Weights as panels of kPanel output channels, with (tap, input channel) as the depth.
#pragma once

#include "kernels/gemm/tile.h"

namespace sdx::SDX_ISA {

// Where the weights of one group lie: element (map, channel, tap) is at
// map * map_stride + channel * channel_stride + tap.
struct Weights {
  const float* at;
  int64_t maps, channels;
  int64_t map_stride, channel_stride;
};

// Panel `number` of weights whose depth is `n` taps, numbered by tap_of(0 ... n - 1).
template <class TapOf>
SDX_INLINE void pack_panel(const Weights& w, int64_t number, int64_t n, float* to, TapOf&& tap_of) {
  constexpr int64_t kChannels = 16;  // whose weights, of all taps, are read again from L1
  const int64_t map = number * kPanel, left = w.maps - map, width = left < kPanel ? left : kPanel;
  for (int64_t low = 0; low < w.channels; low += kChannels) {
    const int64_t high = low + kChannels < w.channels ? low + kChannels : w.channels;
    for (int64_t t = 0; t < n; ++t) {
      const float* from = w.at + map * w.map_stride + tap_of(t);
      for (int64_t c = low; c < high; ++c) {
        float* row = to + (t * w.channels + c) * kPanel;
        const float* column = from + c * w.channel_stride;
        for (int64_t j = 0; j < width; ++j) row[j] = column[j * w.map_stride];
        for (int64_t j = width; j < kPanel; ++j) row[j] = 0;
      }
    }
  }
}

}  // namespace sdx::SDX_ISA
