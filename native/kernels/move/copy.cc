// Kernels that are strided copies of whole tensors: Transpose, Concat, Split, Tile, Expand,
// Reshape, SpaceToDepth and DepthToSpace (as rearrange). They only describe the copy;
// strided_copy.cc runs it.
#include "base/format_shape.h"
#include "kernels/move/integer_operand.h"
#include "kernels/move/kernels.h"
#include "kernels/move/strided_copy.h"
#include "kernels/move/untyped.h"

namespace sdx::SDX_ISA::moving {
namespace {

Status copy_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  run_copy(*static_cast<const StridedCopy*>(args), data.in[0], data.out[0], begin, end);
  return {};
}

Status add_copy(Plan& plan, StridedCopy* strided) {
  plan.args = strided;
  const int64_t items = plan_copy(*strided);
  plan.add(copy_items, items, copy_work(*strided));
  return {};
}

// Concat and Split: one strided copy per section, whose items are numbered consecutively.
struct SectionsArgs {
  int n = 0;
  const StridedCopy* sections = nullptr;
  const int64_t* first = nullptr;  // the first item of each section, and the number of all items
  bool joins = false;              // Concat: several inputs to one output; else Split
};

Status section_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const SectionsArgs*>(args);
  for (int i = 0; i < a.n; ++i) {
    // The memory planner may place an input of Concat directly in its output; then nothing is
    // copied.
    if (a.joins && data.in[i] == output<std::byte>(data) + a.sections[i].to_offset) continue;
    const int64_t from = begin > a.first[i] ? begin : a.first[i];
    const int64_t to = end < a.first[i + 1] ? end : a.first[i + 1];
    if (from < to)
      run_copy(a.sections[i], data.in[a.joins ? i : 0], data.out[a.joins ? 0 : i],
               from - a.first[i], to - a.first[i]);
  }
  return {};
}

// Copies between `whole` and its sections along an axis, in either direction.
Status add_sections(Plan& plan, const View& whole, const View* sections, int n, bool joins,
                    int axis) {
  const int64_t size = size_of(whole.dtype);
  auto* copies = plan.make<StridedCopy>(size_t(n));
  auto* first = plan.make<int64_t>(size_t(n) + 1);
  int64_t offset = 0, work = 0;
  for (int i = 0; i < n; ++i) {
    StridedCopy& strided = copies[i];
    strided.unit = size;
    (joins ? strided.to_offset : strided.from_offset) = offset * whole.strides[axis] * size;
    for (int d = 0; d < whole.rank; ++d) {
      const int64_t own = sections[i].strides[d] * size, shared = whole.strides[d] * size;
      strided.axis(sections[i].dims[d], joins ? own : shared, joins ? shared : own);
    }
    offset += sections[i].dims[axis];
    const int64_t items = plan_copy(strided);
    first[i + 1] = first[i] + items;
    work += items * copy_work(strided);
  }
  auto* args = plan.make<SectionsArgs>();
  *args = {n, copies, first, joins};
  plan.args = args;
  plan.add(section_items, first[n], first[n] == 0 ? 1 : work / first[n]);
  return {};
}

// Cancels a target size against an equal size of the input. The size at -1 is then the ratio of
// what remains, which stays defined where both sides have a 0.
bool cancels(int64_t* have, int rank, int64_t d) {
  for (int i = 0; i < rank; ++i) {
    if (have[i] != d) continue;
    have[i] = 1;
    return true;
  }
  return false;
}

double product(const int64_t* dims, int rank) {
  double n = 1;
  for (int i = 0; i < rank; ++i) n *= double(dims[i]);
  return n;
}

// Refuses a target of Reshape that no input could have.
Status check_target(const int64_t* target, int rank, bool keeps_zero) {
  int open = -1, zero = -1;
  for (int i = 0; i < rank; ++i) {
    if (target[i] == 0) zero = i;
    if (target[i] == -1 && open >= 0)
      return Status::fail("the target %s leaves more than one size open",
                          format_shape(target, rank).text);
    if (target[i] == -1) open = i;
    if (target[i] < -1)
      return Status::fail("the target %s has the negative size %ld",
                          format_shape(target, rank).text, long(target[i]));
  }
  if (keeps_zero && open >= 0 && zero >= 0)
    return Status::fail("the target %s has -1 and a 0 that stands for itself (allowzero)",
                        format_shape(target, rank).text);
  return {};
}

}  // namespace

Status copy(const Call& call, Plan& plan) {
  auto* strided = plan.make<StridedCopy>();
  pack_copy(call.in[0], *strided);
  return add_copy(plan, strided);
}

// ints: the axis.
Status concat(const Call& call, Plan& plan) {
  return add_sections(plan, call.out[0], call.in, call.n_in, true, int(call.ints[0]));
}
Status split(const Call& call, Plan& plan) {
  return add_sections(plan, call.in[0], call.out, call.n_out, false, int(call.ints[0]));
}

// ints: the dims that the input is reshaped to, and the permutation of these axes.
Status rearrange(const Call& call, Plan& plan) {
  const int rank = call.n_ints / 2;
  const int64_t* perm = call.ints + rank;
  auto* strided = plan.make<StridedCopy>();
  strided->unit = size_of(call.in[0].dtype);
  int64_t from[kCopyRank], step = strided->unit;
  for (int i = rank - 1; i >= 0; --i) {
    from[i] = step;
    step *= call.ints[i];
  }
  for (int i = 0; i < rank; ++i) {
    int64_t to = strided->unit;
    for (int k = i + 1; k < rank; ++k) to *= call.ints[perm[k]];
    strided->axis(call.ints[perm[i]], from[perm[i]], to);
  }
  return add_copy(plan, strided);
}

// Repeats follow from the sizes: an axis of n elements becomes [repeats, n], the first with a
// source stride of 0.
Status tile(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  const int64_t size = size_of(in.dtype);
  auto* strided = plan.make<StridedCopy>();
  strided->unit = size;
  for (int i = 0; i < in.rank; ++i) {
    const int64_t times = in.dims[i] == 0 ? 0 : out.dims[i] / in.dims[i];
    strided->axis(times, 0, out.strides[i] * in.dims[i] * size);
    strided->axis(in.dims[i], in.strides[i] * size, out.strides[i] * size);
  }
  return add_copy(plan, strided);
}

// Broadcasts, by source strides of 0.
Status expand(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  const int64_t size = size_of(in.dtype);
  const int front = out.rank - in.rank;
  auto* strided = plan.make<StridedCopy>();
  strided->unit = size;
  for (int i = 0; i < out.rank; ++i) {
    const bool repeats = i < front || in.dims[i - front] == 1;
    strided->axis(out.dims[i], repeats ? 0 : in.strides[i - front] * size, out.strides[i] * size);
  }
  return add_copy(plan, strided);
}

Status resolve_tile(const Call& call, const Data& data, View* out) {
  const Integers times = integers(call, data, 1);
  if (call.in[1].count() != out->rank)
    return Status::fail("repeats has %ld numbers, and the input has rank %d",
                        long(call.in[1].count()), out->rank);
  for (int i = 0; i < out->rank; ++i) {
    if (times[i] < 0)
      return Status::fail("repeats has the negative number %ld for axis %d", long(times[i]), i);
    if (__builtin_mul_overflow(call.in[0].dims[i], times[i], &out->dims[i]))
      return Status::fail("axis %d of %ld, repeated %ld times, has more than 2**63 elements", i,
                          long(call.in[0].dims[i]), long(times[i]));
  }
  return check_addressable(*out);
}

Status resolve_expand(const Call& call, const Data& data, View* out) {
  const View& in = call.in[0];
  const Integers target = integers(call, data, 1);
  const int64_t length = call.in[1].count();
  for (int i = 0; i < out->rank; ++i) {
    const int64_t have_at = i - (out->rank - in.rank), want_at = i - (out->rank - length);
    const int64_t have = have_at < 0 ? 1 : in.dims[have_at];
    const int64_t want = want_at < 0 ? 1 : target[want_at];
    if (want < 0)
      return Status::fail("dim %d of the output has the negative size %ld", i, long(want));
    if (have != want && have != 1 && want != 1)
      return Status::fail("dim %d of the output: %ld does not expand to %ld", i, long(have),
                          long(want));
    out->dims[i] = have == 1 ? want : have;
  }
  return check_addressable(*out);
}

// ints: allowzero, whether a 0 in the target is a size and not a copy of the input's.
Status resolve_reshape(const Call& call, const Data& data, View* out) {
  const View& in = call.in[0];
  const bool keeps_zero = call.ints[0] != 0;
  int64_t target[kMaxRank], have[kMaxRank], known = 1, count = 1;
  for (int i = 0; i < out->rank; ++i) target[i] = integers(call, data, 1)[i];
  for (int i = 0; i < in.rank; ++i) have[i] = in.dims[i];
  if (Status status = check_target(target, out->rank, keeps_zero); !status.ok()) return status;
  int open = -1;
  bool overflows = false;
  for (int i = 0; i < out->rank; ++i) {
    if (target[i] == 0 && !keeps_zero && i >= in.rank)
      return Status::fail("the 0 at %d copies a size of the input, which has rank %d", i, in.rank);
    const int64_t d = out->dims[i] = target[i] == 0 && !keeps_zero ? in.dims[i] : target[i];
    if (d == -1)
      open = i;
    else if (!cancels(have, in.rank, d))
      overflows |= __builtin_mul_overflow(known, d, &known);
  }
  for (int i = 0; i < in.rank; ++i) count *= have[i];
  if (overflows)
    return Status::fail("the target %s has more than 2**62 elements",
                        format_shape(target, out->rank).text);
  if (open >= 0 && known != 0 && count % known == 0)
    out->dims[open] = count / known;
  else if (open >= 0)
    return Status::fail("cannot reshape %s into %s: %ld does not divide %ld",
                        format_shape(in.dims, in.rank).text, format_shape(target, out->rank).text,
                        long(known), long(count));
  else if (known != count)
    return Status::fail("cannot reshape %s into %s, elements: %.15g and %.15g",
                        format_shape(in.dims, in.rank).text, format_shape(target, out->rank).text,
                        product(in.dims, in.rank), product(out->dims, out->rank));
  return {};
}

// ints: the axis.
Status resolve_split(const Call& call, const Data& data, View* out) {
  const View& in = call.in[0];
  const Integers sizes = integers(call, data, 1);
  const int axis = int(call.ints[0]);
  int64_t total = 0;
  if (call.in[1].count() != call.n_out)
    return Status::fail("split has %ld numbers, and the node has %d outputs",
                        long(call.in[1].count()), call.n_out);
  for (int k = 0; k < call.n_out; ++k) {
    for (int i = 0; i < in.rank; ++i) out[k].dims[i] = in.dims[i];
    out[k].dims[axis] = sizes[k];
    if (sizes[k] < 0) return Status::fail("part %d has the negative size %ld", k, long(sizes[k]));
    if (__builtin_add_overflow(total, sizes[k], &total))
      return Status::fail("the parts add up to more than 2**62, not to the %ld of axis %d",
                          long(in.dims[axis]), axis);
  }
  if (total != in.dims[axis])
    return Status::fail("the parts add up to %ld, not to the %ld of axis %d", long(total),
                        long(in.dims[axis]), axis);
  return {};
}

}  // namespace sdx::SDX_ISA::moving
