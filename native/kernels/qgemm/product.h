// Products of 8-bit matrices with what follows: zero points, scales, bias, and the output's type.
#pragma once

#include "kernels/qgemm/tile.h"

namespace sdx::SDX_ISA::q8 {

// Operands of every row of the family. Scales are float32; all but the first two may be missing.
enum Operand : int { kX, kW, kXScale, kXZero, kWScale, kWZero, kBias, kYScale, kYZero, kOperands };

// What happens to the sums of one column, and what it takes for all columns.
struct Columns {
  float* scale;
  float* shift;     // added after scaling
  int32_t* offset;  // added before
  int32_t* zero;    // the weights' zero points, to be taken off for every row
};
struct Output {
  float low, high, zero;  // of the steps that are written
};

struct Product;
// Rows [row, row + n) of job `job`, p.stride bytes apart.
using Gather = void (*)(const Product& p, const Data& data, int64_t job, int64_t row, int64_t n,
                        uint8_t* to);

// Where rows lie that are not gathered.
struct Place {
  int64_t n_lines = 1, line_stride = 0;  // of a row
  int64_t jobs = 1;                      // of an image
  int64_t job_bytes = 0, image_bytes = 0;
  int64_t at = -1;  // of images that are made in the scratch; -1: they are the first operand
};

struct Product {
  PackedShape shape;
  int64_t depth;   // products of a sum
  int64_t n_jobs;  // products of m rows each
  int64_t m;
  int64_t n_packs;  // sets of weights: one for all jobs, one for each, or one for each group
  int64_t out_stride;
  int64_t row_block, n_row_blocks;  // rows of an item
  int64_t panels, n_panel_blocks;   // panels of an item
  int64_t stride;                   // of rows
  Gather gather;                    // null: rows are read where they lie
  Place place;
  const void* source;        // what `gather` needs to know
  int64_t packed_at;         // of weights packed on the way, in the scratch; -1: they come packed
  int64_t columns_at;        // of what belongs to columns, in the scratch
  const std::byte* columns;  // the same, where it is known before a run
  DType x, w, bias, out;
  uint8_t flip;  // what turns the rows' bytes into unsigned ones
  bool has_row_sums;
  int64_t n_x_zero, n_w_scale, n_w_zero;  // elements of these operands, 0 if not given
  bool is_grouped;  // jobs go through the packs, and through the output's columns
  float low, high;  // bounds of the real output
};

// The sums of n columns of weights, the first of which is the first-th of all; `place` says where
// what belongs to a column goes, if not in order.
struct Weighed {
  const int32_t* sums;
  int64_t n, first;
  int64_t (*place)(int64_t column);
};

void read_operands(Product& p, const Call& call);
void make_output(const Product& p, const Data& data, Output& out);
void make_columns(const Product& p, const Data& data, const Weighed& w, const Columns& to);

// Whether all that belongs to columns is constant; `constants` gets where it lies.
bool finds_constants(const Call& call, const void* (&constants)[kOperands]);

// Whether rows may be read where they lie: in whole groups, and not such that those of a tile fall
// on one set of a cache.
SDX_INLINE bool lies_well(const Product& p, int64_t stride) {
  return !p.has_row_sums && stride % kGroup == 0 && stride % 4096 != 0;
}

// Chooses tiles, and adds the phases that make columns and products. Operands have been read, and
// plan.scratch_bytes are taken.
Status plan_product(Product& p, const Call& call, Plan& plan);

SDX_INLINE void copy_bytes(uint8_t* to, const uint8_t* from, int64_t n) {
  constexpr int64_t lanes = SDX_VEC_BYTES;
  if (n >= lanes) {
    for (int64_t i = 0; i + lanes <= n; i += lanes) store(to + i, load(from + i));
    store(to + n - lanes, load(from + n - lanes));
    return;
  }
  const auto move = [&]<class T>(int64_t at, T) {
    T v;
    memcpy(&v, from + at, sizeof v);
    memcpy(to + at, &v, sizeof v);
  };
  if (n >= 8) {
    for (int64_t i = 0; i + 8 <= n; i += 8) move(i, uint64_t{});
    move(n - 8, uint64_t{});
  } else if (n >= 4) {
    move(0, uint32_t{});
    move(n - 4, uint32_t{});
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

// The same for short runs: whole vectors, of which what lies behind n is written over later. Where
// a vector would reach behind `end`, only n bytes are read.
SDX_INLINE void copy_run(uint8_t* to, const uint8_t* from, int64_t n, const uint8_t* end) {
  constexpr int64_t lanes = SDX_VEC_BYTES;
  if (end - from < (n + lanes - 1) / lanes * lanes) return copy_bytes(to, from, n);
  for (int64_t i = 0; i < n; i += lanes) store(to + i, load(from + i));
}

}  // namespace sdx::SDX_ISA::q8
