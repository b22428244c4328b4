// Mean and deviation of numbers in a row.
#pragma once

#include "simd/fold.h"

namespace sdx::SDX_ISA {

// The numbers less `mean`, times `factor`, plus `rest`, have mean 0 and deviation 1. The mean is
// rounded, so `rest` is what it leaves over.
template <class C>
struct Stats {
  C mean, factor, rest;
};

// Sums of numbers less a shift, and of their squares.
struct Moments {
  double first = 0, second = 0;
};

// Those of rows side by side: none waits for another.
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
// By itself, so that it is computed in the same way for one row as for several.
template <class C>
__attribute__((noinline)) Stats<C> stats_from(const C* x, int64_t n, double epsilon, C shift,
                                              Moments m) {
  constexpr double kFar = 16;  // squares less the shift, for each less the mean
  const double count = double(n);
  if (!__builtin_isfinite(m.second)) {  // a first number too far off for squares, or no number
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

// One pass, less the first number, since the difference of large squares would lose what the
// numbers have. Where it turns out to lie far from the others, a second one.
template <int kCount, class C>
SDX_INLINE void stats_of(const C* const* x, int64_t n, double epsilon, Stats<C>* made) {
  C shift[kCount];
  for (int k = 0; k < kCount; ++k) shift[k] = n > 0 ? x[k][0] : C(0);
  Moments m[kCount];
  moments_of<kCount>(x, n, shift, m);
  for (int k = 0; k < kCount; ++k) made[k] = stats_from(x[k], n, epsilon, shift[k], m[k]);
}

// The same for numbers that are taken as they are.
template <class C>
SDX_INLINE Stats<C> root_mean_square(const C* x, int64_t n, double epsilon) {
  const double total = sum_of(x, n, C(0), [](Vec<C> s, Vec<C> v) { return s + v * v; });
  return {0, C(1 / __builtin_sqrt(total / double(n) + epsilon)), 0};
}

}  // namespace sdx::SDX_ISA
