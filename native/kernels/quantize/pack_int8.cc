// The kernel that packs constant 8-bit weights of matrix products and convolutions.
#include "kernels/quantize/pack_int8.h"

#include "kernels/quantize/kernels.h"

namespace sdx::SDX_ISA::int8 {
namespace {

struct PackArgs {
  Weights weights;
  PackedShape shape;
};

Status pack_panels(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  const int64_t n_panels = a.shape.n_panels();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t pack = i / n_panels;
    pack_panel(a.weights, a.shape, input<uint8_t>(data, 0) + pack * a.weights.pack_stride,
               i % n_panels, output<uint8_t>(data) + pack * a.shape.bytes());
  }
  return {};
}

}  // namespace

// ints: the number of packs (groups or batch entries), lines, taps, channels, columns, then the
// strides of these five.
Status qgemm_pack(const Call& call, Plan& plan) {
  auto* args = plan.make<PackArgs>();
  const int64_t* v = call.ints;
  const int64_t line = (v[2] * v[3] + kGroup - 1) / kGroup * kGroup;
  args->shape = {v[1] * line, v[4]};
  args->weights = {v[1], v[2], v[3], v[6], v[7], v[8], v[9], v[5], 0};
  args->weights.flip = call.in[0].dtype == DType::u8 ? 128 : 0;
  plan.args = args;
  plan.add(pack_panels, v[0] * args->shape.n_panels(), args->shape.k * kPanel);
  return {};
}

}  // namespace sdx::SDX_ISA::int8
