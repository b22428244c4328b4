// Kernels that pack convolution weights [out_channels, channels / group, *kernel] into panels.
#include "kernels/conv/pack.h"

#include "kernels/conv/kernels.h"
#include "kernels/matmul/pack.h"

namespace sdx::SDX_ISA {
namespace {

// Items: panels of each group.
Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& sizes = *static_cast<const GroupSizes*>(args);
  for (int64_t i = begin; i < end; ++i)
    pack_group_panel(sizes, input<float>(data, 0), i, output<float>(data));
  return {};
}

// The same with each output channel scaled by a factor, the second input: folds BatchNormalization
// without materializing the scaled weights.
Status pack_scaled_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& sizes = *static_cast<const GroupSizes*>(args);
  const int64_t panels = panels_of(sizes.out_channels);
  for (int64_t i = begin; i < end; ++i) {
    pack_group_panel(sizes, input<float>(data, 0), i, output<float>(data));
    const int64_t first = i % panels * kPanel, left = sizes.out_channels - first;
    float factors[kPanel] = {};
    memcpy(factors, input<float>(data, 1) + i / panels * sizes.out_channels + first,
           size_t(left < kPanel ? left : kPanel) * sizeof(float));
    float* row = output<float>(data) + i * sizes.depth() * kPanel;
    for (int64_t k = 0; k < sizes.depth(); ++k, row += kPanel)
      for (int64_t j = 0; j < kPanel; j += kLanes)
        store(row + j, load(row + j) * load(factors + j));
  }
  return {};
}

// The same as bf16 pairs, by way of one panel of floats.
Status pack_pairs(const void* args, const Data& data, int64_t begin, int64_t end) {
  GroupSizes sizes = *static_cast<const GroupSizes*>(args);
  const int64_t panels = panels_of(sizes.out_channels), out_channels = sizes.out_channels;
  auto* wide = reinterpret_cast<float*>(data.local);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i % panels * kPanel;
    sizes.out_channels = out_channels - first < kPanel ? out_channels - first : kPanel;
    const float* from = input<float>(data, 0) + (i / panels * out_channels + first) * sizes.depth();
    pack_group_panel(sizes, from, 0, wide);
    pair_rows(wide, sizes.depth(),
              output<Bf16Pair>(data) + i * depth_of<Bf16Pair>(sizes.depth()) * kPanel);
  }
  return {};
}

GroupSizes* plan_pack(const Call& call, Plan& plan, PhaseFn run) {
  const View& w = call.in[0];
  const int64_t group = call.ints[0];
  auto* args = plan.make<GroupSizes>();
  *args = {w.dims[0] / group, w.dims[1], w.count(2, w.rank)};
  plan.args = args;
  plan.add(run, group * panels_of(args->out_channels), args->depth() * kPanel / 2);
  return args;
}

}  // namespace

Status conv_pack(const Call& call, Plan& plan) {
  plan_pack(call, plan, call.n_in > 1 ? pack_scaled_panels : pack_panels);
  return {};
}

Status conv_pack_bf16(const Call& call, Plan& plan) {
  const GroupSizes* sizes = plan_pack(call, plan, pack_pairs);
  plan.local_bytes = sizes->depth() * kPanel * int64_t(sizeof(float));
  return {};
}

}  // namespace sdx::SDX_ISA
