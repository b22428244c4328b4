// Packs the weights of a convolution, [maps, channels / group, *kernel], group by group.
#include "kernels/conv/pack.h"

#include "kernels/conv/rows.h"

namespace sdx::SDX_ISA {
namespace {

struct PackArgs {
  int64_t maps, channels, taps;  // of a group
};

// Item: one panel of one group.
Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  const int64_t panels = panels_of(a.maps), depth = a.taps * a.channels;
  for (int64_t i = begin; i < end; ++i) {
    const float* group = input<float>(data, 0) + i / panels * a.maps * depth;
    const Weights weights{group, a.maps, a.channels, depth, a.taps};
    float* to = output<float>(data) + i * depth * kPanel;
    pack_panel(weights, i % panels, a.taps, to, [](int64_t t) { return t; });
  }
  return {};
}

}  // namespace

Status conv_pack(const Call& call, Plan& plan) {
  const View& w = call.in[0];
  const int64_t group = call.ints[0];
  auto* args = plan.make<PackArgs>();
  *args = {w.dims[0] / group, w.dims[1], w.count(2, w.rank)};
  plan.args = args;
  plan.add(pack_panels, group * panels_of(args->maps), args->channels * args->taps * kPanel / 2);
  return {};
}

}  // namespace sdx::SDX_ISA
