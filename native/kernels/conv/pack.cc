// Packs the weights of a convolution, [maps, channels / group, *kernel], group by group.
#include "kernels/conv/pack.h"

#include "kernels/conv/rows.h"

namespace sdx::SDX_ISA {
namespace {

// Item: one panel of one group.
Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& sizes = *static_cast<const GroupSizes*>(args);
  for (int64_t i = begin; i < end; ++i)
    pack_group_panel(sizes, input<float>(data, 0), i, output<float>(data));
  return {};
}

}  // namespace

Status conv_pack(const Call& call, Plan& plan) {
  const View& w = call.in[0];
  const int64_t group = call.ints[0];
  auto* args = plan.make<GroupSizes>();
  *args = {w.dims[0] / group, w.dims[1], w.count(2, w.rank)};
  plan.args = args;
  plan.add(pack_panels, group * panels_of(args->maps), args->depth() * kPanel / 2);
  return {};
}

}  // namespace sdx::SDX_ISA
