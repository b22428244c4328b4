// 8-bit matrix products with zero-point correction and requantization; convolutions are products
// whose rows are gathered windows (im2col).
//
//   sum_k (x - zx) (w - zw) = sum_k x w  -  zw * sum_k x  -  zx * sum_k w  +  K zx zw
//
// The first term is the accumulator. The last two belong to a column and are its start value
// (`offset`); the second is subtracted per row, and only where weights have a zero point.
#pragma once

#include "kernels/quantize/tile_int8.h"

namespace sdx::SDX_ISA::int8 {

// Operands of all 8-bit products. Scales are float32; all but the first two are optional.
enum Operand : int { kX, kW, kXScale, kXZero, kWScale, kWZero, kBias, kYScale, kYZero, kOperands };

// Per-column parameters: y = (accumulator - zero * row_sum) * scale + shift, where accumulators
// start at `offset`.
struct ColumnParams {
  float* scale;     // x_scale * w_scale / y_scale
  float* shift;     // float bias / y_scale
  int32_t* offset;  // terms of the zero points, and an int32 bias
  int32_t* zero;    // the weights' zero points
};
// Bounds of the output codes, relative to the zero point, and the zero point.
struct Output {
  float low, high, zero;
};

struct Gemm;
// Writes rows [row, row + n) of job `job` to `to`, p.stride bytes apart.
using Gather = void (*)(const Gemm& p, const Data& data, int64_t job, int64_t row, int64_t n,
                        uint8_t* to);

// The memory layout of rows that are read in place, without gathering.
struct RowLayout {
  Runs runs;                               // of a row
  int64_t jobs = 1;                        // of an image
  int64_t job_bytes = 0, image_bytes = 0;  // strides
  int64_t at = -1;                         // scratch offset of padded images; -1: the first operand
};

struct Gemm {
  PackedShape shape;
  int64_t depth;   // K without padding
  int64_t n_jobs;  // independent products of m rows each: batch entries, images, groups
  int64_t m;
  int64_t n_packs;  // weight matrices: one for all jobs, one per job, or one per group
  int64_t out_stride;
  int64_t row_block, n_row_blocks;  // rows of an item
  int64_t panels, n_panel_blocks;   // panels of an item
  int64_t stride;                   // bytes between rows
  Gather gather;                    // null: rows are read in place
  RowLayout layout;
  const void* source;        // arguments of `gather`
  int64_t packed_at;         // scratch offset of weights packed at run time; -1: packed before
  int64_t columns_at;        // scratch offset of the column parameters
  const std::byte* columns;  // the same where they are constant: computed once, in the plan
  DType x, w, bias, out;
  uint8_t flip;  // XOR mask that makes activations unsigned: 0 or 0x80
  bool has_row_sums;
  int64_t n_x_zero, n_w_scale, n_w_zero;  // elements of these operands, 0 if absent
  bool is_grouped;  // jobs alternate over groups, which write neighbouring output columns
  float low, high;  // bounds of the real output
};

// n columns of weights with their sums, the first of which is column `first` of all; `position`
// maps a column to its position in the parameter arrays (null: the identity).
struct WeightColumns {
  const int32_t* column_sums;
  int64_t n, first;
  int64_t (*position)(int64_t column);
};

// The code of 0 in x, which the padding of convolutions consists of.
SDX_INLINE uint8_t padding(const Data& data) {
  return data.in[kXZero] == nullptr ? 0 : *input<uint8_t>(data, kXZero);
}

// Reads types, bounds and the presence of operands; fills output bounds and column parameters.
void read_operands(Gemm& p, const Call& call);
void make_output(const Gemm& p, const Data& data, Output& out);
void make_columns(const Gemm& p, const Data& data, const WeightColumns& w, const ColumnParams& to);

// Whether all operands but x are constant; `constants` receives their data.
bool find_constants(const Call& call, const void* (&constants)[kOperands]);

// Whether rows may be read in place: whole groups, and a stride that does not map all rows of a
// tile to the same L1 set (64 sets of 64 bytes).
SDX_INLINE bool can_read_in_place(int64_t stride) {
  return stride % kGroup == 0 && stride % 4096 != 0;
}

// Chooses blocks, and adds the phases that compute column parameters and products. Operands have
// been read; plan.scratch_bytes are in use already.
Status plan_gemm(Gemm& p, const Call& call, Plan& plan);

// Copies n bytes; the last vector overlaps the one before it instead of a scalar tail.
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

// The same for short runs into a buffer with slack: whole vectors are stored, and what they write
// past n bytes is overwritten later. Falls back to n bytes where a load would pass `end`.
SDX_INLINE void copy_run(uint8_t* to, const uint8_t* from, int64_t n, const uint8_t* end) {
  constexpr int64_t lanes = SDX_VEC_BYTES;
  if (end - from < (n + lanes - 1) / lanes * lanes) return copy_bytes(to, from, n);
  for (int64_t i = 0; i < n; i += lanes) store(to + i, load(from + i));
}

}  // namespace sdx::SDX_ISA::int8
