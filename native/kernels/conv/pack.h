// Packed layout of convolution weights: panels of kPanel output channels with (tap, input channel)
// as the depth, [group][panel][tap][channel][32]. Depth order equals that of im2col rows with
// channels last. Every convolution kernel reads this layout, so a weight is packed once whichever
// is chosen.
#pragma once

#include "kernels/matmul/pack.h"

namespace sdx::SDX_ISA {

// Weights of one group as stored: element (out_channel, channel, tap) is at out_channel *
// out_channel_stride + channel * channel_stride + tap.
struct Weights {
  const float* at;
  int64_t out_channels, channels;
  int64_t out_channel_stride, channel_stride;
};

// Panel `number` of weights whose depth is `n` taps, numbered by tap_of(0 ... n - 1): any order of
// taps, which transposed convolutions need.
template <class TapOf>
SDX_INLINE void pack_panel(const Weights& w, int64_t number, int64_t n, float* to, TapOf&& tap_of) {
  typedef float Loose
      __attribute__((aligned(1), may_alias));  // mapped from the model file: any alignment
  constexpr int64_t kChannels =
      16;  // channels at a time: their taps stay in L1 while they are reread
  const int64_t out_channel = number * kPanel, left = w.out_channels - out_channel,
                width = left < kPanel ? left : kPanel;
  for (int64_t low = 0; low < w.channels; low += kChannels) {
    const int64_t high = low + kChannels < w.channels ? low + kChannels : w.channels;
    for (int64_t t = 0; t < n; ++t) {
      const float* from = w.at + out_channel * w.out_channel_stride + tap_of(t);
      for (int64_t c = low; c < high; ++c) {
        float* row = to + (t * w.channels + c) * kPanel;
        const auto* column = reinterpret_cast<const Loose*>(from + c * w.channel_stride);
        for (int64_t j = 0; j < width; ++j) row[j] = column[j * w.out_channel_stride];
        for (int64_t j = width; j < kPanel; ++j) row[j] = 0;
      }
    }
  }
}

// Sizes of one group of weights [out_channels, channels / group, *kernel].
struct GroupSizes {
  int64_t out_channels, channels, taps;

  SDX_INLINE int64_t depth() const { return taps * channels; }
};

// Weights of the 32 output channels of a panel, copied side by side and then transposed in
// registers. Read in place, rows that are thousands of floats apart would share a few sets of
// the cache.
struct WeightTile {
  static constexpr int64_t kMax = 256,
                           kStep = kMax + 16;  // floats of a out_channel, and between out_channels
  float at[kPanel * kStep];

  SDX_INLINE void load_out_channels(const float* w, int64_t depth, int64_t n_out_channels,
                                    int64_t n_floats) {
    for (int64_t j = 0; j < n_out_channels; ++j)
      memcpy(at + j * kStep, w + j * depth, size_t(n_floats) * sizeof(float));
    for (int64_t j = n_out_channels; j < kPanel; ++j)
      memset(at + j * kStep, 0, size_t(n_floats) * sizeof(float));
  }
  // The 32 weights of each of the first n positions, kPanel floats per position.
  SDX_INLINE void transpose(int64_t n, float* to) const {
    const int64_t whole = n / kLanes * kLanes;
    transpose_squares<kLanes>(at, kStep, whole, kPanel, to, kPanel);
    for (int64_t position = whole; position < n; ++position)
      for (int64_t j = 0; j < kPanel; ++j) to[position * kPanel + j] = at[j * kStep + position];
  }
};

// Packs panel `i`, counted through all groups, to its position among all packed panels.
SDX_INLINE void pack_group_panel(const GroupSizes& g, const float* w, int64_t i, float* packed) {
  const int64_t panels = panels_of(g.out_channels), out_channel = i % panels * kPanel;
  const int64_t width =
      g.out_channels - out_channel < kPanel ? g.out_channels - out_channel : kPanel;
  const float* from = w + (i / panels * g.out_channels + out_channel) * g.depth();
  float* to = packed + i * g.depth() * kPanel;
  if (g.taps > WeightTile::kMax) {
    const Weights weights{from, width, g.channels, g.depth(), g.taps};
    return pack_panel(weights, 0, g.taps, to, [](int64_t t) { return t; });
  }
  WeightTile tile;
  float transposed[WeightTile::kMax * kPanel];
  const int64_t step = WeightTile::kMax / g.taps;
  for (int64_t low = 0; low < g.channels; low += step) {
    const int64_t n = g.channels - low < step ? g.channels - low : step;
    tile.load_out_channels(from + low * g.taps, g.depth(), width, n * g.taps);
    if (g.taps == 1) {
      tile.transpose(n, to + low * kPanel);
      continue;
    }
    tile.transpose(n * g.taps, transposed);
    for (int64_t t = 0; t < g.taps; ++t)
      for (int64_t c = 0; c < n; ++c)
        memcpy(to + (t * g.channels + low + c) * kPanel, transposed + (c * g.taps + t) * kPanel,
               kPanel * sizeof(float));
  }
}

}  // namespace sdx::SDX_ISA
