// Slice with bounds that are data, and ReverseSequence. Slices with constant bounds are views and
// have no kernel.
#include "kernels/move/integer_operand.h"
#include "kernels/move/kernels.h"
#include "kernels/move/strided_copy.h"
#include "kernels/move/untyped.h"

namespace sdx::SDX_ISA::moving {
namespace {

constexpr int64_t kParts = 64;  // items of a copy whose own items are known only when it runs

// The elements first, first + step, ... that a slice selects on one axis.
struct AxisSlice {
  int axis = 0;
  int64_t first = 0, step = 1, count = 0;
};

SDX_INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// Slice number i, clamped as in numpy. Operands: data, starts, ends, axes, steps; the last two are
// optional.
Status slice_of(const Call& call, const Data& data, int64_t i, AxisSlice& selected) {
  const int rank = call.in[0].rank;
  const int64_t axis = is_given(call, 3) ? integers(call, data, 3)[i] : i;
  if (axis < -rank || axis >= rank)
    return Status::fail("axis %ld is outside [-%d, %d)", long(axis), rank, rank);
  selected.axis = int(axis < 0 ? axis + rank : axis);
  selected.step = is_given(call, 4) ? integers(call, data, 4)[i] : 1;
  if (selected.step == 0) return Status::fail("the slice of axis %d steps by 0", selected.axis);
  const int64_t d = call.in[0].dims[selected.axis];
  int64_t start = integers(call, data, 1)[i], end = integers(call, data, 2)[i];
  if (start < 0) start = start < -d ? 0 : start + d;
  if (end < 0) end = end < -d ? -1 : end + d;
  if (selected.step > 0) {
    start = clamp(start, 0, d), end = clamp(end, 0, d);
    selected.count = end > start ? (end - start - 1) / selected.step + 1 : 0;
  } else {
    start = clamp(start, 0, d - 1), end = clamp(end, -1, d - 1);
    // The step is compared before it is negated: the least integer has no opposite.
    const int64_t span = start - end;
    selected.count = span <= 0 ? 0 : selected.step < -span ? 1 : (span - 1) / -selected.step + 1;
  }
  selected.first = selected.count == 0 ? 0 : start;
  return {};
}

// The call outlives `prepare` only as a copy: its views are needed to read the bounds at run time.
struct SliceArgs {
  Call call;
  View views[6];  // five operands and the output
};

Status slice_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const SliceArgs*>(args);
  const View &in = a.views[0], &out = a.views[5];
  const int64_t size = size_of(in.dtype);
  int64_t steps[kMaxRank], firsts[kMaxRank];
  for (int i = 0; i < in.rank; ++i) steps[i] = 1, firsts[i] = 0;
  for (int64_t i = 0; i < a.views[1].count(); ++i) {
    AxisSlice selected;
    if (Status status = slice_of(a.call, data, i, selected); !status.ok()) return status;
    steps[selected.axis] = selected.count > 1 ? selected.step : 1;
    firsts[selected.axis] = selected.first;
  }
  StridedCopy strided;
  strided.unit = size;
  for (int i = 0; i < in.rank; ++i) {
    strided.from_offset += firsts[i] * in.strides[i] * size;
    strided.axis(out.dims[i], in.strides[i] * steps[i] * size, out.strides[i] * size);
  }
  const int64_t items = plan_copy(strided);
  run_copy(strided, data.in[0], data.out[0], items * begin / kParts, items * end / kParts);
  return {};
}

struct ReverseArgs {
  int64_t steps, batch, bytes;
  bool is_batch_first;
};

// Items are (time, batch) positions of the output in its axis order; elements from lens[b] on stay.
Status reverse_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ReverseArgs*>(args);
  const auto* lens = input<Unaligned<int64_t>>(data, 1);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t t = a.is_batch_first ? item % a.steps : item / a.batch;
    const int64_t b = a.is_batch_first ? item / a.steps : item % a.batch;
    if (lens[b] < 0 || lens[b] > a.steps)
      return Status::fail("the sequence length %ld is outside [0, %ld]", long(lens[b]),
                          long(a.steps));
    const int64_t s = t < lens[b] ? lens[b] - 1 - t : t;
    const int64_t source = a.is_batch_first ? b * a.steps + s : s * a.batch + b;
    __builtin_memcpy(output<std::byte>(data) + item * a.bytes,
                     input<std::byte>(data, 0) + source * a.bytes, size_t(a.bytes));
  }
  return {};
}

}  // namespace

Status resolve_slice(const Call& call, const Data& data, View* out) {
  constexpr const char* kNames[] = {"data", "starts", "ends", "axes", "steps"};
  const int64_t count = call.in[1].count();
  for (int operand = 2; operand < 5; ++operand)
    if (is_given(call, operand) && call.in[operand].count() != count)
      return Status::fail("%s has %ld numbers, and starts has %ld", kNames[operand],
                          long(call.in[operand].count()), long(count));
  for (int i = 0; i < out->rank; ++i) out->dims[i] = call.in[0].dims[i];
  for (int64_t i = 0; i < call.in[1].count(); ++i) {
    AxisSlice selected;
    if (Status status = slice_of(call, data, i, selected); !status.ok()) return status;
    out->dims[selected.axis] = selected.count;
  }
  return {};
}

Status slice(const Call& call, Plan& plan) {
  auto* args = plan.make<SliceArgs>();
  for (int i = 0; i < call.n_in; ++i) args->views[i] = call.in[i];
  args->views[5] = call.out[0];
  args->call.in = {args->views, call.n_in};
  args->call.n_in = call.n_in;
  plan.args = args;
  const int64_t bytes = call.out[0].count() * size_of(call.out[0].dtype);
  plan.add(slice_parts, bytes == 0 ? 0 : kParts, bytes / kParts / 8);
  return {};
}

// ints: whether the batch is axis 0 and time axis 1.
Status reverse_sequence(const Call& call, Plan& plan) {
  const View& in = call.in[0];
  auto* args = plan.make<ReverseArgs>();
  args->is_batch_first = call.ints[0] != 0;
  args->steps = in.dims[args->is_batch_first ? 1 : 0];
  args->batch = in.dims[args->is_batch_first ? 0 : 1];
  args->bytes = in.count(2, in.rank) * size_of(in.dtype);
  plan.args = args;
  plan.add(reverse_items, args->steps * args->batch, args->bytes / 16 + 2);
  return {};
}

}  // namespace sdx::SDX_ISA::moving
