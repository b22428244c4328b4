// Outputs with gaps between rows: parts of a tensor that a Concat along the last axis joins,
// written in place.
#pragma once

#include "base/view.h"

namespace sdx::SDX_ISA {

// Elements from one row of the last axis to the next. All axes before it have a single stride.
SDX_INLINE int64_t row_stride(const View& view) {
  return view.rank > 1 ? view.strides[view.rank - 2] : view.count();
}

// Whether rows are not contiguous.
SDX_INLINE bool has_gaps(const View& view) {
  return view.rank > 1 && row_stride(view) != view.dim(-1);
}

}  // namespace sdx::SDX_ISA
