// Indices as places: counted from the front, and checked.
#pragma once

#include "kernels/move/words.h"

namespace sdx::SDX_ISA {

// Whether an index lies within an axis; one below 0 counts from the end.
SDX_INLINE bool place(int64_t& index, int64_t axis_len) {
  if (index < 0) index += axis_len;
  return uint64_t(index) < uint64_t(axis_len);
}

SDX_INLINE Status outside(int64_t index, int64_t position, int64_t axis_len, int axis) {
  return Status::fail("index %ld at position %ld is outside [-%ld, %ld) of axis %d", long(index),
                      long(position), long(axis_len), long(axis_len), axis);
}

// Finds the offset of tuples of indices in units of what lies behind their last axis.
struct Tuples {
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
      if (!place(at, dims[i]))
        return outside(index[tuple * width + i], tuple, dims[i], first_axis + i);
      sum += at * strides[i];
    }
    return {};
  }
};

}  // namespace sdx::SDX_ISA
