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

// R rows of `a`, `stride` bytes apart, times V vectors of columns of a panel. finish(row, vector,
// sums) takes the result.
template <int R, int V, class Finish>
SDX_INLINE void tile(const uint8_t* a, int64_t stride, const int8_t* b, int64_t n_groups,
                     Finish&& finish) {
  constexpr int kBases = (R + 2) / 3;  // an address is a base and 0, 1 or 2 strides
  const uint8_t* rows[kBases];
  for (int i = 0; i < kBases; ++i) rows[i] = a + 3 * i * stride;
  i32v total[R][V] = {};
  for (int64_t g = 0; g < n_groups; ++g) {
    i32v weights[V];
    for (int v = 0; v < V; ++v) memcpy(&weights[v], b + v * SDX_VEC_BYTES, SDX_VEC_BYTES);
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) {
      const i32v x = splat4(rows[i / 3] + i % 3 * stride);
      for (int v = 0; v < V; ++v) total[i][v] = dot4(total[i][v], x, weights[v]);
    }
    b += kPanel * kGroup;
    for (int i = 0; i < kBases; ++i) rows[i] += kGroup;
  }
  // Unrolled as a whole, or the sums would have to lie in memory.
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v)
#pragma GCC unroll 12
    for (int i = 0; i < R; ++i) finish(i, v, total[i][v]);
}

}  // namespace sdx::SDX_ISA::q8
