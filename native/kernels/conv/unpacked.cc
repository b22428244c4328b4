// Convolutions over packed weights, for weights that are not constant (training): a first phase
// packs them into scratch memory, and the phases of the packed kernel read them there.
#include "kernels/conv/kernels.h"
#include "kernels/conv/pack.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kMaxInputs = 24;

struct UnpackedArgs {
  PhaseFn pack;
  const void* pack_args;
  PhaseFn run[kMaxPhases];
  const void* args;
  int64_t packed_bytes;
  int n_in;
};

Status pack_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const UnpackedArgs*>(args);
  const void* in[] = {data.in[1]};
  void* out[] = {data.scratch};
  Data inner = data;
  inner.in = in, inner.out = out;
  return a.pack(a.pack_args, inner, begin, end);
}

// Phase I of the packed kernel; its own scratch memory comes after the packed weights.
template <int I>
Status run_phase(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const UnpackedArgs*>(args);
  const void* in[kMaxInputs];
  for (int i = 0; i < a.n_in; ++i) in[i] = data.in[i];
  in[1] = data.scratch;
  Data inner = data;
  inner.in = in, inner.scratch = data.scratch + a.packed_bytes;
  return a.run[I](a.args, inner, begin, end);
}

constexpr PhaseFn kRun[] = {run_phase<0>, run_phase<1>, run_phase<2>};

using Prepare = Status (*)(const Call& call, Plan& plan);

// Plans `kernel` after `pack`, whose numbers are `ints`.
Status plan_unpacked(const Call& call, Plan& plan, Prepare kernel, Prepare pack,
                     Bounded<int64_t> ints, int64_t packed_floats) {
  if (call.n_in > kMaxInputs) return Status::fail("the convolution has too many operands");
  Plan packing, packed;
  packing.allocate = packed.allocate = plan.allocate;
  packing.owner = packed.owner = plan.owner;
  Status status = pack(Call({&call.in[1], 1}, {}, ints, {}), packing);
  if (status.ok()) status = kernel(call, packed);
  if (!status.ok()) return status;
  if (packed.n_phases > int(sizeof kRun / sizeof kRun[0]))
    return Status::fail("the convolution has too many phases");
  auto* args = plan.make<UnpackedArgs>();
  args->pack = packing.phases[0].run, args->pack_args = packing.args;
  args->args = packed.args;
  args->packed_bytes = (packed_floats * int64_t(sizeof(float)) + 63) / 64 * 64;
  args->n_in = call.n_in;
  plan.args = args;
  plan.scratch_bytes = args->packed_bytes + packed.scratch_bytes;
  plan.local_bytes = packed.local_bytes;
  if (packed.n_phases == 0) return {};  // an empty output
  plan.add(pack_phase, packing.phases[0].count, packing.phases[0].work);
  for (int i = 0; i < packed.n_phases; ++i) {
    const Phase& phase = packed.phases[i];
    args->run[i] = phase.run;
    plan.add(kRun[i], phase.count, phase.work, phase.rounds);
  }
  return {};
}

// Plans `kernel` after conv_transpose_pack. For stride 1 that packs one phase, whose taps are those
// of the kernel in reverse order: the layout that conv_pack gives to flipped weights.
Status plan_transposed(const Call& call, Plan& plan, Prepare kernel, bool is_joined) {
  const View& w = call.in[1];
  const int n = w.rank - 2;
  const int64_t group = call.ints[4 * n];
  int64_t ints[3 * kSpatial + 2];
  for (int kind = 0; kind < 3; ++kind)  // kernel, strides, dilations
    for (int i = 0; i < kSpatial; ++i) {
      const int axis = i - (kSpatial - n);
      ints[kind * kSpatial + i] = axis < 0 ? 1 : call.ints[kind * n + axis];
    }
  ints[3 * kSpatial] = group, ints[3 * kSpatial + 1] = is_joined;
  const int64_t taps = w.count(2, w.rank), channels = w.dims[0], outs = w.dims[1];
  const int64_t floats = is_joined ? packed_floats(channels, taps * outs)
                                   : group * packed_floats(channels / group * taps, outs);
  return plan_unpacked(call, plan, kernel, conv_transpose_pack, {ints, 3 * kSpatial + 2}, floats);
}

}  // namespace

// ints and operands as of conv_winograd_f32, with weights as ONNX stores them.
Status conv_winograd_unpacked_f32(const Call& call, Plan& plan) {
  const View& w = call.in[1];
  const int64_t one_group = 1;
  return plan_unpacked(call, plan, conv_winograd_f32, conv_pack, {&one_group, 1},
                       packed_floats(w.count(1, w.rank), w.dims[0]));
}

// ints and operands as of conv_depthwise_f32, with weights as ONNX stores them.
Status conv_depthwise_unpacked_f32(const Call& call, Plan& plan) {
  const View& w = call.in[1];
  const int64_t one_group = 1;
  return plan_unpacked(call, plan, conv_depthwise_f32, conv_pack, {&one_group, 1},
                       packed_floats(w.count(1, w.rank), w.dims[0]));
}

// ints and operands as of conv_transpose_f32, with weights as ONNX stores them.
Status conv_transpose_unpacked_f32(const Call& call, Plan& plan) {
  const bool is_joined = call.ints[4 * (call.in[1].rank - 2) + 1] != 0;
  return plan_transposed(call, plan, conv_transpose_f32, is_joined);
}

// ints and operands as of conv_f32, with weights as a ConvTranspose of stride 1 stores them.
Status conv_flipped_unpacked_f32(const Call& call, Plan& plan) {
  return plan_transposed(call, plan, conv_f32, false);
}

// The same by Winograd.
Status conv_winograd_flipped_unpacked_f32(const Call& call, Plan& plan) {
  return plan_transposed(call, plan, conv_winograd_f32, false);
}

}  // namespace sdx::SDX_ISA
