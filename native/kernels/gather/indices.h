// Checked ONNX indices: negative ones count from the end of the axis, and one that is still outside
// is an error of the data, reported with its position.
#pragma once

#include "kernels/move/integer_operand.h"

namespace sdx::SDX_ISA {

// Brings a negative index into [0, axis_len); false where it is outside. The unsigned comparison
// covers both bounds.
SDX_INLINE bool normalize_index(int64_t& index, int64_t axis_len) {
  if (index < 0) index += axis_len;
  return uint64_t(index) < uint64_t(axis_len);
}

SDX_INLINE Status index_error(int64_t index, int64_t position, int64_t axis_len, int axis) {
  return Status::fail("index %ld at position %ld is outside [-%ld, %ld) of axis %d", long(index),
                      long(position), long(axis_len), long(axis_len), axis);
}

// Index tuples of GatherND and ScatterND, which address the axes [first_axis, first_axis + width).
// Offsets are in slices: everything after the last indexed axis is one unit.
struct IndexTuples {
  int width = 0;
  int first_axis = 0;
  int64_t dims[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  SDX_INLINE void set(const View& data, int first, int n) {
    width = n;
    first_axis = first;
    int64_t step = 1;
    for (int i = n - 1; i >= 0; --i) {
      dims[i] = data.dims[first + i];
      strides[i] = step;
      step *= dims[i];
    }
  }

  SDX_INLINE Status offset(Integers index, int64_t tuple, int64_t& sum) const {
    sum = 0;
    for (int i = 0; i < width; ++i) {
      int64_t at = index[tuple * width + i];
      if (!normalize_index(at, dims[i]))
        return index_error(index[tuple * width + i], tuple, dims[i], first_axis + i);
      sum += at * strides[i];
    }
    return {};
  }
};

}  // namespace sdx::SDX_ISA
