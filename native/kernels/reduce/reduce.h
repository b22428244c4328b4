// Reductions over any axes. An operation says what happens to vectors of numbers; this header
// brings it over runs (reduced numbers lie side by side) and columns (kept ones do).
//
//   struct Op {
//     using C = ...;                        // what numbers are computed in
//     using W = ...;                        // what results of parts are kept in
//     static constexpr C kNothing;          // a number that changes no result
//     static Vec<C> step(Vec<C>, Vec<C>);   // one more number in each lane
//     static Vec<C> join(Vec<C>, Vec<C>);   // two accumulators
//     static W fold(Vec<C>);                // all lanes of one
//     static W join(W, W);
//     static W finish(W, int64_t count);
//   };
//
// An Op may have a `static W run(const C*, int64_t)` of its own for numbers that lie side by side.
#pragma once

#include "kernels/axes.h"
#include "kernels/fetch.h"
#include "simd/fold.h"

namespace sdx::SDX_ISA {

struct ReduceArgs {
  Axes kept, reduced;
  int64_t n_out = 1;     // kept elements
  int64_t n = 1;         // reduced elements of each
  int64_t n_chunks = 1;  // parts of the reduced range, where there are too few outputs to share out
  int64_t chunk = 1;     // elements of a part
  int64_t columns = 1;   // of an item; only where kept elements lie side by side
  int64_t blocks = 1;    // of columns in the last kept axis
};

// Fills in the sizes; false where runs are to be reduced, true where columns are.
bool plan_reduction(const Call& call, int64_t block_columns, ReduceArgs& args);

namespace {

constexpr int kRunBuffer = 1024;  // numbers that are converted at a time
constexpr int kWideBlock = 8;     // vectors of columns side by side

template <class Op, class C = typename Op::C>
SDX_INLINE typename Op::W fold_run(const C* x, int64_t n) {
  if constexpr (requires { Op::run(x, n); }) return Op::run(x, n);
  return Op::fold(run(
      x, n, splat(Op::kNothing), Op::kNothing, [](auto a, auto b) { return Op::step(a, b); },
      [](auto a, auto b) { return Op::join(a, b); }));
}

// body(numbers, n) for parts of the reduced numbers [lo, hi) that belong to the output at x.
template <class C, class T, class Body>
SDX_INLINE void each_run(const Axes& reduced, const T* x, int64_t lo, int64_t hi, Body&& body) {
  C buffer[kRunBuffer];
  const int64_t inner = reduced.last_size(), step = reduced.last_step();
  const int64_t most = kReadsInPlace<T, C> && step == 1 ? kSumBlock<C> : kRunBuffer;
  while (lo < hi) {
    const int64_t at = lo % inner, rest = inner - at < hi - lo ? inner - at : hi - lo;
    const int64_t n = rest < most ? rest : most;
    const T* p = x + place_of(reduced, reduced.n - 1, lo / inner).in + at * step;
    body(fetch<C>(p, step, n, buffer), n);
    lo += n;
  }
}

template <class Op, class T>
SDX_INLINE typename Op::W reduce_runs(const ReduceArgs& a, const T* x, int64_t lo, int64_t hi) {
  using C = typename Op::C;
  if constexpr (kReadsInPlace<T, C>)
    if (a.reduced.n == 1 && a.reduced.last_step() == 1 && hi - lo <= kSumBlock<C>)
      return fold_run<Op>(reinterpret_cast<const C*>(x + lo), hi - lo);
  auto total = Op::fold(splat(Op::kNothing));
  each_run<C>(a.reduced, x, lo, hi,
              [&](const C* p, int64_t n) { total = Op::join(total, fold_run<Op>(p, n)); });
  return total;
}

// Whether runs are so short that folding the lanes of one would take longer than reading it.
template <class Op, class T>
SDX_INLINE bool has_short_runs(const ReduceArgs& a) {
  using C = typename Op::C;
  return kReadsInPlace<T, C> && kLanesOf<C> <= 16 && a.reduced.n == 1 && a.n_chunks == 1 &&
         a.reduced.last_step() == 1 && a.n <= 8 * kLanesOf<C>;
}

// Outputs [begin, end) of short runs, as many at once as a vector has lanes.
template <class Op, class T>
void reduce_short_runs(const ReduceArgs& a, const T* x, T* y, int64_t begin, int64_t end) {
  using C = typename Op::C;
  constexpr int64_t lanes = kLanesOf<C>;
  const auto join = [](auto p, auto q) { return Op::join(p, q); };
  for (int64_t item = begin; item < end; item += lanes) {
    const int64_t count = end - item < lanes ? end - item : lanes;
    Vec<C> parts[lanes];
    int64_t to[lanes];
    for (int64_t i = 0; i < lanes; ++i) {
      const Place place = place_of(a.kept, a.kept.n, item + (i < count ? i : count - 1));
      to[i] = place.out;
      parts[i] = run(
          reinterpret_cast<const C*>(x + place.in), a.n, splat(Op::kNothing), Op::kNothing,
          [](auto p, auto q) { return Op::step(p, q); }, join);
    }
    C results[lanes];
    store(results, fold_many(parts, join));
    for (int64_t i = 0; i < count; ++i)
      y[to[i]] = element<T>(Op::finish(typename Op::W(results[i]), a.n));
  }
}

template <class Op, class T>
Status reduce_to_runs(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  using W = typename Op::W;
  const T* x = input<T>(data, 0);
  if constexpr (kReadsInPlace<T, typename Op::C> && kLanesOf<typename Op::C> <= 16)
    if (has_short_runs<Op, T>(a))
      return reduce_short_runs<Op>(a, x, output<T>(data), begin, end), Status{};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t at = a.n_chunks > 1 ? item / a.n_chunks : item, part = item - at * a.n_chunks;
    const Place place = place_of(a.kept, a.kept.n, at);
    const int64_t lo = part * a.chunk, hi = lo + a.chunk < a.n ? lo + a.chunk : a.n;
    const W total = reduce_runs<Op>(a, x + place.in, lo, hi);
    if (a.n_chunks > 1)
      reinterpret_cast<W*>(data.scratch)[item] = total;
    else
      output<T>(data)[place.out] = element<T>(Op::finish(total, a.n));
  }
  return {};
}

// Adds numbers [lo, hi) of kCount vectors of columns to `totals`.
template <class Op, int kCount, class T, class Lanes>
void reduce_columns(const ReduceArgs& a, const T* x, int64_t lo, int64_t hi, Lanes lanes,
                    typename Op::W* totals) {
  using C = typename Op::C;
  constexpr int64_t kStep = kLanesOf<C>;
  int width = int(kCount * kStep);
  if constexpr (std::is_same_v<Lanes, Part>) width = lanes.n;
  const int64_t inner = a.reduced.last_size(), step = a.reduced.last_step();
  const int64_t column_step = a.kept.last_step();
  C buffer[kCount * kStep];
  while (lo < hi) {
    Vec<C> sums[kCount];
    for (int j = 0; j < kCount; ++j) sums[j] = splat(Op::kNothing);
    const int64_t stop = lo + kLaneSums < hi ? lo + kLaneSums : hi;
    while (lo < stop) {
      const int64_t at = lo % inner, n = inner - at < stop - lo ? inner - at : stop - lo;
      const T* p = x + place_of(a.reduced, a.reduced.n - 1, lo / inner).in + at * step;
      for (int64_t i = 0; i < n; ++i, p += step) {
        const C* numbers = fetch<C>(p, column_step, width, buffer);
        for (int j = 0; j < kCount; ++j)
          sums[j] = Op::step(sums[j], load(numbers + j * kStep, lanes, Op::kNothing));
      }
      lo += n;
    }
    memcpy(buffer, sums, sizeof buffer);
    for (int j = 0; j < width; ++j) totals[j] = Op::join(totals[j], typename Op::W(buffer[j]));
  }
}

template <class Op, class T>
void reduce_block(const ReduceArgs& a, const T* x, int64_t lo, int64_t hi, int64_t width,
                  typename Op::W* totals) {
  constexpr int64_t kStep = kLanesOf<typename Op::C>;
  for (int64_t j = 0; j < width; ++j) totals[j] = Op::fold(splat(Op::kNothing));
  const int64_t step = a.kept.last_step();
  int64_t j = 0;
  const auto by = [&]<int kCount>() {
    for (; j + kCount * kStep <= width; j += kCount * kStep)
      reduce_columns<Op, kCount>(a, x + j * step, lo, hi, Full{}, totals + j);
  };
  by.template operator()<kWideBlock>();
  by.template operator()<2>();
  by.template operator()<1>();
  if (j < width) reduce_columns<Op, 1>(a, x + j * step, lo, hi, Part{int(width - j)}, totals + j);
}

template <class Op, class T>
Status reduce_to_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  using W = typename Op::W;
  W totals[kWideBlock * kLanesOf<typename Op::C>];
  const int64_t row = a.kept.last_size();
  for (int64_t item = begin; item < end; ++item) {
    const int64_t at = item / a.n_chunks, part = item % a.n_chunks;
    const int64_t outer = at / a.blocks, first = at % a.blocks * a.columns;
    const int64_t width = row - first < a.columns ? row - first : a.columns;
    const Place place = place_of(a.kept, a.kept.n - 1, outer);
    const int64_t lo = part * a.chunk, hi = lo + a.chunk < a.n ? lo + a.chunk : a.n;
    const T* x = input<T>(data, 0) + place.in + first * a.kept.last_step();
    reduce_block<Op>(a, x, lo, hi, width, totals);
    if (a.n_chunks > 1) {
      W* parts = reinterpret_cast<W*>(data.scratch) + (outer * row + first) * a.n_chunks + part;
      for (int64_t j = 0; j < width; ++j) parts[j * a.n_chunks] = totals[j];
    } else {
      T* y = output<T>(data) + place.out + first * a.kept.last_out();
      const int64_t step = a.kept.last_out();
      for (int64_t j = 0; j < width; ++j) y[j * step] = element<T>(Op::finish(totals[j], a.n));
    }
  }
  return {};
}

// The second phase, where the first made parts: outputs [begin, end).
template <class Op, class T>
Status reduce_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  using W = typename Op::W;
  for (int64_t at = begin; at < end; ++at) {
    const W* parts = reinterpret_cast<const W*>(data.scratch) + at * a.n_chunks;
    W total = parts[0];
    for (int64_t i = 1; i < a.n_chunks; ++i) total = Op::join(total, parts[i]);
    const Place place = place_of(a.kept, a.kept.n, at);
    output<T>(data)[place.out] = element<T>(Op::finish(total, a.n));
  }
  return {};
}

template <class Op, class T>
Status prepare_reduction(const Call& call, Plan& plan) {
  constexpr int64_t kColumns = kWideBlock * kLanesOf<typename Op::C>;
  auto* args = plan.make<ReduceArgs>();
  plan.args = args;
  const bool has_columns = plan_reduction(call, kColumns, *args);
  const int64_t numbers = args->chunk * args->columns;
  if (has_columns)
    plan.add(reduce_to_columns<Op, T>,
             args->kept.count(args->kept.n - 1) * args->blocks * args->n_chunks, numbers / 8 + 8);
  else
    plan.add(reduce_to_runs<Op, T>, args->n_out * args->n_chunks, numbers / 8 + 8);
  if (args->n_chunks > 1) {
    plan.add(reduce_parts<Op, T>, args->n_out, args->n_chunks);
    plan.scratch_bytes = args->n_out * args->n_chunks * int64_t(sizeof(typename Op::W));
  }
  return {};
}

}  // namespace
}  // namespace sdx::SDX_ISA
