// ReduceLogSumExp: log(sum(exp(x - max))) + max, two passes; subtracting the maximum first keeps
// exp from overflowing.
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
  plan_reduction(call, 1, *args);
  const bool is_double = dtype == DType::f64;
  args->elements =
      is_double ? elements_of<double, double>(dtype) : elements_of<float, double>(dtype);
  if (!args->elements.is_known())
    return Status::fail("the kernel does not take elements of type %d", int(dtype));
  plan.add(is_double ? run_items<double> : run_items<float>, args->n_out, args->n + 20);
  return {};
}

}  // namespace sdx::SDX_ISA
