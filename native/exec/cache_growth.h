// Key/value caches that grow in place. An output that is an input with rows appended (`Growth`) is
// allocated with spare capacity. Fed back unchanged, the next run claims the rows after the last
// one and writes only the new rows, without copying the old ones. A second run from the same rows
// finds them claimed and copies. Capacities are named dims, so that a specialization knows all
// strides. Where the caller has a buffer for the output, that is its block; it may be the input's
// own memory if nothing else reads that (`extended_input`). Thread-safe: Capacity::claim is the
// only shared write.
#pragma once

#include "exec/segment.h"

namespace sdx {

// Sets the capacities of a segment's growths, as names of `state`. Returns the slots of their
// outputs: with the caller's buffer, or the input's block where its next rows could be claimed,
// else without one yet.
std::vector<Slot> plan_growths(const SegmentSpec& spec, RunState& state);

// The input slot of the growth whose output is this slot, if no other step of the segment reads it;
// -1: there is none.
int32_t extended_input(const SegmentSpec& spec, int32_t output);

// Row-major strides for a view whose block has `capacity` rows along an axis.
void set_strides_with_capacity(View& view, int axis, int64_t capacity);

}  // namespace sdx
