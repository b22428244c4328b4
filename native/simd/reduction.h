// Vectors folded to one number, and long runs of numbers to a vector.
#pragma once

#include <type_traits>
#include <utility>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

template <class V>
using LaneOf = std::remove_cvref_t<decltype(std::declval<V>()[0])>;

// Lanes change places with those kDistance on or back, few of which leave their 16 bytes.
template <int kDistance, class V, size_t... kIndex>
SDX_INLINE V swapped(V v, std::index_sequence<kIndex...>) {
  return __builtin_shufflevector(v, v, (kIndex ^ kDistance)...);
}

// op(...) of all lanes, in a tree; `op` takes and gives vectors and does not mind the order.
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

// One op of fold_many: lanes i of the result are those of `b` where i has the bit kDistance.
template <int kDistance, class V, class Op, size_t... kIndex>
SDX_INLINE V fold_two(V a, V b, Op op, std::index_sequence<kIndex...>) {
  constexpr size_t n = sizeof...(kIndex);
  return op(__builtin_shufflevector(a, b, (kIndex & kDistance ? kIndex + n : kIndex)...),
            __builtin_shufflevector(
                a, b, (kIndex & kDistance ? kIndex + n - kDistance : kIndex + kDistance)...));
}
// As many vectors as each has lanes, folded all at once: lane i of the result is that of v[i]. Each
// is folded in the same order, whatever its place.
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
// Half of the lanes in the wider type.
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

SDX_INLINE double fold_sum(f32v v) {
  return fold(widened<0>(v) + widened<1>(v), [](auto a, auto b) { return a + b; });
}
template <class V>
SDX_INLINE auto fold_sum(V v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

// op(op(start, x[0]), x[1]) ... over lanes of four vectors, joined by `join`; where lanes are
// left over they see `fill`. What is accumulated may be a vector or several.
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

// Numbers that one lane may add up before its sum goes into a wider one: sums stay exact to about
// one unit in the last place for any length.
constexpr int64_t kLaneSums = 64;
template <class T>
constexpr int64_t kSumBlock = 4 * kLanesOf<T> * kLaneSums;

// The sum of op(0, x[i]); `fill` is a number for which op adds nothing.
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
