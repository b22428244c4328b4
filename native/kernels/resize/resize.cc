// Resize: the scale and the taps of each axis, from attributes and sizes when the step is prepared,
// or from inputs (scales, sizes, roi) in a first phase when it runs.
#include "kernels/resize/resize.h"

#include "kernels/elements.h"
#include "kernels/row_stride.h"

namespace sdx::SDX_ISA {
namespace {

enum Policy : int64_t { kStretch, kNotLarger, kNotSmaller };
// ints: mode, coordinate transformation, nearest rounding, exclude_outside, antialias, aspect ratio
// policy, the bits of extrapolation_value, the number of resized axes, and these axes.
enum Int : int {
  kMode,
  kTransform,
  kRounding,
  kExcludes,
  kAntialias,
  kPolicy,
  kExtrapolation,
  kCount,
  kAxes
};
// Inputs after x, present where they are not constant.
enum Operand : int { kScales = 1, kSizes, kRoi };
constexpr int64_t kMaxSize = int64_t(1) << 40;  // elements of an axis; larger ones are refused

// All axes. floats: cubic_coeff_a, and by axis the scales (0: from the sizes), roi starts, roi
// ends.
struct AxesChange {
  int rank = 0;
  ResizedAxis axes[kMaxRank];
};

double real_at(const Call& call, const Data& data, int operand, int64_t i) {
  switch (call.in[operand].dtype) {
    case DType::f16: return double(number<float>(input<F16>(data, operand)[i]));
    case DType::f64: return input<double>(data, operand)[i];
    default: return double(input<float>(data, operand)[i]);
  }
}

bool has(const Call& call, int operand) {
  return call.in[operand].is_given() && call.in[operand].count() > 0;
}

// floor(size * scale): in float, the type of scales, as onnxruntime computes it; exact for
// multiples of 1/64, whose symbolic sizes inference knows (ops/resize/standard.py).
int64_t scaled_size(int64_t size, double scale) {
  if (__builtin_floor(scale * 64) == scale * 64)
    return int64_t(__builtin_floor(double(size) * scale));
  return int64_t(float(size) * float(scale));
}

// keep_aspect_ratio_policy: the largest scale within all requested sizes, or the smallest covering
// them.
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

AxesChange read_change(const Call& call, const View& out) {
  const View& in = call.in[0];
  AxesChange change;
  change.rank = in.rank;
  for (int i = 0; i < in.rank; ++i) {
    const double* values = call.floats + 1 + i;
    const double scale = values[0] != 0 ? values[0] : double(out.dims[i]) / double(in.dims[i]);
    change.axes[i] = {in.dims[i], out.dims[i], scale, values[in.rank], values[2 * in.rank]};
  }
  return change;
}

// The same, updated from the inputs of a run.
void read_dynamic_change(const Call& call, const Data& data, AxesChange& change) {
  const bool has_scales = has(call, kScales), keeps = call.ints[kPolicy] != kStretch;
  const int64_t n = call.ints[kCount];
  for (int64_t i = 0; i < n; ++i) {
    ResizedAxis& axis = change.axes[call.ints[kAxes + i]];
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

// The pitches of the output, whose last resized axis is `last`.
void set_pitches(ResizeArgs& a, const View& out, int last) {
  const int64_t n = a.axes[a.n_axes - 1].out;
  const bool is_apart = has_gaps(out);
  a.pitch = is_apart && last == out.rank - 2 ? row_stride(out) : a.inner;
  a.row_stride = is_apart && last == out.rank - 1 ? row_stride(out) : n * a.pitch;
  if (!is_apart || last >= out.rank - 2) return;
  a.piece = out.dim(-1), a.piece_pitch = row_stride(out);
  a.n_pieces = n * a.inner / a.piece;
  a.row_stride = a.n_pieces * a.piece_pitch;
}

// Makes the taps of axes [first, last].
void fill_axes(ResizeArgs& a, const Filter& filter, const AxesChange& change, int first, int last,
               TableMemory& memory) {
  a.n_axes = 0;
  for (int i = first; i <= last && i < change.rank; ++i)
    a.axes[a.n_axes++] = make_taps(memory, filter, change.axes[i]);
  if (a.n_axes == 0) a.axes[a.n_axes++] = make_taps(memory, filter, ResizedAxis{});
  a.crops = filter.transform == kCrop;
}

// Input rows per output row.
int rows_per_output(const ResizeArgs& a) {
  int rows = 1;
  for (int i = 0; i + 1 < a.n_axes; ++i) rows *= a.axes[i].n;
  return rows;
}

Status check_rows(const ResizeArgs& a) {
  const int rows = rows_per_output(a);
  if (rows <= kMaxRows) return {};
  return Status::fail("Resize combines %d rows at once, more than %d: resize fewer axes per node",
                      rows, kMaxRows);
}

// A copy of the call, which run-time inputs complete.
struct DynamicArgs : ResizeArgs {
  Call call;
  View in[4], out;
  Filter filter;
};

// Phase 1 of a dynamic Resize, one item: reads the inputs and makes the taps in scratch memory.
Status prepare_dynamic(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const DynamicArgs*>(args);
  auto* resolved = reinterpret_cast<ResizeArgs*>(data.scratch);
  *resolved = a;
  AxesChange change = read_change(a.call, a.out);
  read_dynamic_change(a.call, data, change);
  TableMemory memory{data.scratch + sizeof(ResizeArgs)};
  fill_axes(*resolved, a.filter, change, 0, change.rank - 1, memory);
  if (Status status = check_rows(*resolved); !status.ok()) return status;
  set_pitches(*resolved, a.out, change.rank - 1);
  return {};
}

// Arguments for scales or roi that are data; the scratch memory holds the tables.
ResizeArgs* make_dynamic(const Call& call, Plan& plan, const AxesChange& change) {
  auto* a = plan.make<DynamicArgs>();
  a->is_dynamic = true;
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
  for (int i = 0; i < change.rank; ++i) plan.scratch_bytes += max_bytes(a->filter, change.axes[i]);
  return a;
}

Status check_sizes(const Call& call) {
  const View &in = call.in[0], &out = call.out[0];
  for (int i = 0; i < in.rank; ++i)
    if (in.dims[i] == 0)
      return Status::fail("an axis of 0 cannot become one of %ld", long(out.dims[i]));
  if (call.in[kRoi].is_given() && call.in[kRoi].count() != 2 * call.ints[kCount])
    return Status::fail("tf_crop_and_resize needs a roi of %ld numbers, not %ld",
                        long(2 * call.ints[kCount]), long(call.in[kRoi].count()));
  return {};
}

// The first and last axis that the kernel resizes. A dynamic Resize may resize all; one that
// resizes none still copies along the last.
struct AxisSpan {
  int first, last;
};

AxisSpan resized_span(const Filter& filter, const AxesChange& change, bool is_dynamic) {
  const int rank = change.rank;
  int first = rank, last = 0;
  for (int i = 0; i < rank; ++i) {
    if (!is_dynamic && filter.is_plain(change.axes[i])) continue;
    if (first == rank) first = i;
    last = i;
  }
  if (first == rank) first = last = rank > 0 ? rank - 1 : 0;
  if (is_dynamic) first = 0, last = rank - 1;
  return {first, last};
}

// Makes the taps of a Resize whose scales are known, in memory of the plan.
Status make_tables(ResizeArgs& a, const Filter& filter, const AxesChange& change, AxisSpan span,
                   const View& out, Plan& plan) {
  int64_t bytes = max_bytes(filter, ResizedAxis{});
  for (int i = span.first; i <= span.last && i < change.rank; ++i)
    bytes += max_bytes(filter, change.axes[i]);
  TableMemory memory{plan.table<std::byte>(size_t(bytes))};
  if (memory.at == nullptr) return no_table();
  fill_axes(a, filter, change, span.first, span.last, memory);
  if (Status status = check_rows(a); !status.ok()) return status;
  set_pitches(a, out, span.last);
  return {};
}

}  // namespace

Status resize(const Call& call, Plan& plan) {
  const View &in = call.in[0], &out = call.out[0];
  if (out.count() == 0) return {};
  if (Status status = check_sizes(call); !status.ok()) return status;
  const AxesChange change = read_change(call, out);
  const bool reads = has(call, kScales) || has(call, kRoi) || call.ints[kPolicy] != kStretch;
  const bool is_dynamic = reads && in.rank > 0;
  const Filter filter = read_filter(call);
  ResizeArgs* a = is_dynamic ? make_dynamic(call, plan, change) : plan.make<ResizeArgs>();
  const AxisSpan span = resized_span(filter, change, is_dynamic);
  const int last = span.last;
  a->size = size_of(in.dtype);
  a->extrapolation_bits = uint64_t(call.ints[kExtrapolation]);
  a->inner = in.count(last + 1 < in.rank ? last + 1 : in.rank, in.rank);
  plan.args = a;
  if (is_dynamic) {
    plan.add(prepare_dynamic, 1, 10 * (in.dim(-1) + out.dim(-1)));
  } else {
    Status status = make_tables(*a, filter, change, span, out, plan);
    if (!status.ok()) return status;
  }
  const bool is_nearest = filter.mode == kNearest;
  const int64_t size = in.rank > 0 ? in.dims[last] : 1, out_size = in.rank > 0 ? out.dims[last] : 1;
  if (!is_nearest) plan.local_bytes = size * a->inner * a->size;
  if (a->n_pieces > 0) plan.local_bytes += out_size * a->inner * a->size;
  // Four products take about a nanosecond; a dynamic Resize knows their number only when it runs.
  const int64_t products = is_dynamic ? 8 : rows_per_output(*a) + a->axes[a->n_axes - 1].n;
  const int64_t work = out_size * a->inner * (is_nearest ? 1 : products) / 4;
  plan.add(is_nearest ? nearest_rows : interpolate_rows, out.count() / (out_size * a->inner), work);
  return {};
}

// Sets the output dims from scales or sizes; exactly one of them must be present.
Status resize_sizes(const Call& call, const Data& data, View* out) {
  const View& in = call.in[0];
  const bool has_scales = has(call, kScales), has_sizes = has(call, kSizes);
  const bool keeps = call.ints[kPolicy] != kStretch && has_sizes;
  for (int operand = kScales; operand <= kSizes; ++operand)
    if (has(call, operand) && call.in[operand].count() != call.ints[kCount])
      return Status::fail("%ld scales or sizes are given, and %ld axes are resized",
                          long(call.in[operand].count()), long(call.ints[kCount]));
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

constexpr Kernel kKernels[] = {
    {"resize", Accepts::contiguous, resize},
    {"resize_at_run", Accepts::contiguous, resize, resize_sizes},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(resize, kKernels)
