// Reductions: vectors folded to one number, and long arrays to a vector. The order of additions is
// fixed by the ISA and the length, never by threads.
#pragma once

#include <type_traits>
#include <utility>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

template <class V>
using LaneOf = std::remove_cvref_t<decltype(std::declval<V>()[0])>;

// Swaps each lane with the one kDistance away; for small distances that stays within 128-bit lanes,
// which is the cheaper kind of shuffle.
template <int kDistance, class V, size_t... kIndex>
SDX_INLINE V swapped(V v, std::index_sequence<kIndex...>) {
  return __builtin_shufflevector(v, v, (kIndex ^ kDistance)...);
}

// Folds all lanes in a tree by `op`, a commutative and associative function of vectors.
template <int kDistance, class V, class Op>
SDX_INLINE auto fold_lanes(V v, Op op) {
  if constexpr (kDistance == 0) {
    return v[0];
  } else {
    constexpr size_t n = sizeof(V) / sizeof(LaneOf<V>);
    return fold_lanes<kDistance / 2>(op(v, swapped<kDistance>(v, std::make_index_sequence<n>())),
                                     op);
  }
}
template <class V, class Op>
SDX_INLINE auto fold(V v, Op op) {
  return fold_lanes<int(sizeof(V) / sizeof(LaneOf<V>) / 2)>(v, op);
}

// One level of fold_many: the lanes whose index has the bit kDistance come from `b`, the others
// from `a`; half of each vector is folded onto the other half.
template <int kDistance, class V, class Op, size_t... kIndex>
SDX_INLINE V fold_two(V a, V b, Op op, std::index_sequence<kIndex...>) {
  constexpr size_t n = sizeof...(kIndex);
  return op(__builtin_shufflevector(a, b, (kIndex & kDistance ? kIndex + n : kIndex)...),
            __builtin_shufflevector(
                a, b, (kIndex & kDistance ? kIndex + n - kDistance : kIndex + kDistance)...));
}
// Folds as many vectors as each has lanes: lane i of the result is the fold of v[i]. A transpose
// and a reduction in one, with n - 1 operations; each vector is folded in the same order.
template <int kDistance, class V, class Op>
SDX_INLINE V fold_many_lanes(V* v, Op op) {
  if constexpr (kDistance == 0) {
    return v[0];
  } else {
    constexpr size_t n = sizeof(V) / sizeof(LaneOf<V>);
    for (int i = 0; i < kDistance; ++i)
      v[i] = fold_two<kDistance>(v[i], v[i + kDistance], op, std::make_index_sequence<n>());
    return fold_many_lanes<kDistance / 2>(v, op);
  }
}
template <class V, class Op>
SDX_INLINE V fold_many(V* v, Op op) {
  return fold_many_lanes<int(sizeof(V) / sizeof(LaneOf<V>) / 2)>(v, op);
}

template <size_t kFrom, size_t... kIndex>
SDX_INLINE auto some_lanes(f32v v, std::index_sequence<kIndex...>) {
  return __builtin_shufflevector(v, v, (kIndex + kFrom)...);
}
// Half of the lanes as double.
template <int kHalf>
SDX_INLINE Vec<double> widened(f32v v) {
  constexpr size_t n = kLanesOf<double>;
  const auto half = some_lanes<kHalf * n>(v, std::make_index_sequence<n>());
#if SDX_VEC_BYTES == 64
  return (Vec<double>)_mm512_maskz_cvtps_pd(0xff, (__m256)half);
#else
  return __builtin_convertvector(half, Vec<double>);
#endif
}

// Sum of all lanes; floats are summed in double.
SDX_INLINE double fold_sum(f32v v) {
  return fold(widened<0>(v) + widened<1>(v), [](auto a, auto b) { return a + b; });
}
template <class V>
SDX_INLINE auto fold_sum(V v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

// op(op(start, x[0]), x[1]) ... by lane, in four independent accumulators that hide the latency and
// are joined at the end; missing lanes of the last vector read `fill`. An accumulator may be a
// vector or several.
template <class T, class Sum, class Op, class Join>
SDX_INLINE Sum accumulate(const T* x, int64_t n, Sum start, T fill, Op op, Join join) {
  constexpr int64_t lanes = kLanesOf<T>;
  Sum a = start, b = start, c = start, d = start;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a = op(a, load(x + i));
    b = op(b, load(x + i + lanes));
    c = op(c, load(x + i + 2 * lanes));
    d = op(d, load(x + i + 3 * lanes));
  }
  if (i + 2 * lanes <= n) {
    a = op(a, load(x + i));
    b = op(b, load(x + i + lanes));
    i += 2 * lanes;
  }
  if (i + lanes <= n) {
    c = op(c, load(x + i));
    i += lanes;
  }
  if (i < n) d = op(d, load(x + i, Part{int(n - i)}, fill));
  return join(join(a, b), join(c, d));
}

// Blocked summation: numbers that one lane adds up in float before its sum goes into a double,
// which keeps the error near one unit in the last place for any length.
constexpr int64_t kLaneSums = 64;
template <class T>
constexpr int64_t kSumBlock = 4 * kLanesOf<T> * kLaneSums;

// Sum of op(0, x[i]); `fill` is a number for which op adds nothing.
template <class T, class Op>
SDX_INLINE double sum_of(const T* x, int64_t n, T fill, Op op) {
  double total = 0;
  for (int64_t i = 0; i < n; i += kSumBlock<T>) {
    const int64_t m = n - i < kSumBlock<T> ? n - i : kSumBlock<T>;
    total += double(
        fold_sum(accumulate(x + i, m, Vec<T>{}, fill, op, [](auto a, auto b) { return a + b; })));
  }
  return total;
}

}  // namespace sdx::SDX_ISA
