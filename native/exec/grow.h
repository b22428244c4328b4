// Tensors that grow in place: which block an output is made in, and with how much room.
#pragma once

#include "exec/segment.h"

namespace sdx {

// Settles the rooms of a segment's growths, as names of `state`, and the blocks of their outputs:
// that of the input where it has room and its rows are the last in it, else none yet.
std::vector<Slot> plan_growths(const SegmentSpec& spec, RunState& state);

// Row-major strides for a view that has room for more rows along an axis.
void pack_with_room(View& view, int axis, int64_t room);

}  // namespace sdx
