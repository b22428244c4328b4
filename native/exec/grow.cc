#include "exec/grow.h"

#include <algorithm>

namespace sdx {
namespace {

constexpr int64_t kLeastSpare = 32;  // rows

int64_t room_for(int64_t rows) {
  const int64_t spare = std::max(kLeastSpare, rows / 4);
  return (std::min(rows, INT64_MAX / 4) + spare + 15) / 16 * 16;
}

}  // namespace

std::vector<Slot> plan_growths(const SegmentSpec& spec, RunState& state) {
  std::vector<Slot> made(spec.growths.size());
  if (made.empty()) return made;
  for (const Growth& g : spec.growths) state.names[size_t(g.room_to)] = 0;
  std::vector<int64_t> registers(spec.sizes.size());
  if (!evaluate(spec.sizes, state.names.data(), registers.data())) return made;
  for (size_t i = 0; i < made.size(); ++i) {
    const Growth& g = spec.growths[i];
    const Slot& from = state.slots[size_t(g.from)];
    const int64_t had = from.view.dims[g.axis], rows = registers[size_t(g.rows)];
    const bool stays =
        state.grows_in_place && from.room != nullptr && rows > had && from.room->claim(had, rows);
    if (stays) {
      made[i].block = from.block;
      made[i].room = from.room;
    }
    state.names[size_t(g.room_from)] = from.room == nullptr ? had : from.room->rows;
    state.names[size_t(g.room_to)] = !state.grows_in_place ? rows
                                     : stays               ? from.room->rows
                                                           : room_for(rows);
  }
  return made;
}

void pack_with_room(View& view, int axis, int64_t room) {
  const int64_t rows = view.dims[axis];
  view.dims[axis] = room;
  view.pack();
  view.dims[axis] = rows;
}

}  // namespace sdx
