// A tensor with known sizes: element type, shape and strides. Its address is known only when a run
// has allocated memory, except for constants.
#pragma once

#include <cstdint>

#include "base/assert.h"
#include "base/dtype.h"
#include "base/inline.h"

namespace sdx {

constexpr int kMaxRank = 10;  // kernels keep per-axis state in fixed arrays of this size

struct View {
  DType dtype = DType::none;
  int rank = -1;  // -1: an optional operand that is not given
  int64_t dims[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};  // in elements; 0 repeats
  const void* data = nullptr;      // the bytes of a constant; null for all others

  SDX_INLINE bool is_given() const { return rank >= 0; }
  SDX_INLINE int64_t dim(int axis) const { return dims[at(axis)]; }
  SDX_INLINE int64_t stride(int axis) const { return strides[at(axis)]; }

  // An axis counted from the front; negative ones count from the back.
  SDX_INLINE int at(int axis) const {
    SDX_ASSERT(axis >= -rank && axis < rank);
    return axis < 0 ? axis + rank : axis;
  }

  // Elements in axes [begin, end).
  SDX_INLINE int64_t count(int begin, int end) const {
    SDX_ASSERT(begin >= 0 && end <= kMaxRank);
    int64_t n = 1;
    for (int i = begin; i < end; ++i) n *= dims[i];
    return n;
  }
  SDX_INLINE int64_t count() const { return count(0, rank); }

  // Whether the elements are stored in row-major order without gaps. Strides of axes of size 1 do
  // not matter, and a tensor without elements is contiguous.
  SDX_INLINE bool is_contiguous() const {
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (dims[i] != 1 && strides[i] != step) return count() == 0;
      step *= dims[i];
    }
    return true;
  }

  // Sets row-major strides for the dims.
  SDX_INLINE void set_contiguous_strides() {
    SDX_ASSERT(rank <= kMaxRank);
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = step;
      step *= dims[i];
    }
  }
};

}  // namespace sdx
