// Pad in the modes constant, reflect, edge and wrap; negative pads crop. Rows along the last padded
// axis are copied in one piece, with what follows that axis as indivisible units.
#include "kernels/move/copy_bytes.h"
#include "kernels/move/integer_operand.h"
#include "kernels/move/kernels.h"
#include "kernels/move/untyped.h"

namespace sdx::SDX_ISA::moving {
namespace {

enum Mode : int64_t { kConstant, kReflect, kEdge, kWrap };

// One axis: output position i shows input position `first + fold(i - before)`, where fold maps
// positions outside [0, kept) back into it as the mode says.
struct PaddedAxis {
  int64_t out;     // size in the output
  int64_t before;  // positions of padding before the data
  int64_t first;   // first input position that is not cropped
  int64_t n_kept;  // input positions that are not cropped
  int64_t stride;  // bytes, in the input
};

struct PadArgs {
  Mode mode;
  int rank;  // axes up to the last padded one
  PaddedAxis axes[kMaxRank];
  int64_t unit;  // bytes after the last padded axis
  int64_t size;
  bool has_value;
};

constexpr int64_t kNowhere = -1;  // a position of constant padding

SDX_INLINE int64_t modulo(int64_t a, int64_t b) {
  const int64_t rest = a % b;
  return rest < 0 ? rest + b : rest;
}

// The input position that output position i shows. Reflection has period 2 * (kept - 1): the edges
// are not repeated.
int64_t source(const PaddedAxis& s, Mode mode, int64_t i) {
  const int64_t j = i - s.before;
  if (j >= 0 && j < s.n_kept) return s.first + j;
  switch (mode) {
    case kConstant: return kNowhere;
    case kEdge: return s.first + (j < 0 ? 0 : s.n_kept - 1);
    case kWrap: return s.first + modulo(j, s.n_kept);
    default: break;
  }
  if (s.n_kept == 1) return s.first;
  const int64_t period = 2 * (s.n_kept - 1), within = modulo(j, period);
  return s.first + (within < s.n_kept ? within : period - within);
}

// A padding value of any size, repeated over n bytes.
void fill_bytes(std::byte* to, const void* value, int64_t size, int64_t n) {
  visit_element_size(size, [&]<class T>() {
    fill_elements<T>(to, static_cast<const std::byte*>(value), n / size);
  });
}

// One row along the last padded axis: padding, data, padding.
void pad_row(const PadArgs& a, const std::byte* from, std::byte* to, const void* value) {
  const PaddedAxis& s = a.axes[a.rank - 1];
  auto fill_padding = [&](int64_t begin, int64_t end) {
    if (a.mode == kConstant)
      return fill_bytes(to + begin * a.unit, value, a.size, (end - begin) * a.unit);
    for (int64_t i = begin; i < end; ++i) {
      const std::byte* shown = from + source(s, a.mode, i) * a.unit;
      if (a.unit == 4)  // single floats: a constant size compiles to one load and store
        memcpy(to + i * a.unit, shown, 4);
      else
        copy_bytes(to + i * a.unit, shown, a.unit);
    }
  };
  const int64_t data_begin = s.before < s.out ? s.before : s.out;
  const int64_t data_end = s.before + s.n_kept < s.out ? s.before + s.n_kept : s.out;
  fill_padding(0, data_begin);
  if (data_end > data_begin)
    copy_bytes(to + data_begin * a.unit, from + s.first * a.unit, (data_end - data_begin) * a.unit);
  fill_padding(data_end, s.out);
}

// Row iterator: the coordinates on the axes before the last padded one, the input offset of each,
// and how many of them are in constant padding (then the whole row is).
struct RowCursor {
  const PadArgs& a;
  int64_t at[kMaxRank], offset[kMaxRank];
  int n_outside = 0;

  RowCursor(const PadArgs& args, int64_t row) : a(args) {
    for (int i = a.rank - 2; i >= 0; --i) {
      at[i] = row % a.axes[i].out;
      row /= a.axes[i].out;
      offset[i] = 0;
      update(i);
    }
  }

  // Recomputes axis i after its coordinate changed; n_outside is maintained incrementally.
  void update(int i) {
    const int64_t position = source(a.axes[i], a.mode, at[i]);
    n_outside += (position == kNowhere) - (offset[i] == kNowhere);
    offset[i] = position == kNowhere ? kNowhere : position * a.axes[i].stride;
  }

  void advance() {
    int i = a.rank - 2;
    for (; i >= 0 && ++at[i] == a.axes[i].out; --i) {
      at[i] = 0;
      update(i);
    }
    if (i >= 0) update(i);
  }
};

// Rows along the last padded axis.
void pad_range(const PadArgs& a, const Data& data, int value_operand, int64_t begin, int64_t end) {
  const Bytes16 zero = 0;
  const void* value = value_operand < 0 ? &zero : data.in[value_operand];
  const int64_t row_bytes = a.axes[a.rank - 1].out * a.unit;
  RowCursor cursor(a, begin);
  for (int64_t row = begin; row < end; ++row, cursor.advance()) {
    std::byte* to = output<std::byte>(data) + row * row_bytes;
    if (cursor.n_outside > 0) {
      fill_bytes(to, value, a.size, row_bytes);
      continue;
    }
    const std::byte* from = input<std::byte>(data, 0);
    for (int i = 0; i < a.rank - 1; ++i) from += cursor.offset[i];
    pad_row(a, from, to, value);
  }
}

Status pad_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PadArgs*>(args);
  pad_range(a, data, a.has_value ? 1 : -1, begin, end);
  return {};
}

// Fills the arguments from the pads before each axis (those after it follow from the sizes);
// returns the number of rows.
int64_t fill_args(const View& in, const View& out, Mode mode, const int64_t* before, PadArgs& a) {
  a.mode = mode;
  a.size = size_of(in.dtype);
  a.rank = 1;
  for (int i = 0; i < in.rank; ++i) {
    const int64_t after = out.dims[i] - in.dims[i] - before[i];
    PaddedAxis& s = a.axes[i];
    s.out = out.dims[i];
    s.before = before[i] > 0 ? before[i] : 0;
    s.first = before[i] < 0 ? -before[i] : 0;
    s.n_kept = in.dims[i] + (before[i] < 0 ? before[i] : 0) + (after < 0 ? after : 0);
    if (s.n_kept < 0) s.n_kept = 0;
    s.stride = in.count(i + 1, in.rank) * a.size;
    if (before[i] != 0 || after != 0) a.rank = i + 1;
  }
  if (in.rank == 0) a.axes[0] = {1, 0, 0, 1, a.size};
  a.unit = in.rank == 0 ? a.size : in.count(a.rank, in.rank) * a.size;
  int64_t rows = out.count() == 0 ? 0 : 1;
  for (int i = 0; i < a.rank - 1; ++i) rows *= a.axes[i].out;
  return rows;
}

constexpr int64_t kParts = 64;  // items of a copy whose number of rows is known only when it runs

// Pads are an input that is not constant: PadArgs are computed by every item when the step runs.
struct DynamicPadArgs {
  View in, out;
  Mode mode;
  int64_t n_axes;
  bool has_value, has_axes;
  DType axes;
};

// Reads the pads of every axis. Operands: data, pads, value, axes.
Status read_pads(const DynamicPadArgs& a, const Data& data, int64_t* before, int64_t* after) {
  const Integers pads(data.in[1], DType::i64);
  for (int i = 0; i < a.in.rank; ++i) before[i] = after[i] = 0;
  for (int64_t i = 0; i < a.n_axes; ++i) {
    const int64_t axis_value = a.has_axes ? Integers(data.in[3], a.axes)[i] : i;
    const int64_t axis = axis_value < 0 ? axis_value + a.in.rank : axis_value;
    if (axis < 0 || axis >= a.in.rank)
      return Status::fail("axis %ld of pads is outside [-%d, %d)", long(axis_value), a.in.rank,
                          a.in.rank);
    before[axis] = pads[i];
    after[axis] = pads[i + a.n_axes];
  }
  return {};
}

DynamicPadArgs dynamic_args(const Call& call) {
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
  const auto& a = *static_cast<const DynamicPadArgs*>(args);
  int64_t before[kMaxRank], after[kMaxRank];
  if (Status status = read_pads(a, data, before, after); !status.ok()) return status;
  PadArgs settled;
  const int64_t rows = fill_args(a.in, a.out, a.mode, before, settled);
  pad_range(settled, data, a.has_value ? 2 : -1, rows * begin / kParts, rows * end / kParts);
  return {};
}

}  // namespace

// ints: the mode, and the pads before each axis (negative: cropped).
Status pad(const Call& call, Plan& plan) {
  auto* args = plan.make<PadArgs>();
  const int64_t rows = fill_args(call.in[0], call.out[0], Mode(call.ints[0]), call.ints + 1, *args);
  args->has_value = is_given(call, 1);
  plan.args = args;
  plan.add(pad_rows, rows, args->axes[args->rank - 1].out * args->unit / 16 + 4);
  return {};
}

// ints: the mode.
Status pad_at_run(const Call& call, Plan& plan) {
  auto* args = plan.make<DynamicPadArgs>();
  *args = dynamic_args(call);
  plan.args = args;
  const int64_t bytes = call.out[0].count() * size_of(call.out[0].dtype);
  plan.add(pad_parts, bytes == 0 ? 0 : kParts, bytes / kParts / 8);
  return {};
}

Status resolve_pad(const Call& call, const Data& data, View* out) {
  const DynamicPadArgs a = dynamic_args(call);
  const int64_t wanted = 2 * (a.has_axes ? call.in[3].count() : a.in.rank);
  if (call.in[1].count() != wanted)
    return Status::fail("pads has %ld numbers, not %ld", long(call.in[1].count()), long(wanted));
  int64_t before[kMaxRank], after[kMaxRank];
  if (Status status = read_pads(a, data, before, after); !status.ok()) return status;
  for (int i = 0; i < out->rank; ++i) {
    const int64_t d = a.in.dims[i];
    int64_t n_kept;
    if (__builtin_add_overflow(d, before[i], &n_kept) ||
        __builtin_add_overflow(n_kept, after[i], &out->dims[i]))
      return Status::fail("axis %d of %ld, padded by %ld and %ld, has more than 2**62 elements", i,
                          long(d), long(before[i]), long(after[i]));
    if (out->dims[i] < 0)
      return Status::fail("axis %d of %ld, padded by %ld and %ld, has the negative size %ld", i,
                          long(d), long(before[i]), long(after[i]), long(out->dims[i]));
    n_kept = d + (before[i] < 0 ? before[i] : 0) + (after[i] < 0 ? after[i] : 0);
    if (a.mode != kConstant && n_kept <= 0 && out->dims[i] > 0)
      return Status::fail("axis %d of %ld has nothing to pad from", i, long(d));
  }
  return check_addressable(*out);
}

}  // namespace sdx::SDX_ISA::moving
