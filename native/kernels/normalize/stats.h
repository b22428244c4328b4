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

template <class C>
struct Moments {
  Vec<C> first, second;
};

// Two passes, since the difference of large squares would lose what the numbers have.
template <class C>
SDX_INLINE Stats<C> stats_of(const C* x, int64_t n, double epsilon) {
  const double count = double(n);
  const auto add = [](Vec<C> s, Vec<C> v) { return s + v; };
  const C mean = C(sum_of(x, n, C(0), add) / count);
  double first = 0, second = 0;
  for (int64_t i = 0; i < n; i += kSumBlock<C>) {
    const auto step = [&](Moments<C> m, Vec<C> v) {
      const Vec<C> d = v - mean;
      return Moments<C>{m.first + d, m.second + d * d};
    };
    const auto join = [](Moments<C> a, Moments<C> b) {
      return Moments<C>{a.first + b.first, a.second + b.second};
    };
    const int64_t part = n - i < kSumBlock<C> ? n - i : kSumBlock<C>;
    const Moments<C> m = run(x + i, part, Moments<C>{}, mean, step, join);
    first += fold_sum(m.first), second += fold_sum(m.second);
  }
  const double off = first / count;
  const double factor = 1 / __builtin_sqrt(second / count - off * off + epsilon);
  return {mean, C(factor), C(-off * factor)};
}

// The same for numbers that are taken as they are.
template <class C>
SDX_INLINE Stats<C> root_mean_square(const C* x, int64_t n, double epsilon) {
  const double total = sum_of(x, n, C(0), [](Vec<C> s, Vec<C> v) { return s + v * v; });
  return {0, C(1 / __builtin_sqrt(total / double(n) + epsilon)), 0};
}

}  // namespace sdx::SDX_ISA
