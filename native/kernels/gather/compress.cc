// Compress: the slices of an axis where a boolean condition holds, copied in order. Their number is
// data, so `resolve_compress` counts the true elements before the output is allocated.
#include "kernels/gather/kernels.h"
#include "kernels/move/copy_bytes.h"

namespace sdx::SDX_ISA::gathering {
namespace {

struct CompressArgs {
  int64_t axis_len, n_selected, slice_bytes;
};

// Items are positions on the axes before the compressed one. The loop stops at the last selected
// slice, so a condition that is shorter than the axis is never read past its end.
Status compress_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const CompressArgs*>(args);
  const auto* is_selected = input<uint8_t>(data, 1);
  for (int64_t item = begin; item < end; ++item) {
    const std::byte* from = input<std::byte>(data, 0) + item * a.axis_len * a.slice_bytes;
    std::byte* to = output<std::byte>(data) + item * a.n_selected * a.slice_bytes;
    for (int64_t k = 0, left = a.n_selected; left > 0; ++k) {
      if (is_selected[k] == 0) continue;
      copy_bytes(to, from + k * a.slice_bytes, a.slice_bytes);
      to += a.slice_bytes;
      --left;
    }
  }
  return {};
}

// The length of the compressed axis; without one (-1) the input counts as flattened.
int64_t compressed_len(const Call& call) {
  return call.ints[0] < 0 ? call.in[0].count() : call.in[0].dims[call.ints[0]];
}

}  // namespace

// ints: the axis, or -1 for the flattened input. Operands: data, condition.
Status compress(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  const int axis = int(call.ints[0]);
  auto* a = plan.make<CompressArgs>();
  const int64_t size = size_of(in.dtype);
  a->axis_len = compressed_len(call);
  a->n_selected = out.dims[axis < 0 ? 0 : axis];
  a->slice_bytes = axis < 0 ? size : in.count(axis + 1, in.rank) * size;
  plan.args = a;
  const int64_t items = out.count() == 0 ? 0 : axis < 0 ? 1 : in.count(0, axis);
  plan.add(compress_items, items, a->axis_len * (a->slice_bytes / 16 + 1));
  return {};
}

Status resolve_compress(const Call& call, const Data& data, View* out) {
  const int axis = int(call.ints[0]);
  const int64_t len = compressed_len(call), condition_len = call.in[1].count();
  int64_t n_selected = 0;
  for (int64_t i = 0; i < (condition_len < len ? condition_len : len); ++i)
    n_selected += input<uint8_t>(data, 1)[i] != 0;
  for (int i = 0; i < out->rank; ++i) out->dims[i] = call.in[0].dims[i];
  out->dims[axis < 0 ? 0 : axis] = n_selected;
  return {};
}

}  // namespace sdx::SDX_ISA::gathering
