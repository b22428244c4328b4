// Pad in its four modes; negative amounts cut.
#include "kernels/move/rows.h"
#include "kernels/move/runs.h"
#include "kernels/move/words.h"

namespace sdx::SDX_ISA::moving {
namespace {

enum Mode : int64_t { kConstant, kReflect, kEdge, kWrap };

// One axis: output place i shows input place `first + fold(i - before)`.
struct Side {
  int64_t out;     // places of the output
  int64_t before;  // of them in front of the input's
  int64_t first;   // place of the input that is shown first
  int64_t kept;    // places of the input that are shown
  int64_t stride;  // bytes, in the input
};

struct PadArgs {
  Mode mode;
  int rank;  // axes up to the last padded one
  Side sides[kMaxRank];
  int64_t unit;  // bytes of what lies behind the last padded axis
  int64_t size;
  bool has_value;
};

constexpr int64_t kNowhere = -1;

SDX_INLINE int64_t modulo(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

int64_t source(const Side& s, Mode mode, int64_t i) {
  const int64_t j = i - s.before;
  if (j >= 0 && j < s.kept) return s.first + j;
  switch (mode) {
    case kConstant: return kNowhere;
    case kEdge: return s.first + (j < 0 ? 0 : s.kept - 1);
    case kWrap: return s.first + modulo(j, s.kept);
    default: break;
  }
  if (s.kept == 1) return s.first;
  const int64_t period = 2 * (s.kept - 1), within = modulo(j, period);
  return s.first + (within < s.kept ? within : period - within);
}

// A padding value of any size, repeated over n bytes.
void fill_bytes(std::byte* to, const void* value, int64_t size, int64_t n) {
  visit_word(size,
             [&]<class T>() { fill_words<T>(to, static_cast<const std::byte*>(value), n / size); });
}

void pad_row(const PadArgs& a, const std::byte* from, std::byte* to, const void* value) {
  const Side& s = a.sides[a.rank - 1];
  auto border = [&](int64_t begin, int64_t end) {
    if (a.mode == kConstant)
      return fill_bytes(to + begin * a.unit, value, a.size, (end - begin) * a.unit);
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* shown = from + source(s, a.mode, i) * a.unit;
      if (a.unit == 4)
        memcpy(to + i * a.unit, shown, 4);
      else
        copy_bytes(to + i * a.unit, shown, a.unit);
    }
  };
  const int64_t inner = s.before < s.out ? s.before : s.out;
  const int64_t behind = s.before + s.kept < s.out ? s.before + s.kept : s.out;
  border(0, inner);
  if (behind > inner)
    copy_bytes(to + inner * a.unit, from + s.first * a.unit, (behind - inner) * a.unit);
  border(behind, s.out);
}

// Where a walk over the rows stands: the place on each axis, and what the input has there.
struct Walk {
  const PadArgs& a;
  int64_t at[kMaxRank], offset[kMaxRank];
  int n_outside = 0;

  Walk(const PadArgs& args, int64_t row) : a(args) {
    for (int i = a.rank - 2; i >= 0; --i) {
      at[i] = row % a.sides[i].out;
      row /= a.sides[i].out;
      offset[i] = 0;
      look(i);
    }
  }

  void look(int i) {
    const int64_t found = source(a.sides[i], a.mode, at[i]);
    n_outside += (found == kNowhere) - (offset[i] == kNowhere);
    offset[i] = found == kNowhere ? kNowhere : found * a.sides[i].stride;
  }

  void advance() {
    int i = a.rank - 2;
    for (; i >= 0 && ++at[i] == a.sides[i].out; --i) {
      at[i] = 0;
      look(i);
    }
    if (i >= 0) look(i);
  }
};

// Rows along the last padded axis.
void pad_range(const PadArgs& a, const Data& data, int value_slot, int64_t begin, int64_t end) {
  const Word16 zero = 0;
  const void* value = value_slot < 0 ? &zero : data.in[value_slot];
  const int64_t row_bytes = a.sides[a.rank - 1].out * a.unit;
  Walk walk(a, begin);
  for (int64_t row = begin; row < end; ++row, walk.advance()) {
    std::byte* to = output<std::byte>(data) + row * row_bytes;
    if (walk.n_outside > 0) {
      fill_bytes(to, value, a.size, row_bytes);
      continue;
    }
    const std::byte* from = input<std::byte>(data, 0);
    for (int i = 0; i < a.rank - 1; ++i) from += walk.offset[i];
    pad_row(a, from, to, value);
  }
}

Status pad_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PadArgs*>(args);
  pad_range(a, data, a.has_value ? 1 : -1, begin, end);
  return {};
}

// `before`: places in front of each axis. Returns the number of rows.
int64_t settle(const View& in, const View& out, Mode mode, const int64_t* before, PadArgs& a) {
  a.mode = mode;
  a.size = size_of(in.dtype);
  a.rank = 1;
  for (int i = 0; i < in.rank; ++i) {
    const int64_t after = out.dims[i] - in.dims[i] - before[i];
    Side& s = a.sides[i];
    s.out = out.dims[i];
    s.before = before[i] > 0 ? before[i] : 0;
    s.first = before[i] < 0 ? -before[i] : 0;
    s.kept = in.dims[i] + (before[i] < 0 ? before[i] : 0) + (after < 0 ? after : 0);
    if (s.kept < 0) s.kept = 0;
    s.stride = in.count(i + 1, in.rank) * a.size;
    if (before[i] != 0 || after != 0) a.rank = i + 1;
  }
  if (in.rank == 0) a.sides[0] = {1, 0, 0, 1, a.size};
  a.unit = in.rank == 0 ? a.size : in.count(a.rank, in.rank) * a.size;
  int64_t rows = out.count() == 0 ? 0 : 1;
  for (int i = 0; i < a.rank - 1; ++i) rows *= a.sides[i].out;
  return rows;
}

constexpr int64_t kParts = 64;  // of a copy whose rows are not known yet

struct LateArgs {
  View in, out;
  Mode mode;
  int64_t n_axes;
  bool has_value, has_axes;
  DType axes;
};

// Operands: data, pads, value, axes.
Status late_sides(const LateArgs& a, const Data& data, int64_t* before, int64_t* after) {
  const Integers pads(data.in[1], DType::i64);
  for (int i = 0; i < a.in.rank; ++i) before[i] = after[i] = 0;
  for (int64_t i = 0; i < a.n_axes; ++i) {
    const int64_t given = a.has_axes ? Integers(data.in[3], a.axes)[i] : i;
    const int64_t axis = given < 0 ? given + a.in.rank : given;
    if (axis < 0 || axis >= a.in.rank)
      return Status::fail("axis %ld of pads is outside [-%d, %d)", long(given), a.in.rank,
                          a.in.rank);
    before[axis] = pads[i];
    after[axis] = pads[i + a.n_axes];
  }
  return {};
}

LateArgs late(const Call& call) {
  const bool has_axes = is_given(call, 3);
  return {call.in[0],
          call.out[0],
          Mode(call.ints[0]),
          call.in[1].count() / 2,
          is_given(call, 2),
          has_axes,
          has_axes ? call.in[3].dtype : DType::none};
}

Status pad_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const LateArgs*>(args);
  int64_t before[kMaxRank], after[kMaxRank];
  if (Status status = late_sides(a, data, before, after); !status.ok()) return status;
  PadArgs settled;
  const int64_t rows = settle(a.in, a.out, a.mode, before, settled);
  pad_range(settled, data, a.has_value ? 2 : -1, rows * begin / kParts, rows * end / kParts);
  return {};
}

}  // namespace

// ints: the mode, and for each axis how many places come in front (less than 0: are cut).
Status pad(const Call& call, Plan& plan) {
  auto* args = plan.make<PadArgs>();
  const int64_t rows = settle(call.in[0], call.out[0], Mode(call.ints[0]), call.ints + 1, *args);
  args->has_value = is_given(call, 1);
  plan.args = args;
  plan.add(pad_rows, rows, args->sides[args->rank - 1].out * args->unit / 16 + 4);
  return {};
}

// ints: the mode.
Status late_pad(const Call& call, Plan& plan) {
  auto* args = plan.make<LateArgs>();
  *args = late(call);
  plan.args = args;
  const int64_t bytes = call.out[0].count() * size_of(call.out[0].dtype);
  plan.add(pad_parts, bytes == 0 ? 0 : kParts, bytes / kParts / 8);
  return {};
}

Status resolve_pad(const Call& call, const Data& data, View* out) {
  const LateArgs a = late(call);
  const int64_t wanted = 2 * (a.has_axes ? call.in[3].count() : a.in.rank);
  if (call.in[1].count() != wanted)
    return Status::fail("pads has %ld numbers, not %ld", long(call.in[1].count()), long(wanted));
  int64_t before[kMaxRank], after[kMaxRank];
  if (Status status = late_sides(a, data, before, after); !status.ok()) return status;
  for (int i = 0; i < out->rank; ++i) {
    const int64_t d = a.in.dims[i];
    int64_t kept;
    if (__builtin_add_overflow(d, before[i], &kept) ||
        __builtin_add_overflow(kept, after[i], &out->dims[i]))
      return Status::fail("axis %d of %ld, padded by %ld and %ld, has more than 2**62 elements", i,
                          long(d), long(before[i]), long(after[i]));
    if (out->dims[i] < 0)
      return Status::fail("axis %d of %ld, padded by %ld and %ld, has the negative size %ld", i,
                          long(d), long(before[i]), long(after[i]), long(out->dims[i]));
    kept = d + (before[i] < 0 ? before[i] : 0) + (after[i] < 0 ? after[i] : 0);
    if (a.mode != kConstant && kept <= 0 && out->dims[i] > 0)
      return Status::fail("axis %d of %ld has nothing to pad from", i, long(d));
  }
  return addressable(*out);
}

}  // namespace sdx::SDX_ISA::moving
