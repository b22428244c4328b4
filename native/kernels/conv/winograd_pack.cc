// Transforms 3 x 3 or 5 x 5 weights for Winograd's convolution: a packed matrix for each place of a
// patch.
#include "kernels/conv/pack.h"
#include "kernels/conv/rows.h"
#include "kernels/conv/winograd.h"

namespace sdx::SDX_ISA {
namespace {

struct PackArgs {
  int64_t maps, channels;
};

using Maps = double[kPanel];  // a number for each map of a panel

// Rows of K as the six values that their polynomial takes, scaled for the transform back.
template <int K>
SDX_INLINE void transform_row(const Maps* g, int step, Maps* to, int to_step) {
  for (int j = 0; j < kPanel; ++j) {
    const auto values = [&](double at, double scale, int place) {
      double even = g[(K - 1) * step][j], odd = 0;
      for (int i = K - 3; i >= 0; i -= 2) even = even * at * at + g[i * step][j];
      for (int i = K - 2; i >= 1; i -= 2) odd = odd * at * at + g[i * step][j];
      to[place * to_step][j] = (even + odd * at) * scale;
      to[(place + 1) * to_step][j] = (even - odd * at) * scale;
    };
    to[0][j] = g[0][j];
    values(kA, -1 / 1.5, 1);
    values(kB, 1 / 6.0, 3);
    to[5 * to_step][j] = g[(K - 1) * step][j];
  }
}

// The filters of one channel, from their place in the tile, to rows `stride` floats apart.
template <int K>
void transform_filters(const MapTile& tile, int64_t place, float* to, int64_t stride) {
  Maps g[K * K], half[K * kPatch], whole[kPlaces];
  for (int i = 0; i < K * K; ++i)
    for (int j = 0; j < kPanel; ++j) g[i][j] = tile.at[j * MapTile::kStep + place + i];
  for (int i = 0; i < K; ++i) transform_row<K>(g + K * i, 1, half + kPatch * i, 1);
  for (int i = 0; i < kPatch; ++i) transform_row<K>(half + i, kPatch, whole + i, kPatch);
  for (int i = 0; i < kPlaces; ++i)
    for (int j = 0; j < kPanel; ++j) to[i * stride + j] = float(whole[i][j]);
}

// Item: one panel of all places.
template <int K>
Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  constexpr int64_t kTaps = K * K, kStep = MapTile::kMost / kTaps;
  const int64_t stride = packed_floats(a.channels, a.maps), depth = a.channels * kTaps;
  MapTile tile;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t map = p * kPanel, width = a.maps - map < kPanel ? a.maps - map : kPanel;
    float* panel = output<float>(data) + p * a.channels * kPanel;
    for (int64_t low = 0; low < a.channels; low += kStep) {
      const int64_t n = a.channels - low < kStep ? a.channels - low : kStep;
      tile.load_maps(input<float>(data, 0) + map * depth + low * kTaps, depth, width, n * kTaps);
      for (int64_t c = 0; c < n; ++c)
        transform_filters<K>(tile, c * kTaps, panel + (low + c) * kPanel, stride);
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
  plan.add(w.dims[2] == 3 ? pack_panels<3> : pack_panels<5>, panels_of(args->maps),
           args->channels * kPanel * 10);
  return {};
}

}  // namespace sdx::SDX_ISA
