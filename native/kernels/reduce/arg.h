// The position of the best element along an axis, for ArgMax, ArgMin and Hardmax. NaN is better
// than any number, and the first NaN is the best of all. Long contiguous axes reduce a buffer to
// its best value and then search for that value, two vector loops instead of one that carries
// indices; other axes carry an index vector whose lanes are neighbouring columns, or neighbouring
// short rows.
#pragma once

#include <type_traits>

#include "kernels/axes.h"
#include "kernels/reduce/elements.h"
#include "kernels/reduce/min_max.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {

struct ArgArgs {
  AxisView axis;
  int64_t column_out = 1;  // stride of columns in the output
  Elements elements;
  bool takes_last = false;
  int64_t blocks = 1;  // of columns

  SDX_INLINE int64_t items() const { return axis.n == 0 ? 0 : axis.n_outer * blocks; }
};

namespace {

constexpr int kArgBuffer = 1024;  // elements that are converted and reduced at a time

// The first or last position of a value, or -1; NaN equals NaN.
template <class C>
int64_t find(const C* x, int64_t n, C value, bool takes_last) {
  const auto matches = [&](int64_t i) { return x[i] == value || (value != value && x[i] != x[i]); };
  int64_t first = 0;  // no match before it
  if constexpr (std::is_same_v<C, float>) {
    const auto matched = [&](f32v v) { return value != value ? v != v : v == value; };
    while (!takes_last && first + kLanes <= n && !any(matched(load(x + first)))) first += kLanes;
  }
  if (takes_last) {
    for (int64_t i = n - 1; i >= 0; --i)
      if (matches(i)) return i;
  } else {
    for (int64_t i = first; i < n; ++i)
      if (matches(i)) return i;
  }
  return -1;
}

// The axis is contiguous or has a stride of its own: one output.
template <class Order, class C>
int64_t best_of_run(const ArgArgs& a, const std::byte* x) {
  C buffer[kArgBuffer];
  C best{};
  int64_t where = -1;
  const auto better = [](auto p, auto q) { return Order::better(p, q); };
  for (int64_t i = 0; i < a.axis.n; i += kArgBuffer) {
    const int64_t n = a.axis.n - i < kArgBuffer ? a.axis.n - i : kArgBuffer;
    const std::byte* from = x + i * a.axis.stride * a.elements.bytes;
    const C* p = numbers(a.elements, from, a.axis.stride, n, buffer);
    constexpr C kWorst = Order::template kWorst<C>;
    const C best_here = fold(accumulate(p, n, splat(kWorst), kWorst, better, better), better);
    const bool is_equal = best_here == best || (best_here != best_here && best != best);
    const bool is_better =
        best == best && (best_here != best_here || Order::is_better(best_here, best));
    if (where >= 0 && !is_better && !(is_equal && a.takes_last)) continue;
    best = best_here;
    where = i + find(p, n, best_here, a.takes_last);
  }
  return where;
}

// The best of n vectors row(0), row(1)...: a position for each of the first `width` lanes.
template <class Order, class C, class Row>
SDX_INLINE void best_of_vectors(int64_t n, bool takes_last, int64_t* y, int width, Row&& row) {
  using Index = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;
  Vec<C> best = row(0);
  Vec<Index> where{};
  for (int64_t i = 1; i < n; ++i) {
    const Vec<C> v = row(i);
    auto takes = Order::is_better(v, best) | ((v != v) & (best == best));
    if (takes_last) takes |= (v == best) | ((v != v) & (best != best));
    best = takes ? v : best;
    where = takes ? splat(Index(i)) : where;
  }
  for (int j = 0; j < width; ++j) y[j] = where[j];
}

// Neighbouring outputs, one per lane.
template <class Order, class C>
void best_of_columns(const ArgArgs& a, const std::byte* x, int64_t* y, int width) {
  C buffer[kLanesOf<C>];
  best_of_vectors<Order, C>(a.axis.n, a.takes_last, y, width, [&](int64_t i) {
    const std::byte* from = x + i * a.axis.stride * a.elements.bytes;
    const C* p = numbers(a.elements, from, a.axis.column_stride, width, buffer);
    return width == kLanesOf<C> ? load(p) : load(p, Part{width});
  });
}

// Rows of at most so many elements are taken as columns: gathering an element of each row costs
// less than folding a vector per row and searching for its best element.
constexpr int64_t kShortRow = 64;

// Fills in the loops over the axis of x and the elements of its results in y.
template <class C>
void plan_arg(const View& x, const View& y, int axis, ArgArgs& args) {
  args.elements = elements_of<C, C>(x.dtype);
  AxisView& view = args.axis = view_along(x, y, axis);
  if (view.columns == 1 && view.n <= kShortRow && view.outer.n > 0) {
    const int rows = --view.outer.n;
    view.columns = view.outer.size[rows], view.column_stride = view.outer.stride[rows];
    args.column_out = view.outer.out[rows];
    view.n_outer = view.outer.count();
  }
  args.blocks = (view.columns + kLanesOf<C> - 1) / kLanesOf<C>;
}

// The best positions of n short rows: transposed on the stack first, so that the loop over the
// elements reads whole vectors.
template <class Order, class C>
void best_of_short_rows(const ArgArgs& a, const std::byte* x, int64_t* where, int n) {
  constexpr int64_t lanes = kLanesOf<C>;
  C block[kShortRow * lanes], buffer[kShortRow];
  for (int64_t j = 0; j < lanes; ++j) {  // lanes without a row repeat the last one
    const int64_t at = (j < n ? j : n - 1) * a.axis.column_stride;
    const std::byte* row = x + at * a.elements.bytes;
    const C* p = numbers(a.elements, row, a.axis.stride, a.axis.n, buffer);
    for (int64_t i = 0; i < a.axis.n; ++i) block[i * lanes + j] = p[i];
  }
  best_of_vectors<Order, C>(a.axis.n, a.takes_last, where, n,
                            [&](int64_t i) { return load(block + i * lanes); });
}

// The results of item `item`, at most kLanesOf<C> neighbouring columns.
struct ArgItem {
  Offsets offsets;  // of the first column
  int n;
};

// Finds the best positions of an item; where has kLanesOf<C> elements.
template <class Order, class C>
SDX_INLINE ArgItem best_of_item(const ArgArgs& a, const void* x, int64_t item, int64_t* where) {
  constexpr int64_t lanes = kLanesOf<C>;
  const int64_t first = item % a.blocks * lanes, rest = a.axis.columns - first;
  Offsets at = offsets_of(a.axis.outer, a.axis.outer.n, item / a.blocks);
  at.in += first * a.axis.column_stride, at.out += first * a.column_out;
  const std::byte* from = static_cast<const std::byte*>(x) + at.in * a.elements.bytes;
  const int n = int(rest < lanes ? rest : lanes);
  if (a.axis.columns == 1)
    where[0] = best_of_run<Order, C>(a, from);
  else if (a.axis.n <= kShortRow && a.axis.column_stride != 1)
    best_of_short_rows<Order, C>(a, from, where, n);
  else
    best_of_columns<Order, C>(a, from, where, n);
  return {at, n};
}

// Roughly nanoseconds of one item.
template <class C>
int64_t arg_work(const ArgArgs& a) {
  return (a.axis.columns == 1 ? a.axis.n / 4 : a.axis.n * 2) + 10;
}

}  // namespace
}  // namespace sdx::SDX_ISA
