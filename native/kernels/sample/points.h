// Blocks of points at fractional coordinates: the offsets of their neighbours in an image plane,
// the interpolation weights, and the weighted sums. Loops run over the points of a block, tap by
// tap, so that compilers vectorize them.
#pragma once

#include "kernels/elements.h"
#include "kernels/sample/interleaved.h"
#include "kernels/sample/taps.h"

namespace sdx::SDX_ISA {

constexpr int64_t kBlock = 128;  // points: offsets and weights of 64 taps (tricubic) stay in L2
constexpr int kMaxAxes = 3;

// Neighbours of a block's points along one axis, by tap.
template <class C>
struct BlockTaps {
  int32_t index[kMaxTaps][kBlock];
  C weight[kMaxTaps][kBlock];
};

// Linear taps with zero padding, without branches. Coordinates are clamped to where both neighbours
// are outside anyway, so that they fit int32; NaN becomes such a coordinate.
template <class C>
SDX_INLINE void linear_taps(const C* coordinates, int64_t n, int64_t size, BlockTaps<C>& taps) {
  const C end = C(size + 2);
  const auto limit = uint32_t(size);
  for (int64_t p = 0; p < n; ++p) {
    C x = coordinates[p] >= -3 ? coordinates[p] : C(-3);  // NaN too
    x = x > end ? end : x;
    int32_t low = int32_t(x);
    low -= C(low) > x;
    const C fraction = x - C(low);
    taps.index[0][p] = uint32_t(low) < limit ? low : kOutside;
    taps.index[1][p] = uint32_t(low + 1) < limit ? low + 1 : kOutside;
    taps.weight[0][p] = 1 - fraction, taps.weight[1][p] = fraction;
  }
}

// Taps of n coordinates in any mode; returns their number per point.
template <class C>
SDX_INLINE int block_taps(const C* coordinates, int64_t n, const SampleAxis& axis, SampleMode mode,
                          SamplePadding padding, BlockTaps<C>& taps) {
  if (mode == kSampleLinear && padding == kZeros)
    return linear_taps(coordinates, n, axis.size, taps), 2;
  int m = 0;
  for (int64_t p = 0; p < n; ++p) {
    AxisTaps<C> one;
    m = taps_at(coordinates[p], axis, mode, padding, one);
    for (int t = 0; t < m; ++t) taps.index[t][p] = one.index[t], taps.weight[t][p] = one.weight[t];
  }
  return m;
}

// Taps over all axes, [tap][point of the block]: the tensor product of the axes' taps.
template <class C>
struct PointTaps {
  int32_t* at;  // offset in an image plane, or kOutside
  C* weight;

  // Starts with one tap at offset 0.
  SDX_INLINE int begin(int64_t points) const {
    for (int64_t p = 0; p < points; ++p) at[p] = 0, weight[p] = 1;
    return 1;
  }

  // Multiplies the n taps so far by the m taps of the next axis; returns the new number.
  SDX_INLINE int add(int64_t points, int n, const BlockTaps<C>& taps, int m, int64_t size) const {
    // Each tap but the first appends a copy of those so far; tap 0 is last, since it overwrites
    // them in place.
    for (int t = m - 1; t >= 0; --t)
      for (int k = 0; k < n; ++k) {
        const int64_t from = k * kBlock, to = int64_t(t * n + k) * kBlock;
        for (int64_t p = 0; p < points; ++p) {
          const int32_t before = at[from + p], index = taps.index[t][p];
          const int32_t offset = before * int32_t(size) + index;
          at[to + p] = (before | index) < 0 ? kOutside : offset;
          weight[to + p] = weight[from + p] * taps.weight[t][p];
        }
      }
    return n * m;
  }
};

// Local memory of a block: a row of sums, then weights (8 bytes at most) and offsets by tap.
SDX_INLINE int64_t block_bytes(int n_taps) { return kBlock * (n_taps * 12 + 8); }

template <class C>
SDX_INLINE PointTaps<C> point_taps_in(std::byte* local, int n_taps) {
  C* weights = reinterpret_cast<C*>(local) + kBlock;
  return {reinterpret_cast<int32_t*>(weights + n_taps * kBlock), weights};
}

// The taps of n points, with those outside at the pixel of zeros.
SDX_INLINE TapTable table_of(const PointTaps<float>& taps, int n_taps, int64_t n, int64_t plane) {
  const TapTable table{taps.at, taps.weight, n_taps, kBlock, n};
  point_outside(table, plane);
  return table;
}

// sums[p] = sum over taps of weight * x[offset], of one channel.
template <class T, class C>
void sum_taps(const PointTaps<C>& point_taps, int n_taps, const T* __restrict x, int64_t n,
              C* __restrict sums) {
  for (int64_t p = 0; p < n; ++p) sums[p] = 0;
  for (int t = 0; t < n_taps; ++t) {
    const int32_t* __restrict at = point_taps.at + t * kBlock;
    const C* __restrict weight = point_taps.weight + t * kBlock;
    for (int64_t p = 0; p < n; ++p) {
      const C v =
          number<C>(x[at[p] < 0 ? 0 : at[p]]);  // always a load, so that no branch is needed
      sums[p] += at[p] < 0 ? C(0) : weight[p] * v;
    }
  }
}

}  // namespace sdx::SDX_ISA
