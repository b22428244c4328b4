// Weights as panels of kPanel output channels, with (tap, input channel) as the depth.
#pragma once

#include "kernels/gemm/pack.h"

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
  typedef float Loose __attribute__((aligned(1), may_alias));  // weights lie as in their file
  constexpr int64_t kChannels = 16;  // whose weights, of all taps, are read again from L1
  const int64_t map = number * kPanel, left = w.maps - map, width = left < kPanel ? left : kPanel;
  for (int64_t low = 0; low < w.channels; low += kChannels) {
    const int64_t high = low + kChannels < w.channels ? low + kChannels : w.channels;
    for (int64_t t = 0; t < n; ++t) {
      const float* from = w.at + map * w.map_stride + tap_of(t);
      for (int64_t c = low; c < high; ++c) {
        float* row = to + (t * w.channels + c) * kPanel;
        const auto* column = reinterpret_cast<const Loose*>(from + c * w.channel_stride);
        for (int64_t j = 0; j < width; ++j) row[j] = column[j * w.map_stride];
        for (int64_t j = width; j < kPanel; ++j) row[j] = 0;
      }
    }
  }
}

// Weights [maps, channels / group, *kernel], as sizes of one group.
struct GroupSizes {
  int64_t maps, channels, taps;

  SDX_INLINE int64_t depth() const { return taps * channels; }
};

// Weights of the maps of a panel, side by side: channels [low, low + n) with all their taps. What
// lies thousands of floats apart would share few places in the cache.
struct MapTile {
  static constexpr int64_t kMost = 256, kStep = kMost + 16;  // floats of a map, and between maps
  float at[kPanel * kStep];

  SDX_INLINE void load_maps(const float* w, int64_t depth, int64_t n_maps, int64_t n_floats) {
    for (int64_t j = 0; j < n_maps; ++j)
      memcpy(at + j * kStep, w + j * depth, size_t(n_floats) * sizeof(float));
    for (int64_t j = n_maps; j < kPanel; ++j)
      memset(at + j * kStep, 0, size_t(n_floats) * sizeof(float));
  }
  // The weights of all maps in each of n places, `kPanel` floats a place.
  SDX_INLINE void turn(int64_t n, float* to) const {
    const int64_t whole = n / kLanes * kLanes;
    turn_squares<kLanes>(at, kStep, whole, kPanel, to, kPanel);
    for (int64_t place = whole; place < n; ++place)
      for (int64_t j = 0; j < kPanel; ++j) to[place * kPanel + j] = at[j * kStep + place];
  }
};

// Panel `i`, counted through all groups, to its place among all packed ones.
SDX_INLINE void pack_group_panel(const GroupSizes& g, const float* w, int64_t i, float* packed) {
  const int64_t panels = panels_of(g.maps), map = i % panels * kPanel;
  const int64_t width = g.maps - map < kPanel ? g.maps - map : kPanel;
  const float* from = w + (i / panels * g.maps + map) * g.depth();
  float* to = packed + i * g.depth() * kPanel;
  if (g.taps > MapTile::kMost) {
    const Weights weights{from, width, g.channels, g.depth(), g.taps};
    return pack_panel(weights, 0, g.taps, to, [](int64_t t) { return t; });
  }
  MapTile tile;
  float turned[MapTile::kMost * kPanel];
  const int64_t step = MapTile::kMost / g.taps;
  for (int64_t low = 0; low < g.channels; low += step) {
    const int64_t n = g.channels - low < step ? g.channels - low : step;
    tile.load_maps(from + low * g.taps, g.depth(), width, n * g.taps);
    if (g.taps == 1) {
      tile.turn(n, to + low * kPanel);
      continue;
    }
    tile.turn(n * g.taps, turned);
    for (int64_t t = 0; t < g.taps; ++t)
      for (int64_t c = 0; c < n; ++c)
        memcpy(to + (t * g.channels + low + c) * kPanel, turned + (c * g.taps + t) * kPanel,
               kPanel * sizeof(float));
  }
}

}  // namespace sdx::SDX_ISA
