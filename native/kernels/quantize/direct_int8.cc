// Operands and column parameters of direct 8-bit convolutions.
#include "kernels/quantize/direct_int8.h"

#include "kernels/row_stride.h"

namespace sdx::SDX_ISA::int8 {
namespace {

void make_all(const DirectConv& c, const Data& data) {
  std::byte* memory = column_memory(c, data);
  make_output(c.product, data, *reinterpret_cast<Output*>(memory));
  const auto* sums = reinterpret_cast<const int32_t*>(input<uint8_t>(data, kW) + c.weight_bytes);
  make_columns(c.product, data, {sums, c.out_channels, 0, c.position}, columns_of(c, memory));
}

Status make_phase(const void* args, const Data& data, int64_t, int64_t) {
  make_all(*static_cast<const DirectConv*>(args), data);
  return {};
}

}  // namespace

void read_direct(DirectConv& c, const Call& call) {
  const View &x = call.in[kX], &y = call.out[0];
  c.window = read_window(x, y, call.ints + 1);
  c.channels = x.dim(-1), c.out_channels = y.dim(-1);
  c.pitch = row_stride(y);
  c.product.w = DType(call.ints[0]);
  c.product.depth = c.window.taps();
  read_operands(c.product, call);
}

Status plan_columns(DirectConv& c, const Call& call, Plan& plan) {
  const int64_t bytes = 64 + c.n_params * 16;
  const void* constants[kOperands];
  if (!find_constants(call, constants)) {
    plan.scratch_bytes = bytes;
    plan.add(make_phase, 1, c.out_channels);
    return {};
  }
  c.columns = plan.table<std::byte>(size_t(bytes));
  if (c.columns == nullptr) return no_table();
  Data data;
  data.in = constants;
  make_all(c, data);
  return {};
}

}  // namespace sdx::SDX_ISA::int8
