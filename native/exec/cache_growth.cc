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
    const bool is_in_place = state.grows_in_place && from.capacity != nullptr && rows > old_rows &&
                             from.capacity->claim(old_rows, rows);
    if (is_in_place) {
      grown[i].block = from.block;
      grown[i].capacity = from.capacity;
    }
    state.dim_sizes[size_t(g.capacity_from)] =
        from.capacity == nullptr ? old_rows : from.capacity->rows;
    state.dim_sizes[size_t(g.capacity_to)] = !state.grows_in_place ? rows
                                             : is_in_place         ? from.capacity->rows
                                                                   : capacity_for(rows);
  }
  return grown;
}

void set_strides_with_capacity(View& view, int axis, int64_t capacity) {
  const int64_t rows = view.dims[axis];
  view.dims[axis] = capacity;
  view.set_contiguous_strides();
  view.dims[axis] = rows;
}

}  // namespace sdx
