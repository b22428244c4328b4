#include "exec/views.h"

#include <algorithm>

#include "exec/cache_growth.h"

namespace sdx {
namespace {

// Dims from registers. False where one is negative or the shape exceeds what memory can hold.
bool set_dims(const ValueSpec& spec, const int64_t* registers, View& view) {
  view.dtype = spec.dtype;
  view.rank = int(spec.dims.size());
  int64_t bytes = size_of(spec.dtype);
  bool fits = true;
  for (int i = 0; i < view.rank; ++i) {
    const int64_t d = registers[spec.dims[size_t(i)]];
    view.dims[i] = d;
    // A dim of 0 counts as 1: strides are products of the other dims and must not overflow either.
    if (d < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(d, 1), &bytes)) fits = false;
  }
  return fits && bytes <= kMaxBytes;
}

void permute(const View& from, const std::vector<int64_t>& axes, View& to) {
  for (int i = 0; i < to.rank; ++i) to.strides[i] = from.strides[axes[size_t(i)]];
}

// Broadcasts by stride 0, aligned at the last axis.
void expand(const View& from, View& to) {
  const int more = to.rank - from.rank;
  for (int i = 0; i < to.rank; ++i) {
    const bool repeats = i < more || (from.dims[i - more] == 1 && to.dims[i] != 1);
    to.strides[i] = repeats ? 0 : from.strides[i - more];
  }
}

void slice(const View& from, const std::vector<int64_t>& numbers, View& to) {
  for (int i = 0; i < to.rank; ++i) to.strides[i] = from.strides[i] * numbers[size_t(to.rank + i)];
}

// Elements between consecutive rows (of the last axis) of a view whose other axes are packed.
int64_t row_pitch(const View& view) { return view.strides[view.rank - 2]; }

// Row-major strides with a given pitch of the last axis' rows.
void set_strides_with_pitch(View& view, int64_t pitch) {
  view.strides[view.rank - 1] = 1;
  for (int i = view.rank - 2; i >= 0; --i, pitch *= view.dims[i + 1]) view.strides[i] = pitch;
}

void set_strides(const ValueSpec& spec, const std::vector<View>& views, const int64_t* registers,
                 View& view) {
  switch (spec.storage) {
    case Storage::exported:
      if (spec.numbers.empty()) return view.set_contiguous_strides();
      return set_strides_with_capacity(view, int(spec.numbers[0]), registers[spec.numbers[1]]);
    case Storage::permuted: return permute(views[size_t(spec.at)], spec.numbers, view);
    case Storage::sliced: return slice(views[size_t(spec.at)], spec.numbers, view);
    case Storage::expanded: return expand(views[size_t(spec.at)], view);
    case Storage::concat_slice:
      return set_strides_with_pitch(view, row_pitch(views[size_t(spec.at)]));
    default: return view.set_contiguous_strides();
  }
}

// Whether a value is a slice of a Concat output, or a reshaped one.
bool is_concat_slice(const SegmentSpec& spec, int32_t id) {
  while (spec.values[size_t(id)].storage == Storage::reshaped) id = spec.values[size_t(id)].at;
  return spec.values[size_t(id)].storage == Storage::concat_slice;
}

}  // namespace

bool make_views(const SegmentSpec& spec, const RunState& state, const int64_t* registers,
                std::vector<View>& views) {
  views.assign(spec.values.size(), View());
  bool fits = true;
  for (size_t i = 0; i < spec.values.size(); ++i) {
    const ValueSpec& value = spec.values[i];
    View& view = views[i];
    if (value.storage == Storage::slot) {
      view = state.slots[size_t(value.at)].view;
      continue;
    }
    if (!set_dims(value, registers, view))
      fits = false;
    else if (value.storage != Storage::concat_slice)
      set_strides(value, views, registers, view);
    if (value.storage == Storage::constant) view.data = value.data;
  }
  if (!fits) return false;
  // A Concat output is listed after its slices, and may be a slice of the next: go backwards.
  for (size_t i = spec.values.size(); i-- > 0;)
    if (spec.values[i].storage == Storage::concat_slice)
      set_strides(spec.values[i], views, registers, views[i]);
  // Reshaped slices keep the pitch: only axes before the last are split or merged.
  for (size_t i = 0; i < spec.values.size(); ++i)
    if (spec.values[i].storage == Storage::reshaped && is_concat_slice(spec, spec.values[i].at))
      set_strides_with_pitch(views[i], row_pitch(views[size_t(spec.values[i].at)]));
  return true;
}

}  // namespace sdx
