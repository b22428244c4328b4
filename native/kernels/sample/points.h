// Blocks of points at fractional positions: where their neighbours lie in a plane, what these
// weigh, and their sums. Loops go over the points of a block, so that they become vectors.
#pragma once

#include "kernels/fetch.h"
#include "kernels/sample/taps.h"

namespace sdx::SDX_ISA {

constexpr int64_t kBlock = 128;  // points
constexpr int kMaxAxes = 3;

// Neighbours along one axis, by tap.
template <class C>
struct BlockTaps {
  int32_t index[kMaxTaps][kBlock];
  C weight[kMaxTaps][kBlock];
};

// Both neighbours of n places; outside the axis there is nothing.
template <class C>
SDX_INLINE void linear_taps(const C* places, int64_t n, int64_t size, BlockTaps<C>& taps) {
  const C end = C(size + 2);
  const auto limit = uint32_t(size);
  for (int64_t p = 0; p < n; ++p) {
    C x = places[p] >= -3 ? places[p] : C(-3);  // NaN too
    x = x > end ? end : x;
    int32_t low = int32_t(x);
    low -= C(low) > x;
    const C part = x - C(low);
    taps.index[0][p] = uint32_t(low) < limit ? low : kOutside;
    taps.index[1][p] = uint32_t(low + 1) < limit ? low + 1 : kOutside;
    taps.weight[0][p] = 1 - part, taps.weight[1][p] = part;
  }
}

// The neighbours of n places in any mode; says how many each has.
template <class C>
SDX_INLINE int block_taps(const C* places, int64_t n, const SampleAxis& axis, SampleMode mode,
                          SamplePadding padding, BlockTaps<C>& taps) {
  if (mode == kSampleLinear && padding == kZeros) return linear_taps(places, n, axis.size, taps), 2;
  int m = 0;
  for (int64_t p = 0; p < n; ++p) {
    AxisTaps<C> one;
    m = taps_at(places[p], axis, mode, padding, one);
    for (int t = 0; t < m; ++t) taps.index[t][p] = one.index[t], taps.weight[t][p] = one.weight[t];
  }
  return m;
}

template <class C>
struct Found {  // by tap, for all points of a block
  int32_t* at;  // in a plane of the image, or kOutside
  C* weight;

  // Points of which nothing is known.
  SDX_INLINE int begin(int64_t points) const {
    for (int64_t p = 0; p < points; ++p) at[p] = 0, weight[p] = 1;
    return 1;
  }

  // Their neighbours along one more axis, for each of the n so far; says how many there are.
  SDX_INLINE int add(int64_t points, int n, const BlockTaps<C>& taps, int m, int64_t size) const {
    // Each tap but the first adds a copy of those so far; the first goes last, in place.
    for (int t = m - 1; t >= 0; --t)
      for (int k = 0; k < n; ++k) {
        const int64_t from = k * kBlock, to = int64_t(t * n + k) * kBlock;
        for (int64_t p = 0; p < points; ++p) {
          const int32_t before = at[from + p], index = taps.index[t][p];
          const int32_t place = before * int32_t(size) + index;
          at[to + p] = (before | index) < 0 ? kOutside : place;
          weight[to + p] = weight[from + p] * taps.weight[t][p];
        }
      }
    return n * m;
  }
};

// Bytes that a block of points takes, with a row of sums in front.
SDX_INLINE int64_t block_bytes(int n_taps) { return kBlock * (n_taps * 12 + 8); }

template <class C>
SDX_INLINE Found<C> found_in(std::byte* local, int n_taps) {
  C* weights = reinterpret_cast<C*>(local) + kBlock;
  return {reinterpret_cast<int32_t*>(weights + n_taps * kBlock), weights};
}

template <class T, class C>
void sum_taps(const Found<C>& found, int n_taps, const T* __restrict x, int64_t n,
              C* __restrict sums) {
  for (int64_t p = 0; p < n; ++p) sums[p] = 0;
  for (int t = 0; t < n_taps; ++t) {
    const int32_t* __restrict at = found.at + t * kBlock;
    const C* __restrict weight = found.weight + t * kBlock;
    for (int64_t p = 0; p < n; ++p) {
      const C v = number<C>(x[at[p] < 0 ? 0 : at[p]]);  // read either way: no branch
      sums[p] += at[p] < 0 ? C(0) : weight[p] * v;
    }
  }
}

}  // namespace sdx::SDX_ISA
