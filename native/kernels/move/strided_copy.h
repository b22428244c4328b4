// Copies between tensors of any strides: Transpose, Concat, Split, Tile, Expand, Slice and layout
// changes all come down to one StridedCopy.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

constexpr int kCopyRank = 2 * kMaxRank;  // Tile splits an axis into repeats and elements

// dims with byte strides on both sides. `plan_copy` canonicalizes it into one of two cases:
// contiguous units (the last axes, where they have no gaps on either side), copied by memcpy, or
// tiles of a 2-d transpose between the axis that is dense in the source and the last one, which is
// dense in the target. All remaining axes are walked like an odometer.
struct StridedCopy {
  int rank = 0;
  int64_t dims[kCopyRank] = {};
  int64_t from[kCopyRank] = {};
  int64_t to[kCopyRank] = {};
  int64_t unit = 0;         // bytes that are contiguous on both sides
  int64_t from_offset = 0;  // bytes, from the tensors' starts
  int64_t to_offset = 0;

  int64_t n_chunks = 1;                   // chunks of a long unit
  int64_t column = 0, column_stride = 0;  // transpose: the source's dense axis, its target stride
  int64_t row = 0, row_stride = 0;        // transpose: the target's dense axis, its source stride
  int64_t column_tiles = 0, row_tiles = 0;

  // Adds an inner axis.
  SDX_INLINE void axis(int64_t dim, int64_t from_bytes, int64_t to_bytes) {
    dims[rank] = dim;
    from[rank] = from_bytes;
    to[rank++] = to_bytes;
  }
};

// Chooses the case; returns the number of items of `run_copy`, whose cost is `copy_work`.
int64_t plan_copy(StridedCopy& copy);
int64_t copy_work(const StridedCopy& copy);

// Items [begin, end); any split of the range copies the same bytes.
void run_copy(const StridedCopy& copy, const void* from, void* to, int64_t begin, int64_t end);

// The copy of a view into a contiguous tensor of the same dims.
void pack_copy(const View& from, StridedCopy& copy);

}  // namespace sdx::SDX_ISA
