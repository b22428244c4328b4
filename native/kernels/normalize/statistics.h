// Mean and variance of a row in one pass: the shifted-data algorithm. Subtracting any number close
// to the mean first avoids the cancellation of E[x^2] - E[x]^2, and the row's first element is such
// a number almost always; where it is not, a second pass uses the mean itself. That is one read of
// the row in the usual case, where the two-pass algorithm needs two and Welford's needs a division
// per element.
#pragma once

#include "simd/reduction.h"

namespace sdx::SDX_ISA {

// (x - mean) * factor + rest has mean 0 and standard deviation 1. `mean` is rounded to C; `rest` is
// the rounding error times the factor, which matters where the mean is large and the deviation
// small.
template <class C>
struct Statistics {
  C mean, factor, rest;
};

// Sums of (x - shift) and of (x - shift)^2, in double.
struct Moments {
  double first = 0, second = 0;
};

// The moments of kCount rows together: 2 * kCount independent accumulators hide the latency of
// additions. Lanes add at most kLaneSums numbers before they are widened to double.
template <int kCount, class C>
SDX_INLINE void moments_of(const C* const* x, int64_t n, const C* shift, Moments* total) {
  constexpr int64_t lanes = kLanesOf<C>, kBlock = 2 * lanes * kLaneSums;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    Vec<C> first[2][kCount] = {}, second[2][kCount] = {};
    const auto step = [&](int at, int64_t i, auto live) {
      for (int k = 0; k < kCount; ++k) {
        const Vec<C> d = load(x[k] + i, live, shift[k]) - shift[k];
        first[at][k] += d, second[at][k] += d * d;
      }
    };
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes) step(0, i, Full{}), step(1, i + lanes, Full{});
    if (i + lanes <= end) step(0, i, Full{}), i += lanes;
    if (i < end) step(1, i, Part{int(end - i)});
    for (int k = 0; k < kCount; ++k) {
      total[k].first += fold_sum(first[0][k] + first[1][k]);
      total[k].second += fold_sum(second[0][k] + second[1][k]);
    }
  }
}

namespace {
// Not inlined, so that rows that are computed in a group and alone give the same bits.
template <class C>
__attribute__((noinline)) Statistics<C> finish_statistics(const C* x, int64_t n, double epsilon,
                                                          C shift, Moments m) {
  // The shift is bad where the sum of squares around it is this many times that around the mean: 4
  // bits of the variance are lost at most.
  constexpr double kFar = 16;
  const double count = double(n);
  if (!__builtin_isfinite(m.second)) {  // squares overflowed around the shift, or NaN or infinity
    const auto add = [](Vec<C> s, Vec<C> v) { return s + v; };
    shift = C(sum_of(x, n, C(0), add) / count);
    if (!__builtin_isfinite(shift)) return {shift, shift - shift, shift - shift};
    m = {};
    moments_of<1>(&x, n, &shift, &m);
  }
  double off = m.first / count;
  if (m.second > kFar * (m.second - m.first * off)) {
    shift = C(shift + off);
    m = {};
    moments_of<1>(&x, n, &shift, &m);
    off = m.first / count;
  }
  const double mean = shift + off;
  const double factor = 1 / __builtin_sqrt(m.second / count - off * off + epsilon);
  return {C(mean), C(factor), C((double(C(mean)) - mean) * factor)};
}
}  // namespace

// Statistics of kCount rows, each shifted by its first element.
template <int kCount, class C>
SDX_INLINE void row_statistics(const C* const* x, int64_t n, double epsilon, Statistics<C>* stats) {
  C shift[kCount];
  for (int k = 0; k < kCount; ++k) shift[k] = n > 0 ? x[k][0] : C(0);
  Moments m[kCount];
  moments_of<kCount>(x, n, shift, m);
  for (int k = 0; k < kCount; ++k) stats[k] = finish_statistics(x[k], n, epsilon, shift[k], m[k]);
}

// The statistics of RMS normalization: not centred, so there is nothing to shift.
template <class C>
SDX_INLINE Statistics<C> root_mean_square(const C* x, int64_t n, double epsilon) {
  const double total = sum_of(x, n, C(0), [](Vec<C> s, Vec<C> v) { return s + v * v; });
  return {0, C(1 / __builtin_sqrt(total / double(n) + epsilon)), 0};
}

}  // namespace sdx::SDX_ISA
