// ReduceLogSumExp: log(sum(exp(x - max))) + max, two passes; subtracting the maximum first keeps
// exp from overflowing. Vectors run along the reduced elements, or along neighbouring outputs.
#include "kernels/reduce/kernels.h"
#include "kernels/reduce/min_max.h"
#include "kernels/reduce/reduce.h"
#include "simd/softmax_exp.h"

namespace sdx::SDX_ISA {
namespace {

template <class C, class Larger>
C top_of(const ReduceArgs& a, const std::byte* x, Larger larger) {
  C top = Largest::kWorst<C>;
  each_run<C>(a, x, 0, a.n, [&](const C* p, int64_t n) {
    top = fold(accumulate(p, n, splat(top), Largest::kWorst<C>, larger, larger), larger);
  });
  return top;
}

template <class C>
double log_sum_exp(const ReduceArgs& a, const std::byte* x) {
  // A plain maximum may lose a NaN, but exp(NaN) makes the sum NaN in any case.
  const C top = top_of<C>(a, x, [](auto p, auto q) { return p > q ? p : q; });
  // inf - inf would be NaN: an infinite maximum is the result, unless there is a NaN.
  if (!__builtin_isfinite(top))
    return double(top_of<C>(a, x, [](auto p, auto q) { return vmax(p, q); }));

  double total = 0;
  each_run<C>(a, x, 0, a.n, [&](const C* p, int64_t n) {
    const auto add = [&](Vec<C> sum, Vec<C> v) { return sum + vexp_softmax(v - top); };
    total += sum_of(p, n, Largest::kWorst<C>, add);
  });
  return __builtin_log(total) + double(top);
}

template <class C>
constexpr int64_t kColumns = 4 * kLanesOf<C>;  // outputs of an item

// Calls body(j, vector, lanes) for the columns of reduced elements [lo, hi), row by row.
template <class C, class Body>
void each_row(const ReduceArgs& a, const std::byte* x, int64_t width, int64_t lo, int64_t hi,
              Body&& body) {
  C buffer[kColumns<C>];
  for (int64_t i = lo; i < hi; ++i) {
    const int64_t at = offsets_of(a.reduced, a.reduced.n, i).in;
    const C* p =
        numbers(a.elements, x + at * a.elements.bytes, a.kept.last_stride(), width, buffer);
    vloop<C>(width, [&](int64_t j, auto lanes) { body(j, load(p + j, lanes), lanes); });
  }
}

// Items: blocks of neighbouring outputs.
template <class C>
Status run_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  C tops[kColumns<C>], sums[kColumns<C>];
  double totals[kColumns<C>];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % a.blocks * a.columns, rest = a.kept.last_size() - first;
    const int64_t width = rest < a.columns ? rest : a.columns;
    const Offsets place = offsets_of(a.kept, a.kept.n - 1, item / a.blocks);
    const int64_t from = place.in + first * a.kept.last_stride();
    const std::byte* x = input<std::byte>(data, 0) + from * a.elements.bytes;
    for (C& top : tops) top = Largest::kWorst<C>;
    each_row<C>(a, x, width, 0, a.n, [&](int64_t j, Vec<C> v, auto lanes) {
      store(tops + j, vmax(load(tops + j), v), lanes);
    });
    for (double& total : totals) total = 0;
    for (int64_t lo = 0; lo < a.n; lo += kLaneSums) {
      for (C& sum : sums) sum = 0;
      each_row<C>(a, x, width, lo, lo + kLaneSums < a.n ? lo + kLaneSums : a.n,
                  [&](int64_t j, Vec<C> v, auto lanes) {
                    store(sums + j, load(sums + j) + vexp_softmax(v - load(tops + j)), lanes);
                  });
      for (int64_t j = 0; j < width; ++j) totals[j] += double(sums[j]);
    }
    // An infinite maximum is the result; NaN, which vmax keeps, as well.
    for (int64_t j = 0; j < width; ++j)
      totals[j] = __builtin_isfinite(tops[j]) ? __builtin_log(totals[j]) + double(tops[j])
                                              : double(tops[j]);
    const int64_t stride = a.kept.last_out();
    put<C>(a.elements, data.out[0], place.out + first * stride, stride, width, totals);
  }
  return {};
}

template <class C>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  for (int64_t at = begin; at < end; ++at) {
    const Offsets place = offsets_of(a.kept, a.kept.n, at);
    const std::byte* x = input<std::byte>(data, 0) + place.in * a.elements.bytes;
    const double result = log_sum_exp<C>(a, x);
    put<C>(a.elements, data.out[0], place.out, 1, 1, &result);
  }
  return {};
}

}  // namespace

Status reduce_log_sum_exp(const Call& call, Plan& plan) {
  const DType dtype = call.in[0].dtype;
  auto* args = plan.make<ReduceArgs>();
  plan.args = args;
  const bool is_double = dtype == DType::f64;
  const bool has_columns =
      plan_reduction(call, is_double ? kColumns<double> : kColumns<float>, *args);
  args->elements =
      is_double ? elements_of<double, double>(dtype) : elements_of<float, double>(dtype);
  if (!args->elements.is_known())
    return Status::fail("the kernel is not implemented for element type %s", name_of(dtype));
  if (has_columns)
    plan.add(is_double ? run_columns<double> : run_columns<float>,
             args->kept.count(args->kept.n - 1) * args->blocks, args->n * args->columns / 2 + 20);
  else
    plan.add(is_double ? run_items<double> : run_items<float>, args->n_out, args->n + 20);
  return {};
}

}  // namespace sdx::SDX_ISA
