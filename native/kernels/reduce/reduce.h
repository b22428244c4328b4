// Reductions over any axes. An Op defines the arithmetic on vectors; this header applies it along
// runs (reduced elements are contiguous) and columns (kept elements are contiguous), with a second
// phase over partial results where there are too few outputs for all threads.
//
//   struct Op {
//     using C = ...;                        // arithmetic type of vectors
//     using W = ...;                        // type of partial and final results
//     static constexpr C kNothing;          // the identity
//     static Vec<C> step(Vec<C>, Vec<C>);   // one more element in each lane
//     static Vec<C> join(Vec<C>, Vec<C>);   // two accumulators
//     static W fold(Vec<C>);                // horizontal reduction of one
//     static W join(W, W);
//   };
//
// An Op may have a `static W run(const C*, int64_t)` of its own for contiguous elements.
#pragma once

#include "kernels/axes.h"
#include "kernels/kernel.h"
#include "kernels/reduce/elements.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {

struct ReduceArgs {
  Axes kept, reduced;
  Elements elements;
  int64_t n_out = 1;     // outputs
  int64_t n = 1;         // reduced elements of each output
  int64_t n_chunks = 1;  // of the reduced range, where there are too few outputs for all threads
  int64_t chunk = 1;     // elements of a chunk
  int64_t columns = 1;   // outputs of an item, if kept elements are contiguous
  int64_t blocks = 1;    // column blocks in the last kept axis
};

// Final transformation of n totals, each over `count` elements (mean, root, logarithm).
template <class W>
using Finish = void (*)(W* totals, int64_t n, int64_t count);

template <class W>
struct FinishedArgs : ReduceArgs {
  Finish<W> finish;  // null: none
};

// Fills in the sizes; returns whether to reduce columns (true) or runs (false).
bool plan_reduction(const Call& call, int64_t block_columns, ReduceArgs& args);

namespace {

constexpr int kRunBuffer = 1024;  // elements that are converted at a time
constexpr int kBlock = 8;         // vectors of columns at a time: independent accumulators
// As many as half the register file holds, where elements are read in place: longer contiguous
// reads.
constexpr int kWideBlock = SDX_VEC_BYTES == 64 ? 16 : 8;

template <class Op, class C = typename Op::C>
SDX_INLINE typename Op::W fold_run(const C* x, int64_t n) {
  if constexpr (requires { Op::run(x, n); }) return Op::run(x, n);
  return Op::fold(accumulate(
      x, n, splat(Op::kNothing), Op::kNothing, [](auto a, auto b) { return Op::step(a, b); },
      [](auto a, auto b) { return Op::join(a, b); }));
}

// Calls body(numbers, n) for runs of the reduced elements [lo, hi) of the output whose data is at
// x.
template <class C, class Body>
SDX_INLINE void each_run(const ReduceArgs& a, const std::byte* x, int64_t lo, int64_t hi,
                         Body&& body) {
  C buffer[kRunBuffer];
  const int64_t inner = a.reduced.last_size(), stride = a.reduced.last_stride();
  const int64_t limit = a.elements.is_plain && stride == 1 ? kSumBlock<C> : kRunBuffer;
  while (lo < hi) {
    const int64_t outer = a.reduced.n > 1 ? lo / inner : 0, at = lo - outer * inner;
    const int64_t rest = inner - at < hi - lo ? inner - at : hi - lo;
    const int64_t n = rest < limit ? rest : limit;
    const int64_t first = offsets_of(a.reduced, a.reduced.n - 1, outer).in + at * stride;
    body(numbers(a.elements, x + first * a.elements.bytes, stride, n, buffer), n);
    lo += n;
  }
}

// Not inlined, like everything that calls conversions through pointers: such calls clobber all
// vector registers, and the fast loops should not pay for it.
template <class Op>
__attribute__((noinline)) typename Op::W reduce_fetched_runs(const ReduceArgs& a,
                                                             const std::byte* x, int64_t lo,
                                                             int64_t hi) {
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
  const bool is_plain = a.elements.is_plain && a.reduced.n == 1 && a.reduced.last_stride() == 1;
  if (is_plain && hi - lo <= kSumBlock<C>)
    return fold_run<Op>(reinterpret_cast<const C*>(x) + lo, hi - lo);
  return reduce_fetched_runs<Op>(a, x, lo, hi);
}

// Transforms and writes n totals from `at` on.
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

template <class C>
constexpr int64_t kFoldedRun = 8 * kLanesOf<C>;  // elements of runs that fold_many reduces

// Whether runs are so short that the horizontal reduction would dominate.
template <class Op>
SDX_INLINE bool has_short_runs(const ReduceArgs& a) {
  return a.reduced.n == 1 && a.n_chunks == 1 && a.reduced.last_stride() == 1 &&
         a.n <= kFoldedRun<typename Op::C>;
}

// Outputs [begin, end) of short runs: as many at a time as a vector has lanes, so that a
// transposing reduction (fold_many) replaces the horizontal one of each.
template <class Op, bool kIsPlain>
void reduce_short_runs(const FinishedArgs<typename Op::W>& a, const Data& data, int64_t begin,
                       int64_t end) {
  using C = typename Op::C;
  constexpr int64_t lanes = kLanesOf<C>;
  const auto join = [](auto p, auto q) { return Op::join(p, q); };
  for (int64_t item = begin; item < end; item += lanes) {
    const int64_t count = end - item < lanes ? end - item : lanes;
    Vec<C> partials[lanes];
    int64_t to[lanes];
    C buffer[kIsPlain ? 1 : kFoldedRun<C>];
    for (int64_t i = 0; i < lanes; ++i) {
      const Offsets place = offsets_of(a.kept, a.kept.n, item + (i < count ? i : count - 1));
      to[i] = place.out;
      const C* run = input<C>(data, 0) + place.in;
      if constexpr (!kIsPlain) {
        const std::byte* x = input<std::byte>(data, 0) + place.in * a.elements.bytes;
        run = numbers(a.elements, x, 1, a.n, buffer);
      }
      partials[i] = accumulate(
          run, a.n, splat(Op::kNothing), Op::kNothing,
          [](auto p, auto q) { return Op::step(p, q); }, join);
    }
    C results[lanes];
    typename Op::W totals[lanes];
    store(results, fold_many(partials, join));
    for (int64_t i = 0; i < lanes; ++i) totals[i] = typename Op::W(results[i]);
    if (a.finish != nullptr) a.finish(totals, lanes, a.n);
    for (int64_t i = 0; i < count; ++i) {
      if constexpr (kIsPlain)
        output<C>(data)[to[i]] = C(totals[i]);
      else
        put<C>(a.elements, data.out[0], to[i], 1, 1, totals + i);
    }
  }
}

// Phase 1 along runs: items are (output, chunk).
template <class Op>
Status reduce_to_runs(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const FinishedArgs<typename Op::W>*>(args);
  using W = typename Op::W;
  if constexpr (std::is_same_v<typename Op::C, float>)
    if (has_short_runs<Op>(a)) {
      a.elements.is_plain ? reduce_short_runs<Op, true>(a, data, begin, end)
                          : reduce_short_runs<Op, false>(a, data, begin, end);
      return {};
    }
  for (int64_t item = begin; item < end; ++item) {
    const int64_t at = a.n_chunks > 1 ? item / a.n_chunks : item, chunk = item - at * a.n_chunks;
    const Offsets place = offsets_of(a.kept, a.kept.n, at);
    const int64_t lo = chunk * a.chunk, hi = lo + a.chunk < a.n ? lo + a.chunk : a.n;
    const std::byte* x = input<std::byte>(data, 0) + place.in * a.elements.bytes;
    const W total = reduce_runs<Op>(a, x, lo, hi);
    if (a.n_chunks > 1)
      reinterpret_cast<W*>(data.scratch)[item] = total;
    else
      finish_one<Op>(a, data, place.out, total);
  }
  return {};
}

// Reduces n rows of kCount vectors, `stride` apart, into `accumulators`. They are copied to locals
// for the loop, so that they stay in registers.
template <class Op, int kCount, class C, class Lanes>
void add_rows(const C* x, int64_t stride, int64_t n, Lanes lanes, Vec<C>* accumulators) {
  Vec<C> local[kCount];
  for (int j = 0; j < kCount; ++j) local[j] = accumulators[j];
  for (int64_t i = 0; i < n; ++i, x += stride)
    for (int j = 0; j < kCount; ++j)
      local[j] = Op::step(local[j], load(x + j * kLanesOf<C>, lanes, Op::kNothing));
  for (int j = 0; j < kCount; ++j) accumulators[j] = local[j];
}

// The same for columns that are converted or gathered into a small buffer first.
template <class Op, int kCount, class C, class Lanes>
__attribute__((noinline)) void add_fetched(const ReduceArgs& a, const std::byte* x, int64_t n,
                                           Lanes lanes, Vec<C>* accumulators) {
  constexpr int64_t kWidth = kCount * kLanesOf<C>, kRows = 4;
  int64_t width = kWidth;
  if constexpr (std::is_same_v<Lanes, Part>) width = lanes.n;
  const int64_t row = a.reduced.last_stride() * a.elements.bytes, stride = a.kept.last_stride();
  C buffer[kRows * kWidth];
  for (int64_t i = 0; i < n; i += kRows) {
    const int64_t rows = n - i < kRows ? n - i : kRows;
    C* to = buffer;
    for (int64_t k = 0; k < rows; ++k, to += kWidth, x += row) {
      if (a.elements.is_plain)
        for (int64_t j = 0; j < width; ++j) to[j] = reinterpret_cast<const C*>(x)[j * stride];
      else
        a.elements.fetch(x, stride, width, to);
    }
    add_rows<Op, kCount>(buffer, kWidth, rows, lanes, accumulators);
  }
}

// Whether columns need neither conversion nor gathering.
SDX_INLINE bool is_in_place(const ReduceArgs& a) {
  return a.elements.is_plain && a.kept.last_stride() == 1;
}

// Reduces elements [lo, hi) of kCount vectors of columns into `totals`. Vector accumulators are
// widened after every kLaneSums elements, which bounds the rounding error of float sums.
template <class Op, int kCount, class Lanes>
void reduce_columns(const ReduceArgs& a, const std::byte* x, int64_t lo, int64_t hi, Lanes lanes,
                    typename Op::W* totals) {
  using C = typename Op::C;
  constexpr int64_t kWidth = kCount * kLanesOf<C>;
  int64_t width = kWidth;
  if constexpr (std::is_same_v<Lanes, Part>) width = lanes.n;
  const int64_t inner = a.reduced.last_size(), stride = a.reduced.last_stride();
  C buffer[kWidth];
  while (lo < hi) {
    Vec<C> accumulators[kCount];
    for (int j = 0; j < kCount; ++j) accumulators[j] = splat(Op::kNothing);
    const int64_t stop = lo + kLaneSums < hi ? lo + kLaneSums : hi;
    while (lo < stop) {
      const int64_t at = lo % inner, n = inner - at < stop - lo ? inner - at : stop - lo;
      const int64_t first = offsets_of(a.reduced, a.reduced.n - 1, lo / inner).in + at * stride;
      const std::byte* p = x + first * a.elements.bytes;
      if (is_in_place(a))
        add_rows<Op, kCount>(reinterpret_cast<const C*>(p), stride, n, lanes, accumulators);
      else
        add_fetched<Op, kCount, C>(a, p, n, lanes, accumulators);
      lo += n;
    }
    memcpy(buffer, accumulators, sizeof buffer);
    for (int64_t j = 0; j < width; ++j) totals[j] = Op::join(totals[j], typename Op::W(buffer[j]));
  }
}

// One block of columns, in groups of as many vectors as still fit.
template <class Op>
void reduce_block(const ReduceArgs& a, const std::byte* x, int64_t lo, int64_t hi, int64_t width,
                  typename Op::W* totals) {
  constexpr int64_t kStep = kLanesOf<typename Op::C>;
  for (int64_t j = 0; j < width; ++j) totals[j] = Op::fold(splat(Op::kNothing));
  const int64_t stride = a.kept.last_stride() * a.elements.bytes;
  int64_t j = 0;
  const auto by = [&]<int kCount>() {
    for (; j + kCount * kStep <= width; j += kCount * kStep)
      reduce_columns<Op, kCount>(a, x + j * stride, lo, hi, Full{}, totals + j);
  };
  if (is_in_place(a)) by.template operator()<kWideBlock>();
  by.template operator()<kBlock>();
  if constexpr (std::is_same_v<typename Op::C, float>) by.template operator()<2>();
  by.template operator()<1>();
  if (j < width) reduce_columns<Op, 1>(a, x + j * stride, lo, hi, Part{int(width - j)}, totals + j);
}

// Phase 1 along columns: items are (outer position, column block, chunk).
template <class Op>
Status reduce_to_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  using W = typename Op::W;
  const auto& a = *static_cast<const FinishedArgs<W>*>(args);
  W totals[kWideBlock * kLanesOf<typename Op::C>];
  const int64_t row = a.kept.last_size();
  for (int64_t item = begin; item < end; ++item) {
    const int64_t at = item / a.n_chunks, chunk = item % a.n_chunks;
    const int64_t outer = at / a.blocks, first = at % a.blocks * a.columns;
    const int64_t width = row - first < a.columns ? row - first : a.columns;
    const Offsets place = offsets_of(a.kept, a.kept.n - 1, outer);
    const int64_t lo = chunk * a.chunk, hi = lo + a.chunk < a.n ? lo + a.chunk : a.n;
    const int64_t from = place.in + first * a.kept.last_stride();
    reduce_block<Op>(a, input<std::byte>(data, 0) + from * a.elements.bytes, lo, hi, width, totals);
    if (a.n_chunks > 1) {
      W* partials = reinterpret_cast<W*>(data.scratch) + (outer * row + first) * a.n_chunks + chunk;
      for (int64_t j = 0; j < width; ++j) partials[j * a.n_chunks] = totals[j];
    } else {
      const int64_t stride = a.kept.last_out();
      finish<Op>(a, data, place.out + first * stride, stride, width, totals);
    }
  }
  return {};
}

// Phase 2 of chunked reductions: joins the partial results of outputs [begin, end) in chunk order.
template <class Op>
Status reduce_partials(const void* args, const Data& data, int64_t begin, int64_t end) {
  using W = typename Op::W;
  const auto& a = *static_cast<const FinishedArgs<W>*>(args);
  for (int64_t at = begin; at < end; ++at) {
    const W* partials = reinterpret_cast<const W*>(data.scratch) + at * a.n_chunks;
    W total = partials[0];
    for (int64_t i = 1; i < a.n_chunks; ++i) total = Op::join(total, partials[i]);
    finish_one<Op>(a, data, offsets_of(a.kept, a.kept.n, at).out, total);
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
    return Status::fail("the kernel is not implemented for element type %s",
                        name_of(call.in[0].dtype));
  const bool has_columns = plan_reduction(call, kColumns, *args);
  const int64_t work = args->chunk * args->columns / 8 + 8;
  if (has_columns)
    plan.add(reduce_to_columns<Op>,
             args->kept.count(args->kept.n - 1) * args->blocks * args->n_chunks, work);
  else
    plan.add(reduce_to_runs<Op>, args->n_out * args->n_chunks, work);
  if (args->n_chunks > 1) {
    plan.add(reduce_partials<Op>, args->n_out, args->n_chunks);
    plan.scratch_bytes = args->n_out * args->n_chunks * int64_t(sizeof(W));
  }
  return {};
}

}  // namespace
}  // namespace sdx::SDX_ISA
