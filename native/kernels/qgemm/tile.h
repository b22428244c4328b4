// The packed form of 8-bit weights, and the product of a few rows with one panel of it.
//
// A panel has 32 columns; within it, rows come in groups of 4, each column's 4 bytes side by side.
// Weights are signed there and activations unsigned: the other kind is moved by 128. Behind the
// panels lie the sums of the columns.
#pragma once

#include "kernels/kernel.h"
#include "simd/dot.h"

namespace sdx::SDX_ISA::q8 {

constexpr int kPanel = 32;
constexpr int kGroup = 4;
constexpr int kTileVecs = 2;
constexpr int kTileCols = kTileVecs * kLanes;
constexpr int kTileRows = SDX_VEC_BYTES == 64 ? 12 : 4;

// k bytes of each row, lines of them filled up to whole groups.
struct PackedShape {
  int64_t k, n;

  SDX_INLINE int64_t n_groups() const { return (k + kGroup - 1) / kGroup; }
  SDX_INLINE int64_t n_panels() const { return (n + kPanel - 1) / kPanel; }
  SDX_INLINE int64_t panel_bytes() const { return n_groups() * kGroup * kPanel; }
  SDX_INLINE int64_t sums_at() const { return n_panels() * panel_bytes(); }
  SDX_INLINE int64_t bytes() const { return sums_at() + n_panels() * kPanel * 4; }
};

SDX_INLINE i32v splat4(const uint8_t* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return splat(four);
}

// Rows of bytes, `stride` apart, each in lines of 4 * n_groups bytes.
struct Rows {
  const uint8_t* at;
  int64_t stride, n_groups;
  int32_t flip;  // four bytes that turn the rows' into unsigned ones
  int64_t n_lines = 1, line_stride = 0;

  SDX_INLINE Rows from(int64_t row) const {
    Rows rest = *this;
    rest.at += row * stride;
    return rest;
  }
};

// Adds the first R rows times V vectors of columns of a panel.
template <bool is_flipped, int R, int V>
SDX_INLINE void add_groups(const Rows& from, const int8_t* b, i32v (&total)[R][V]) {
  constexpr int kBases = (R + 2) / 3;  // an address is a base and 0, 1 or 2 strides
  const int64_t stride = from.stride, jump = from.line_stride - from.n_groups * kGroup;
  const uint8_t* rows[kBases];
  for (int i = 0; i < kBases; ++i) rows[i] = from.at + 3 * i * stride;
  const i32v flip = splat(from.flip);
  for (int64_t line = 0; line < from.n_lines; ++line) {
    for (int64_t g = 0; g < from.n_groups; ++g) {
      i32v weights[V];
      for (int v = 0; v < V; ++v) memcpy(&weights[v], b + v * SDX_VEC_BYTES, SDX_VEC_BYTES);
#pragma GCC unroll 12
      for (int i = 0; i < R; ++i) {
        i32v x = splat4(rows[i / 3] + i % 3 * stride);
        if constexpr (is_flipped) x ^= flip;
        for (int v = 0; v < V; ++v) total[i][v] = dot4(total[i][v], x, weights[v]);
      }
      b += kPanel * kGroup;
      for (int i = 0; i < kBases; ++i) rows[i] += kGroup;
    }
    for (int i = 0; i < kBases; ++i) rows[i] += jump;
  }
}

// The first R rows times V vectors of columns of a panel, added to `start`. finish(sums[R][V])
// takes the result.
template <int R, int V, class Finish>
SDX_INLINE void tile(const Rows& from, const int8_t* b, const i32v (&start)[V], Finish&& finish) {
  i32v total[R][V];
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) total[i][v] = start[v];
  if (from.flip == 0)
    add_groups<false>(from, b, total);
  else
    add_groups<true>(from, b, total);
  finish(total);
}

}  // namespace sdx::SDX_ISA::q8
