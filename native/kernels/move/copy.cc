// Copies of whole tensors: joined, repeated, rearranged, cut, or only given another shape.
#include "base/listed.h"
#include "kernels/move/rows.h"
#include "kernels/move/strided.h"
#include "kernels/move/words.h"

namespace sdx::SDX_ISA::moving {
namespace {

Status copy_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  run_move(*static_cast<const Move*>(args), data.in[0], data.out[0], begin, end);
  return {};
}

Status plan_copy(Plan& plan, Move* move) {
  plan.args = move;
  const int64_t items = plan_move(*move);
  plan.add(copy_items, items, move_work(*move));
  return {};
}

struct JoinArgs {
  int n = 0;
  const Move* parts = nullptr;
  const int64_t* first = nullptr;  // item of each part, and of the end
  bool joins = false;              // several inputs to one output; else one input to several
};

Status join_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const JoinArgs*>(args);
  for (int i = 0; i < a.n; ++i) {
    // Parts that were made in the output, as those before rows that it grew by, are there already.
    if (a.joins && data.in[i] == output<std::byte>(data) + a.parts[i].to_offset) continue;
    const int64_t from = begin > a.first[i] ? begin : a.first[i];
    const int64_t to = end < a.first[i + 1] ? end : a.first[i + 1];
    if (from < to)
      run_move(a.parts[i], data.in[a.joins ? i : 0], data.out[a.joins ? 0 : i], from - a.first[i],
               to - a.first[i]);
  }
  return {};
}

// The parts of `whole` along an axis, from or to it.
Status plan_parts(Plan& plan, const View& whole, const View* parts, int n, bool joins, int axis) {
  const int64_t size = size_of(whole.dtype);
  auto* moves = plan.make<Move>(size_t(n));
  auto* first = plan.make<int64_t>(size_t(n) + 1);
  int64_t offset = 0, work = 0;
  for (int i = 0; i < n; ++i) {
    Move& move = moves[i];
    move.unit = size;
    (joins ? move.to_offset : move.from_offset) = offset * whole.strides[axis] * size;
    for (int d = 0; d < whole.rank; ++d) {
      const int64_t own = parts[i].strides[d] * size, shared = whole.strides[d] * size;
      move.axis(parts[i].dims[d], joins ? own : shared, joins ? shared : own);
    }
    offset += parts[i].dims[axis];
    const int64_t items = plan_move(move);
    first[i + 1] = first[i] + items;
    work += items * move_work(move);
  }
  auto* args = plan.make<JoinArgs>();
  *args = {n, moves, first, joins};
  plan.args = args;
  plan.add(join_items, first[n], first[n] == 0 ? 1 : work / first[n]);
  return {};
}

// Strikes a size out if it is among those of the input: what is left open follows even where that
// size is 0.
bool takes(int64_t* have, int rank, int64_t d) {
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

// The first size that a target of Reshape cannot have.
Status check_target(const int64_t* target, int rank, bool keeps_zero) {
  int open = -1, zero = -1;
  for (int i = 0; i < rank; ++i) {
    if (target[i] == 0) zero = i;
    if (target[i] == -1 && open >= 0)
      return Status::fail("the target %s leaves more than one size open",
                          listed(target, rank).text);
    if (target[i] == -1) open = i;
    if (target[i] < -1)
      return Status::fail("the target %s has the negative size %ld", listed(target, rank).text,
                          long(target[i]));
  }
  if (keeps_zero && open >= 0 && zero >= 0)
    return Status::fail("the target %s has -1 and a 0 that stands for itself (allowzero)",
                        listed(target, rank).text);
  return {};
}

}  // namespace

Status copy(const Call& call, Plan& plan) {
  auto* move = plan.make<Move>();
  move_of(call.in[0], *move);
  return plan_copy(plan, move);
}

// ints: the axis.
Status concat(const Call& call, Plan& plan) {
  return plan_parts(plan, call.out[0], call.in, call.n_in, true, int(call.ints[0]));
}
Status split(const Call& call, Plan& plan) {
  return plan_parts(plan, call.in[0], call.out, call.n_out, false, int(call.ints[0]));
}

// ints: the dims that the input is seen with, and the order of their axes in the output.
Status rearrange(const Call& call, Plan& plan) {
  const int rank = call.n_ints / 2;
  const int64_t* perm = call.ints + rank;
  auto* move = plan.make<Move>();
  move->unit = size_of(call.in[0].dtype);
  int64_t from[kMoveRank], step = move->unit;
  for (int i = rank - 1; i >= 0; --i) {
    from[i] = step;
    step *= call.ints[i];
  }
  for (int i = 0; i < rank; ++i) {
    int64_t to = move->unit;
    for (int k = i + 1; k < rank; ++k) to *= call.ints[perm[k]];
    move->axis(call.ints[perm[i]], from[perm[i]], to);
  }
  return plan_copy(plan, move);
}

// How often an axis is repeated follows from the sizes.
Status tile(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  const int64_t size = size_of(in.dtype);
  auto* move = plan.make<Move>();
  move->unit = size;
  for (int i = 0; i < in.rank; ++i) {
    const int64_t times = in.dims[i] == 0 ? 0 : out.dims[i] / in.dims[i];
    move->axis(times, 0, out.strides[i] * in.dims[i] * size);
    move->axis(in.dims[i], in.strides[i] * size, out.strides[i] * size);
  }
  return plan_copy(plan, move);
}

Status expand(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  const int64_t size = size_of(in.dtype);
  const int front = out.rank - in.rank;
  auto* move = plan.make<Move>();
  move->unit = size;
  for (int i = 0; i < out.rank; ++i) {
    const bool repeats = i < front || in.dims[i - front] == 1;
    move->axis(out.dims[i], repeats ? 0 : in.strides[i - front] * size, out.strides[i] * size);
  }
  return plan_copy(plan, move);
}

Status resolve_tile(const Call& call, const Data& data, View* out) {
  const Integers times = integers(call, data, 1);
  if (call.in[1].count() != out->rank)
    return Status::fail("%ld repeats for %d axes", long(call.in[1].count()), out->rank);
  for (int i = 0; i < out->rank; ++i) {
    if (times[i] < 0 || __builtin_mul_overflow(call.in[0].dims[i], times[i], &out->dims[i]))
      return Status::fail("axis %d is repeated %ld times", i, long(times[i]));
  }
  return addressable(*out);
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
  return addressable(*out);
}

// ints: whether a 0 in the target stands for itself.
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
    else if (!takes(have, in.rank, d))
      overflows |= __builtin_mul_overflow(known, d, &known);
  }
  for (int i = 0; i < in.rank; ++i) count *= have[i];
  if (overflows)
    return Status::fail("the target %s has more than 2**62 elements",
                        listed(target, out->rank).text);
  if (open >= 0 && known != 0 && count % known == 0)
    out->dims[open] = count / known;
  else if (open >= 0)
    return Status::fail("cannot reshape %s into %s: %ld does not divide %ld",
                        listed(in.dims, in.rank).text, listed(target, out->rank).text, long(known),
                        long(count));
  else if (known != count)
    return Status::fail("cannot reshape %s into %s, elements: %.15g and %.15g",
                        listed(in.dims, in.rank).text, listed(target, out->rank).text,
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
    return Status::fail("%ld sizes for %d parts", long(call.in[1].count()), call.n_out);
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
