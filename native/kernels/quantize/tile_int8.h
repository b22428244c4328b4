// The packed layout of 8-bit weights, and the register tile that multiplies rows of activations by
// one panel of it: u8 x s8 dot products of four (VNNI's vpdpbusd, or its emulation in simd/dot.h).
//
// A panel has 32 columns; within it, k advances in groups of 4, and the 4 bytes of a column are
// adjacent, so that one 32-bit lane holds a column's group. The instruction takes unsigned
// activations and signed weights: the other signedness is converted by XOR with 0x80, which shifts
// values and zero points by 128. The sums of the columns, needed for the zero points of
// activations, follow the panels. The layout is the same for every ISA, since packs store it.
#pragma once

#include "kernels/kernel.h"
#include "simd/dot.h"

namespace sdx::SDX_ISA::int8 {

constexpr int kPanel = 32;
constexpr int kGroup = 4;
constexpr int kTileVecs = 2;
constexpr int kTileCols = kTileVecs * kLanes;
// 12 x 2 accumulators of the 32 registers of AVX-512, 4 x 2 of 16 elsewhere: the rest holds
// weights, the broadcast activations and, without VNNI, temporaries of the emulated dot product.
constexpr int kTileRows = SDX_VEC_BYTES == 64 ? 12 : 4;

// Sizes of packed weights [k, n]; k counts the padding that fills window lines up to whole groups.
struct PackedShape {
  int64_t k, n;

  SDX_INLINE int64_t n_groups() const { return (k + kGroup - 1) / kGroup; }
  SDX_INLINE int64_t n_panels() const { return (n + kPanel - 1) / kPanel; }
  SDX_INLINE int64_t panel_bytes() const { return n_groups() * kGroup * kPanel; }
  SDX_INLINE int64_t column_sums_at() const { return n_panels() * panel_bytes(); }
  SDX_INLINE int64_t bytes() const { return column_sums_at() + n_panels() * kPanel * 4; }
};

// The same four activations in every lane.
SDX_INLINE i32v splat4(const uint8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return splat(four);
}

// How the bytes of a row are laid out: n_lines lines of n_runs runs of contiguous bytes. Matrices
// have one run per row; a convolution that reads its image in place has a line per window line, and
// a run for all taps of the line or, if the convolution is dilated, for each.
struct Runs {
  int64_t n_lines = 1, line_stride = 0;
  int64_t n_runs = 1, run_stride = 0;

  SDX_INLINE int64_t count() const { return n_lines * n_runs; }
};

// Rows of activations, `stride` bytes apart, each in runs of 4 * n_groups bytes.
struct Rows {
  const uint8_t* at;
  int64_t stride, n_groups;
  int32_t flip;  // XOR mask that makes four activations unsigned: 0 or 0x80808080
  Runs runs = {};

  SDX_INLINE Rows from(int64_t row) const {
    Rows rest = *this;
    rest.at += row * stride;
    return rest;
  }
};

// Adds the products of the first R rows with V vectors of columns of a panel to `total`.
template <bool is_flipped, int R, int V>
SDX_INLINE void add_groups(const Rows& from, const int8_t* b, i32v (&total)[R][V]) {
  // x86 addresses a base plus 0, 1 or 2 times an index: 12 rows need 4 pointers, not 12.
  constexpr int kBases = (R + 2) / 3;
  const int64_t stride = from.stride, gap = from.runs.run_stride - from.n_groups * kGroup;
  const int64_t line_gap = from.runs.line_stride - from.runs.n_runs * from.runs.run_stride;
  const uint8_t* rows[kBases];
  for (int i = 0; i < kBases; ++i) rows[i] = from.at + 3 * i * stride;
  const i32v flip = splat(from.flip);
  // One loop over the runs of all lines: a third level costs registers in the innermost.
  int64_t run = 0;
  for (int64_t left = from.runs.count(); left > 0; --left) {
    for (int64_t g = 0; g < from.n_groups; ++g) {
      i32v weights[V];
      for (int v = 0; v < V; ++v) {
        memcpy(&weights[v], b + v * SDX_VEC_BYTES, SDX_VEC_BYTES);
        weights[v] = pinned(weights[v]);
      }
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        i32v x = splat4(rows[i / 3] + i % 3 * stride);
        if constexpr (is_flipped) x ^= flip;
        for (int v = 0; v < V; ++v) total[i][v] = dot4(total[i][v], x, weights[v]);
      }
      b += kPanel * kGroup;
      for (int i = 0; i < kBases; ++i) rows[i] += kGroup;
    }
    if (++run == from.runs.n_runs) {
      run = 0;
      for (int i = 0; i < kBases; ++i) rows[i] += line_gap;
    }
    for (int i = 0; i < kBases; ++i) rows[i] += gap;
  }
}

// Multiplies the first R rows by V vectors of columns of a panel, starting from start_at(row,
// vector), and calls finish(accumulators[R][V]).
template <int R, int V, class StartAt, class Finish>
SDX_INLINE void tile(const Rows& from, const int8_t* b, StartAt&& start_at, Finish&& finish) {
  i32v total[R][V];
#pragma GCC unroll 12
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) total[i][v] = start_at(i, v);
  if (from.flip == 0)
    add_groups<false>(from, b, total);
  else
    add_groups<true>(from, b, total);
  finish(total);
}

}  // namespace sdx::SDX_ISA::int8
