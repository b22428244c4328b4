// Blocks of points at fractional positions: where their neighbours lie in a plane, what these
// weigh, and their sums.
#pragma once

#include "kernels/fetch.h"
#include "kernels/sample/taps.h"

namespace sdx::SDX_ISA {

constexpr int64_t kBlock = 128;  // points
constexpr int kMaxAxes = 3;

template <class C>
struct Found {  // by tap, for all points of a block
  int32_t* at;  // in a plane of the image, or kOutside
  C* weight;

  // Point p, as long as nothing is known of it.
  SDX_INLINE int begin(int64_t p) const {
    at[p] = 0, weight[p] = 1;
    return 1;
  }

  // The neighbours of point p along one more axis, for each of the n so far; says how many there
  // are.
  SDX_INLINE int add(int64_t p, int n, const AxisTaps<C>& taps, int m, int64_t size) const {
    // Each tap but the first adds a copy of those so far; the first goes last, in place.
    for (int t = m - 1; t >= 0; --t)
      for (int k = 0; k < n; ++k) {
        const int32_t before = at[k * kBlock + p], index = taps.index[t];
        const bool is_outside = before == kOutside || index == kOutside;
        const int64_t slot = int64_t(t * n + k) * kBlock + p;
        at[slot] = is_outside ? kOutside : before * int32_t(size) + index;
        weight[slot] = weight[k * kBlock + p] * taps.weight[t];
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
void sum_taps(const Found<C>& found, int n_taps, const T* x, int64_t n, C* sums) {
  for (int64_t p = 0; p < n; ++p) sums[p] = 0;
  for (int t = 0; t < n_taps; ++t) {
    const int32_t* at = found.at + t * kBlock;
    const C* weight = found.weight + t * kBlock;
    for (int64_t p = 0; p < n; ++p) sums[p] += weight[p] * (at[p] < 0 ? C(0) : number<C>(x[at[p]]));
  }
}

}  // namespace sdx::SDX_ISA
