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
//   };
//
// An Op may have a `static W run(const C*, int64_t)` of its own for numbers that lie side by side.
#pragma once

#include "kernels/axes.h"
#include "kernels/kernel.h"
#include "kernels/reduce/elements.h"
#include "simd/fold.h"

namespace sdx::SDX_ISA {

struct ReduceArgs {
  Axes kept, reduced;
  Elements elements;
  int64_t n_out = 1;     // kept elements
  int64_t n = 1;         // reduced elements of each
  int64_t n_chunks = 1;  // parts of the reduced range, where there are too few outputs to share out
  int64_t chunk = 1;     // elements of a part
  int64_t columns = 1;   // of an item; only where kept elements lie side by side
  int64_t blocks = 1;    // of columns in the last kept axis
};

// What becomes of n totals in the end, each of `count` numbers.
template <class W>
using Finish = void (*)(W* totals, int64_t n, int64_t count);

template <class W>
struct FinishedArgs : ReduceArgs {
  Finish<W> finish;  // null: they are as they should be
};

// Fills in the sizes; false where runs are to be reduced, true where columns are.
bool plan_reduction(const Call& call, int64_t block_columns, ReduceArgs& args);

namespace {

constexpr int kRunBuffer = 1024;  // numbers that are converted at a time
constexpr int kBlock = 8;         // vectors of columns side by side
// As many as registers hold, where numbers are read in place: longer runs of memory at a time.
constexpr int kWideBlock = SDX_VEC_BYTES == 64 ? 16 : 8;

template <class Op, class C = typename Op::C>
SDX_INLINE typename Op::W fold_run(const C* x, int64_t n) {
  if constexpr (requires { Op::run(x, n); }) return Op::run(x, n);
  return Op::fold(run(
      x, n, splat(Op::kNothing), Op::kNothing, [](auto a, auto b) { return Op::step(a, b); },
      [](auto a, auto b) { return Op::join(a, b); }));
}

// body(numbers, n) for parts of the reduced numbers [lo, hi) that belong to the output at x.
template <class C, class Body>
SDX_INLINE void each_run(const ReduceArgs& a, const std::byte* x, int64_t lo, int64_t hi,
                         Body&& body) {
  C buffer[kRunBuffer];
  const int64_t inner = a.reduced.last_size(), step = a.reduced.last_step();
  const int64_t most = a.elements.is_plain && step == 1 ? kSumBlock<C> : kRunBuffer;
  while (lo < hi) {
    const int64_t turn = a.reduced.n > 1 ? lo / inner : 0, at = lo - turn * inner;
    const int64_t rest = inner - at < hi - lo ? inner - at : hi - lo;
    const int64_t n = rest < most ? rest : most;
    const int64_t first = place_of(a.reduced, a.reduced.n - 1, turn).in + at * step;
    body(numbers(a.elements, x + first * a.elements.bytes, step, n, buffer), n);
    lo += n;
  }
}

// Not inlined, as is all that calls what converts: the loops beside it keep their registers.
template <class Op>
__attribute__((noinline)) typename Op::W reduce_pieces(const ReduceArgs& a, const std::byte* x,
                                                       int64_t lo, int64_t hi) {
  auto total = Op::fold(splat(Op::kNothing));
  each_run<typename Op::C>(a, x, lo, hi, [&](const typename Op::C* p, int64_t n) {
    total = Op::join(total, fold_run<Op>(p, n));
  });
  return total;
}

template <class Op>
SDX_INLINE typename Op::W reduce_runs(const ReduceArgs& a, const std::byte* x, int64_t lo,
                                      int64_t hi) {
  using C = typename Op::C;
  const bool is_plain = a.elements.is_plain && a.reduced.n == 1 && a.reduced.last_step() == 1;
  if (is_plain && hi - lo <= kSumBlock<C>)
    return fold_run<Op>(reinterpret_cast<const C*>(x) + lo, hi - lo);
  return reduce_pieces<Op>(a, x, lo, hi);
}

// n totals, finished and written from `at` on.
template <class Op>
__attribute__((noinline)) void finish(const FinishedArgs<typename Op::W>& a, const Data& data,
                                      int64_t at, int64_t stride, int64_t n,
                                      typename Op::W* totals) {
  if (a.finish != nullptr) a.finish(totals, n, a.n);
  put<typename Op::C>(a.elements, data.out[0], at, stride, n, totals);
}
template <class Op>
SDX_INLINE void finish_one(const FinishedArgs<typename Op::W>& a, const Data& data, int64_t at,
                           typename Op::W total) {
  using C = typename Op::C;
  if (a.finish != nullptr || !a.elements.is_plain) return finish<Op>(a, data, at, 1, 1, &total);
  output<C>(data)[at] = C(total);
}

// Whether runs are so short that folding the lanes of one would take longer than reading it.
template <class Op>
SDX_INLINE bool has_short_runs(const ReduceArgs& a) {
  return a.elements.is_plain && a.reduced.n == 1 && a.n_chunks == 1 && a.reduced.last_step() == 1 &&
         a.n <= 8 * kLanesOf<typename Op::C>;
}

// Outputs [begin, end) of short runs, as many at once as a vector has lanes.
template <class Op>
void reduce_short_runs(const FinishedArgs<typename Op::W>& a, const Data& data, int64_t begin,
                       int64_t end) {
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
          input<C>(data, 0) + place.in, a.n, splat(Op::kNothing), Op::kNothing,
          [](auto p, auto q) { return Op::step(p, q); }, join);
    }
    C results[lanes];
    typename Op::W totals[lanes];
    store(results, fold_many(parts, join));
    for (int64_t i = 0; i < lanes; ++i) totals[i] = typename Op::W(results[i]);
    if (a.finish != nullptr) a.finish(totals, lanes, a.n);
    for (int64_t i = 0; i < count; ++i) output<C>(data)[to[i]] = C(totals[i]);
  }
}

template <class Op>
Status reduce_to_runs(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const FinishedArgs<typename Op::W>*>(args);
  using W = typename Op::W;
  if constexpr (std::is_same_v<typename Op::C, float>)
    if (has_short_runs<Op>(a)) return reduce_short_runs<Op>(a, data, begin, end), Status{};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t at = a.n_chunks > 1 ? item / a.n_chunks : item, part = item - at * a.n_chunks;
    const Place place = place_of(a.kept, a.kept.n, at);
    const int64_t lo = part * a.chunk, hi = lo + a.chunk < a.n ? lo + a.chunk : a.n;
    const std::byte* x = input<std::byte>(data, 0) + place.in * a.elements.bytes;
    const W total = reduce_runs<Op>(a, x, lo, hi);
    if (a.n_chunks > 1)
      reinterpret_cast<W*>(data.scratch)[item] = total;
    else
      finish_one<Op>(a, data, place.out, total);
  }
  return {};
}

// Adds n rows of kCount vectors of numbers, `step` apart, to `sums`.
template <class Op, int kCount, class C, class Lanes>
void add_rows(const C* x, int64_t step, int64_t n, Lanes lanes, Vec<C>* sums) {
  Vec<C> own[kCount];
  for (int j = 0; j < kCount; ++j) own[j] = sums[j];
  for (int64_t i = 0; i < n; ++i, x += step)
    for (int j = 0; j < kCount; ++j)
      own[j] = Op::step(own[j], load(x + j * kLanesOf<C>, lanes, Op::kNothing));
  for (int j = 0; j < kCount; ++j) sums[j] = own[j];
}

template <class Op, int kCount, class C, class Lanes>
__attribute__((noinline)) void add_fetched(const ReduceArgs& a, const std::byte* x, int64_t n,
                                           Lanes lanes, Vec<C>* sums) {
  constexpr int64_t kWidth = kCount * kLanesOf<C>, kRows = 4;
  int64_t width = kWidth;
  if constexpr (std::is_same_v<Lanes, Part>) width = lanes.n;
  const int64_t row = a.reduced.last_step() * a.elements.bytes, step = a.kept.last_step();
  C buffer[kRows * kWidth];
  for (int64_t i = 0; i < n; i += kRows) {
    const int64_t rows = n - i < kRows ? n - i : kRows;
    C* to = buffer;
    for (int64_t k = 0; k < rows; ++k, to += kWidth, x += row) {
      if (a.elements.is_plain)
        for (int64_t j = 0; j < width; ++j) to[j] = reinterpret_cast<const C*>(x)[j * step];
      else
        a.elements.fetch(x, step, width, to);
    }
    add_rows<Op, kCount>(buffer, kWidth, rows, lanes, sums);
  }
}

// Whether columns need neither be converted nor gathered.
SDX_INLINE bool is_in_place(const ReduceArgs& a) {
  return a.elements.is_plain && a.kept.last_step() == 1;
}

// Adds numbers [lo, hi) of kCount vectors of columns to `totals`.
template <class Op, int kCount, class Lanes>
void reduce_columns(const ReduceArgs& a, const std::byte* x, int64_t lo, int64_t hi, Lanes lanes,
                    typename Op::W* totals) {
  using C = typename Op::C;
  constexpr int64_t kWidth = kCount * kLanesOf<C>;
  int64_t width = kWidth;
  if constexpr (std::is_same_v<Lanes, Part>) width = lanes.n;
  const int64_t inner = a.reduced.last_size(), step = a.reduced.last_step();
  C buffer[kWidth];
  while (lo < hi) {
    Vec<C> sums[kCount];
    for (int j = 0; j < kCount; ++j) sums[j] = splat(Op::kNothing);
    const int64_t stop = lo + kLaneSums < hi ? lo + kLaneSums : hi;
    while (lo < stop) {
      const int64_t at = lo % inner, n = inner - at < stop - lo ? inner - at : stop - lo;
      const int64_t first = place_of(a.reduced, a.reduced.n - 1, lo / inner).in + at * step;
      const std::byte* p = x + first * a.elements.bytes;
      if (is_in_place(a))
        add_rows<Op, kCount>(reinterpret_cast<const C*>(p), step, n, lanes, sums);
      else
        add_fetched<Op, kCount, C>(a, p, n, lanes, sums);
      lo += n;
    }
    memcpy(buffer, sums, sizeof buffer);
    for (int64_t j = 0; j < width; ++j) totals[j] = Op::join(totals[j], typename Op::W(buffer[j]));
  }
}

template <class Op>
void reduce_block(const ReduceArgs& a, const std::byte* x, int64_t lo, int64_t hi, int64_t width,
                  typename Op::W* totals) {
  constexpr int64_t kStep = kLanesOf<typename Op::C>;
  for (int64_t j = 0; j < width; ++j) totals[j] = Op::fold(splat(Op::kNothing));
  const int64_t step = a.kept.last_step() * a.elements.bytes;
  int64_t j = 0;
  const auto by = [&]<int kCount>() {
    for (; j + kCount * kStep <= width; j += kCount * kStep)
      reduce_columns<Op, kCount>(a, x + j * step, lo, hi, Full{}, totals + j);
  };
  if (is_in_place(a)) by.template operator()<kWideBlock>();
  by.template operator()<kBlock>();
  if constexpr (std::is_same_v<typename Op::C, float>) by.template operator()<2>();
  by.template operator()<1>();
  if (j < width) reduce_columns<Op, 1>(a, x + j * step, lo, hi, Part{int(width - j)}, totals + j);
}

template <class Op>
Status reduce_to_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  using W = typename Op::W;
  const auto& a = *static_cast<const FinishedArgs<W>*>(args);
  W totals[kWideBlock * kLanesOf<typename Op::C>];
  const int64_t row = a.kept.last_size();
  for (int64_t item = begin; item < end; ++item) {
    const int64_t at = item / a.n_chunks, part = item % a.n_chunks;
    const int64_t outer = at / a.blocks, first = at % a.blocks * a.columns;
    const int64_t width = row - first < a.columns ? row - first : a.columns;
    const Place place = place_of(a.kept, a.kept.n - 1, outer);
    const int64_t lo = part * a.chunk, hi = lo + a.chunk < a.n ? lo + a.chunk : a.n;
    const int64_t from = place.in + first * a.kept.last_step();
    reduce_block<Op>(a, input<std::byte>(data, 0) + from * a.elements.bytes, lo, hi, width, totals);
    if (a.n_chunks > 1) {
      W* parts = reinterpret_cast<W*>(data.scratch) + (outer * row + first) * a.n_chunks + part;
      for (int64_t j = 0; j < width; ++j) parts[j * a.n_chunks] = totals[j];
    } else {
      const int64_t step = a.kept.last_out();
      finish<Op>(a, data, place.out + first * step, step, width, totals);
    }
  }
  return {};
}

// The second phase, where the first made parts: outputs [begin, end).
template <class Op>
Status reduce_parts(const void* args, const Data& data, int64_t begin, int64_t end) {
  using W = typename Op::W;
  const auto& a = *static_cast<const FinishedArgs<W>*>(args);
  for (int64_t at = begin; at < end; ++at) {
    const W* parts = reinterpret_cast<const W*>(data.scratch) + at * a.n_chunks;
    W total = parts[0];
    for (int64_t i = 1; i < a.n_chunks; ++i) total = Op::join(total, parts[i]);
    finish_one<Op>(a, data, place_of(a.kept, a.kept.n, at).out, total);
  }
  return {};
}

template <class Op>
Status prepare_reduction(const Call& call, Plan& plan, Finish<typename Op::W> finish = nullptr) {
  constexpr int64_t kColumns = kWideBlock * kLanesOf<typename Op::C>;
  using W = typename Op::W;
  auto* args = plan.make<FinishedArgs<W>>();
  plan.args = args;
  args->finish = finish;
  args->elements = elements_of<typename Op::C, W>(call.in[0].dtype);
  if (!args->elements.is_known())
    return Status::fail("the kernel does not take elements of type %d", int(call.in[0].dtype));
  const bool has_columns = plan_reduction(call, kColumns, *args);
  const int64_t work = args->chunk * args->columns / 8 + 8;
  if (has_columns)
    plan.add(reduce_to_columns<Op>,
             args->kept.count(args->kept.n - 1) * args->blocks * args->n_chunks, work);
  else
    plan.add(reduce_to_runs<Op>, args->n_out * args->n_chunks, work);
  if (args->n_chunks > 1) {
    plan.add(reduce_parts<Op>, args->n_out, args->n_chunks);
    plan.scratch_bytes = args->n_out * args->n_chunks * int64_t(sizeof(W));
  }
  return {};
}

}  // namespace
}  // namespace sdx::SDX_ISA
