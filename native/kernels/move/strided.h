// Copies between tensors of any strides: what moving data comes down to.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

constexpr int kMoveRank = 2 * kMaxRank;  // Tile and the like split axes in two

// dims with byte strides on both sides. `plan_move` brings it into the form that `run_move` runs:
// units of bytes that are copied whole (the last axes, where they lie without gaps on both sides),
// or tiles of a transpose between the axis that is dense in the source and the last one.
struct Move {
  int rank = 0;
  int64_t dims[kMoveRank] = {};
  int64_t from[kMoveRank] = {};
  int64_t to[kMoveRank] = {};
  int64_t unit = 0;         // bytes
  int64_t from_offset = 0;  // bytes, from the tensors' starts
  int64_t to_offset = 0;

  int64_t n_chunks = 1;                 // parts of a long unit
  int64_t column = 0, column_step = 0;  // of a transpose: the source's dense axis ...
  int64_t row = 0, row_step = 0;        // ... and the last axis with its stride in the source
  int64_t column_tiles = 0, row_tiles = 0;

  // Adds an inner axis.
  SDX_INLINE void axis(int64_t dim, int64_t from_bytes, int64_t to_bytes) {
    dims[rank] = dim;
    from[rank] = from_bytes;
    to[rank++] = to_bytes;
  }
};

// Settles how to move; the number of items that `run_move` takes, and the cost of one.
int64_t plan_move(Move& move);
int64_t move_work(const Move& move);

void run_move(const Move& move, const void* from, void* to, int64_t begin, int64_t end);

// A view to packed bytes of the same dims.
void move_of(const View& from, Move& move);

}  // namespace sdx::SDX_ISA
