#include "exec/cache_growth.h"

#include <algorithm>

namespace sdx {
namespace {

constexpr int64_t kMinSpareRows = 32;

// Growth by a quarter makes copying amortized constant per row; multiples of 16 keep the number of
// distinct capacities, and with it of specializations, small.
int64_t capacity_for(int64_t rows) {
  const int64_t spare = std::max(kMinSpareRows, rows / 4);
  return (std::min(rows, INT64_MAX / 4) + spare + 15) / 16 * 16;
}

// The caller's buffer for the output of a growth that has `rows`; null if there is none that fits.
const OutputBuffer* buffer_for(const Growth& g, int64_t rows, const RunState& state) {
  for (const OutputBuffer& buffer : state.output_buffers) {
    if (buffer.slot != g.to) continue;
    View extended = state.slots[size_t(g.from)].view;
    extended.dims[g.axis] = rows;
    return buffer.fits(extended) ? &buffer : nullptr;
  }
  return nullptr;
}

}  // namespace

std::vector<Slot> plan_growths(const SegmentSpec& spec, RunState& state) {
  std::vector<Slot> grown(spec.growths.size());
  if (grown.empty()) return grown;
  // The output's rows do not depend on its capacity: any value serves to evaluate them.
  for (const Growth& g : spec.growths) state.dim_sizes[size_t(g.capacity_to)] = 0;
  std::vector<int64_t> registers(spec.sizes.size());
  if (!evaluate(spec.sizes, state.dim_sizes.data(), registers.data())) return grown;
  for (size_t i = 0; i < grown.size(); ++i) {
    const Growth& g = spec.growths[i];
    const Slot& from = state.slots[size_t(g.from)];
    const int64_t old_rows = from.view.dims[g.axis], rows = registers[size_t(g.rows)];
    state.dim_sizes[size_t(g.capacity_from)] =
        from.capacity == nullptr ? old_rows : from.capacity->rows;
    if (const OutputBuffer* buffer = buffer_for(g, rows, state)) {
      grown[i].block = buffer->block();
      state.dim_sizes[size_t(g.capacity_to)] = rows;
      continue;
    }
    const bool is_in_place = state.grows_in_place && from.capacity != nullptr && rows > old_rows &&
                             from.capacity->claim(old_rows, rows);
    if (is_in_place) {
      grown[i].block = from.block;
      grown[i].capacity = from.capacity;
    }
    const bool has_spare = state.grows_in_place && g.has_spare && rows != old_rows;
    state.dim_sizes[size_t(g.capacity_to)] = is_in_place ? from.capacity->rows
                                             : has_spare ? capacity_for(rows)
                                                         : rows;
  }
  return grown;
}

int32_t extended_input(const SegmentSpec& spec, int32_t output) {
  for (const Growth& g : spec.growths) {
    if (g.to != output) continue;
    std::vector<char> is_input(spec.values.size());  // the input, and views of it
    for (size_t v = 0; v < spec.values.size(); ++v) {
      const ValueSpec& value = spec.values[v];
      is_input[v] = value.storage == Storage::slot
                        ? value.at == g.from
                        : value.storage >= Storage::reshaped && is_input[size_t(value.at)];
    }
    int n_readers = 0;
    for (const StepSpec& step : spec.steps)
      for (const int32_t input : step.inputs) n_readers += input >= 0 && is_input[size_t(input)];
    return n_readers == 1 ? g.from : -1;
  }
  return -1;
}

void set_strides_with_capacity(View& view, int axis, int64_t capacity) {
  const int64_t rows = view.dims[axis];
  view.dims[axis] = capacity;
  view.set_contiguous_strides();
  view.dims[axis] = rows;
}

}  // namespace sdx
