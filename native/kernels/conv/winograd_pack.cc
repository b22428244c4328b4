// Transforms 3 x 3 weights for Winograd's convolution: a packed matrix for each place of a patch.
#include "kernels/conv/pack.h"
#include "kernels/conv/rows.h"
#include "kernels/conv/winograd.h"

namespace sdx::SDX_ISA {
namespace {

struct PackArgs {
  int64_t maps, channels;
};

using Maps = double[kPanel];  // a number for each map of a panel

// Rows of three as the six values that their polynomial takes, scaled for the transform back.
SDX_INLINE void transform_row(const Maps* g, int step, Maps* to, int to_step) {
  for (int j = 0; j < kPanel; ++j) {
    const double first = g[0][j], second = g[step][j], third = g[2 * step][j];
    const double even_a = first + third * (kA * kA), odd_a = second * kA;
    const double even_b = first + third * (kB * kB), odd_b = second * kB;
    to[0][j] = first;
    to[to_step][j] = (even_a + odd_a) * (-1 / 1.5);
    to[2 * to_step][j] = (even_a - odd_a) * (-1 / 1.5);
    to[3 * to_step][j] = (even_b + odd_b) * (1 / 6.0);
    to[4 * to_step][j] = (even_b - odd_b) * (1 / 6.0);
    to[5 * to_step][j] = third;
  }
}

// The filters of one channel, from their place in the tile, to rows `stride` floats apart.
void transform_filters(const MapTile& tile, int64_t place, float* to, int64_t stride) {
  Maps g[9], half[3 * kPatch], whole[kPlaces];
  for (int i = 0; i < 9; ++i)
    for (int j = 0; j < kPanel; ++j) g[i][j] = tile.at[j * MapTile::kStep + place + i];
  for (int i = 0; i < 3; ++i) transform_row(g + 3 * i, 1, half + kPatch * i, 1);
  for (int i = 0; i < kPatch; ++i) transform_row(half + i, kPatch, whole + i, kPatch);
  for (int i = 0; i < kPlaces; ++i)
    for (int j = 0; j < kPanel; ++j) to[i * stride + j] = float(whole[i][j]);
}

// Item: one panel of all places.
Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  constexpr int64_t kStep = MapTile::kMost / 9;
  const int64_t stride = packed_floats(a.channels, a.maps), depth = a.channels * 9;
  MapTile tile;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t map = p * kPanel, width = a.maps - map < kPanel ? a.maps - map : kPanel;
    float* panel = output<float>(data) + p * a.channels * kPanel;
    for (int64_t low = 0; low < a.channels; low += kStep) {
      const int64_t n = a.channels - low < kStep ? a.channels - low : kStep;
      tile.load_maps(input<float>(data, 0) + map * depth + low * 9, depth, width, n * 9);
      for (int64_t c = 0; c < n; ++c)
        transform_filters(tile, c * 9, panel + (low + c) * kPanel, stride);
    }
  }
  return {};
}

}  // namespace

Status conv_winograd_pack(const Call& call, Plan& plan) {
  const View& w = call.in[0];
  auto* args = plan.make<PackArgs>();
  *args = {w.dims[0], w.dims[1]};
  plan.args = args;
  plan.add(pack_panels, panels_of(args->maps), args->channels * kPanel * 10);
  return {};
}

}  // namespace sdx::SDX_ISA
