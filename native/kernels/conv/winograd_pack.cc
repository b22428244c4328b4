// Transforms 3 x 3 weights for Winograd's convolution: a packed matrix for each place of a patch.
#include "kernels/conv/rows.h"
#include "kernels/conv/winograd.h"
#include "kernels/gemm/tile.h"

namespace sdx::SDX_ISA {
namespace {

struct PackArgs {
  int64_t maps, channels;
};

// Rows of three as the six values that their polynomial takes, scaled for the transform back.
SDX_INLINE void transform_row(const double* g, int64_t step, double* to, int64_t to_step) {
  const double even_a = g[0] + g[2 * step] * (kA * kA), odd_a = g[step] * kA;
  const double even_b = g[0] + g[2 * step] * (kB * kB), odd_b = g[step] * kB;
  to[0] = g[0];
  to[to_step] = (even_a + odd_a) / -1.5;
  to[2 * to_step] = (even_a - odd_a) / -1.5;
  to[3 * to_step] = (even_b + odd_b) / 6;
  to[4 * to_step] = (even_b - odd_b) / 6;
  to[5 * to_step] = g[2 * step];
}

// One filter into column 0 of `to`, places `stride` floats apart.
void transform_filter(const float* w, float* to, int64_t stride) {
  double g[9], half[3 * kPatch], whole[kPlaces];
  for (int i = 0; i < 9; ++i) g[i] = w[i];
  for (int i = 0; i < 3; ++i) transform_row(g + 3 * i, 1, half + kPatch * i, 1);
  for (int i = 0; i < kPatch; ++i) transform_row(half + i, kPatch, whole + i, kPatch);
  for (int i = 0; i < kPlaces; ++i) to[i * stride] = float(whole[i]);
}

// Item: one panel of all places.
Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  const int64_t stride = packed_floats(a.channels, a.maps);
  for (int64_t p = begin; p < end; ++p) {
    float* panel = output<float>(data) + p * a.channels * kPanel;
    for (int64_t j = 0; j < kPanel; ++j) {
      const int64_t map = p * kPanel + j;
      const float* w = input<float>(data, 0) + map * a.channels * 9;
      constexpr float kNone[9] = {};
      for (int64_t c = 0; c < a.channels; ++c)
        transform_filter(map < a.maps ? w + c * 9 : kNone, panel + c * kPanel + j, stride);
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
  plan.add(pack_panels, panels_of(args->maps), args->channels * kPanel * 60);
  return {};
}

}  // namespace sdx::SDX_ISA
