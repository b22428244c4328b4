// Views of a segment's values for concrete sizes: dims from registers, strides from their storage.
#pragma once

#include <vector>

#include "exec/segment.h"

namespace sdx {

// Sums of bytes of all values stay below INT64_MAX with this limit on each of them.
constexpr int64_t kMaxBytes = INT64_MAX / 4;

inline int64_t bytes_of(const View& view) { return view.count() * size_of(view.dtype); }

// The views of all values; false where a dim is negative or a shape exceeds what memory can hold.
bool make_views(const SegmentSpec& spec, const RunState& state, const int64_t* registers,
                std::vector<View>& views);

}  // namespace sdx
