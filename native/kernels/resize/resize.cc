// Resize: what is done to each axis, from attributes and sizes, or from what inputs say in a run.
#include "kernels/resize/resize.h"

#include "kernels/fetch.h"
#include "kernels/pitch.h"

namespace sdx::SDX_ISA {
namespace {

enum Policy : int64_t { kStretch, kNotLarger, kNotSmaller };
// ints: mode, transform, rounding, whether taps outside count as nothing, antialias, policy, the
// bytes of an element that lies outside, the number of axes, and these.
enum Ints { kMode, kTransform, kRounding, kExcludes, kAntialias, kPolicy, kOuter, kCount, kAxes };
// Inputs beside x, where they are known only when it runs.
enum Inputs { kScales = 1, kSizes, kRoi };
constexpr int64_t kMaxSize = int64_t(1) << 40;

// What happens to all axes. floats: the cubic coefficient, and for each axis its scale (0: what the
// sizes say), where what is read of it begins, and where it ends.
struct Change {
  int rank = 0;
  Stretch axes[kMaxRank];
};

double real_at(const Call& call, const Data& data, int slot, int64_t i) {
  switch (call.in[slot].dtype) {
    case DType::f16: return double(number<float>(input<F16>(data, slot)[i]));
    case DType::f64: return input<double>(data, slot)[i];
    default: return double(input<float>(data, slot)[i]);
  }
}

bool has(const Call& call, int slot) {
  return call.in[slot].is_given() && call.in[slot].count() > 0;
}

// A size by a scale: exact for simple factors, in float for others.
int64_t scaled_size(int64_t size, double scale) {
  if (__builtin_floor(scale * 64) == scale * 64)
    return int64_t(__builtin_floor(double(size) * scale));
  return int64_t(float(size) * float(scale));
}

// The factor that keeps the aspect ratio, and fits into the sizes asked for or covers them.
double common_scale(const Call& call, const Data& data) {
  const bool is_least = call.ints[kPolicy] == kNotLarger;
  double scale = is_least ? double(kInf) : 0;
  for (int64_t i = 0; i < call.ints[kCount]; ++i) {
    const int64_t size = call.in[0].dims[call.ints[kAxes + i]];
    const double ratio = double(input<int64_t>(data, kSizes)[i]) / double(size);
    if (is_least ? ratio < scale : ratio > scale) scale = ratio;
  }
  return scale;
}

Change read_change(const Call& call, const View& out) {
  const View& in = call.in[0];
  Change change;
  change.rank = in.rank;
  for (int i = 0; i < in.rank; ++i) {
    const double* given = call.floats + 1 + i;
    const double scale = given[0] != 0 ? given[0] : double(out.dims[i]) / double(in.dims[i]);
    change.axes[i] = {in.dims[i], out.dims[i], scale, given[in.rank], given[2 * in.rank]};
  }
  return change;
}

// The same with what inputs say.
void open_change(const Call& call, const Data& data, Change& change) {
  const bool has_scales = has(call, kScales), keeps = call.ints[kPolicy] != kStretch;
  const int64_t n = call.ints[kCount];
  for (int64_t i = 0; i < n; ++i) {
    Stretch& axis = change.axes[call.ints[kAxes + i]];
    if (has_scales) axis.scale = real_at(call, data, kScales, i);
    if (!has_scales && keeps && has(call, kSizes)) axis.scale = common_scale(call, data);
    if (!has(call, kRoi)) continue;
    axis.start = real_at(call, data, kRoi, i), axis.end = real_at(call, data, kRoi, n + i);
  }
}

Filter read_filter(const Call& call) {
  return {ResizeMode(call.ints[kMode]),   Transform(call.ints[kTransform]),
          Rounding(call.ints[kRounding]), call.ints[kExcludes] != 0,
          call.ints[kAntialias] != 0,     call.floats[0]};
}

// How the output lies, whose last resized axis is `last`.
void set_pitches(ResizeArgs& a, const View& out, int last) {
  const int64_t n = a.axes[a.n_axes - 1].out;
  const bool is_apart = has_gaps(out);
  a.pitch = is_apart && last == out.rank - 2 ? row_pitch(out) : a.inner;
  a.row_pitch = is_apart && last == out.rank - 1 ? row_pitch(out) : n * a.pitch;
  if (!is_apart || last >= out.rank - 2) return;
  a.piece = out.dim(-1), a.piece_pitch = row_pitch(out);
  a.n_pieces = n * a.inner / a.piece;
  a.row_pitch = a.n_pieces * a.piece_pitch;
}

// Tables of axes [first, last].
void fill_axes(ResizeArgs& a, const Filter& filter, const Change& change, int first, int last,
               Memory& memory) {
  a.n_axes = 0;
  for (int i = first; i <= last && i < change.rank; ++i)
    a.axes[a.n_axes++] = make_taps(memory, filter, change.axes[i]);
  if (a.n_axes == 0) a.axes[a.n_axes++] = make_taps(memory, filter, Stretch{});
  a.crops = filter.transform == kCrop;
}

int rows_mixed(const ResizeArgs& a) {
  int mixed = 1;
  for (int i = 0; i + 1 < a.n_axes; ++i) mixed *= a.axes[i].n;
  return mixed;
}

struct OpenArgs : ResizeArgs {
  Call call;
  View in[4], out;
  Filter filter;
};

Status open_args(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const OpenArgs*>(args);
  auto* made = reinterpret_cast<ResizeArgs*>(data.scratch);
  *made = a;
  Change change = read_change(a.call, a.out);
  open_change(a.call, data, change);
  Memory memory{data.scratch + sizeof(ResizeArgs)};
  fill_axes(*made, a.filter, change, 0, change.rank - 1, memory);
  if (rows_mixed(*made) > kMaxRows) return Status::fail("too many axes are resized at once");
  set_pitches(*made, a.out, change.rank - 1);
  return {};
}

// Where scales or roi come with a run, the tables do too.
ResizeArgs* make_open(const Call& call, Plan& plan, const Change& change) {
  auto* a = plan.make<OpenArgs>();
  a->is_open = true;
  a->call = call;
  for (int i = 0; i < call.n_in; ++i) a->in[i] = call.in[i];
  a->out = call.out[0];
  a->call.in = a->in, a->call.out = &a->out;
  auto* ints = plan.make<int64_t>(size_t(call.n_ints));
  auto* floats = plan.make<double>(size_t(call.n_floats));
  for (int i = 0; i < call.n_ints; ++i) ints[i] = call.ints[i];
  for (int i = 0; i < call.n_floats; ++i) floats[i] = call.floats[i];
  a->call.ints = ints, a->call.floats = floats;
  a->filter = read_filter(call);
  plan.scratch_bytes = int64_t(sizeof(ResizeArgs));
  for (int i = 0; i < change.rank; ++i) plan.scratch_bytes += most_bytes(a->filter, change.axes[i]);
  return a;
}

}  // namespace

Status resize(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  if (out.count() == 0) return {};
  for (int i = 0; i < in.rank; ++i)
    if (in.dims[i] == 0)
      return Status::fail("an axis of 0 cannot become one of %ld", long(out.dims[i]));
  const Change change = read_change(call, out);
  if (call.in[kRoi].is_given() && call.in[kRoi].count() != 2 * call.ints[kCount])
    return Status::fail("tf_crop_and_resize needs a roi of %ld numbers, not %ld",
                        long(2 * call.ints[kCount]), long(call.in[kRoi].count()));
  const bool reads = has(call, kScales) || has(call, kRoi) || call.ints[kPolicy] != kStretch;
  const bool is_open = reads && in.rank > 0;
  const Filter filter = read_filter(call);
  ResizeArgs* a = is_open ? make_open(call, plan, change) : plan.make<ResizeArgs>();
  int first = in.rank, last = 0;
  for (int i = 0; i < in.rank; ++i) {
    if (!is_open && filter.is_plain(change.axes[i])) continue;
    if (first == in.rank) first = i;
    last = i;
  }
  if (first == in.rank) first = last = in.rank > 0 ? in.rank - 1 : 0;
  if (is_open) first = 0, last = in.rank - 1;
  a->size = size_of(in.dtype);
  a->outer_bits = uint64_t(call.ints[kOuter]);
  a->inner = in.count(last + 1 < in.rank ? last + 1 : in.rank, in.rank);
  plan.args = a;
  if (is_open) {
    plan.add(open_args, 1, 10 * (in.dim(-1) + out.dim(-1)));
  } else {
    int64_t bytes = most_bytes(filter, Stretch{});
    for (int i = first; i <= last && i < change.rank; ++i)
      bytes += most_bytes(filter, change.axes[i]);
    Memory memory{plan.table<std::byte>(size_t(bytes))};
    if (memory.at == nullptr) return no_table();
    fill_axes(*a, filter, change, first, last, memory);
    if (rows_mixed(*a) > kMaxRows) return Status::fail("too many axes are resized at once");
    set_pitches(*a, out, last);
  }
  const bool is_picked = filter.mode == kNearest;
  const int64_t size = in.rank > 0 ? in.dims[last] : 1, made = in.rank > 0 ? out.dims[last] : 1;
  if (!is_picked) plan.local_bytes = size * a->inner * a->size;
  if (a->n_pieces > 0) plan.local_bytes += made * a->inner * a->size;
  const int64_t mixed = is_open ? 8 : rows_mixed(*a) + a->axes[a->n_axes - 1].n;
  const int64_t work = made * a->inner * (is_picked ? 1 : mixed) / 4;
  plan.add(is_picked ? picked_rows : mixed_rows, out.count() / (made * a->inner), work);
  return {};
}

Status resize_sizes(const Call& call, const Data& data, View* out) {
  const View& in = call.in[0];
  const bool has_scales = has(call, kScales), has_sizes = has(call, kSizes);
  const bool keeps = call.ints[kPolicy] != kStretch && has_sizes;
  for (int slot = kScales; slot <= kSizes; ++slot)
    if (has(call, slot) && call.in[slot].count() != call.ints[kCount])
      return Status::fail("%ld scales or sizes are given, and %ld axes are resized",
                          long(call.in[slot].count()), long(call.ints[kCount]));
  for (int i = 0; i < in.rank; ++i) out->dims[i] = in.dims[i];
  const double common = keeps ? common_scale(call, data) : 1;
  for (int64_t i = 0; i < call.ints[kCount]; ++i) {
    const int64_t axis = call.ints[kAxes + i], size = in.dims[axis];
    const double known = call.floats[1 + axis];
    if (has_sizes == (has_scales || known != 0))
      return Status::fail("Resize takes either scales or sizes: one of the two, not both or none");
    const double scale = has_scales ? real_at(call, data, kScales, i) : known;
    if (!has_sizes && !(scale > 0 && scale < double(kMaxSize)))
      return Status::fail("the scale %g is not a positive number", scale);
    int64_t& dim = out->dims[axis];
    dim = has_sizes ? input<int64_t>(data, kSizes)[i] : scaled_size(size, scale);
    if (keeps && size > 0) dim = int64_t(__builtin_floor(common * double(size) + 0.5));
    if (dim < 0 || dim > kMaxSize || (dim > 0 && size == 0))
      return Status::fail("an axis of %ld cannot become one of %ld", long(size), long(dim));
  }
  return {};
}

namespace {

constexpr Kernel kRows[] = {
    {"resize", Accepts::contiguous, resize},
    {"resize_at_run", Accepts::contiguous, resize, resize_sizes},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(resize, kRows)
