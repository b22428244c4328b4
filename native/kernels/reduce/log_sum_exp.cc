// ReduceLogSumExp: the largest number is taken off first, so that no exp overflows.
#include "kernels/reduce/extreme.h"
#include "kernels/reduce/reduce.h"
#include "kernels/reduce/rows.h"
#include "simd/exp_down.h"

namespace sdx::SDX_ISA {
namespace {

template <class C, class T>
double log_sum_exp(const ReduceArgs& a, const T* x) {
  C top = Largest::kWorst<C>;
  const auto larger = [](auto p, auto q) { return vmax(p, q); };
  each_run<C>(a.reduced, x, 0, a.n, [&](const C* p, int64_t n) {
    top = fold(run(p, n, splat(top), Largest::kWorst<C>, larger, larger), larger);
  });
  if (!__builtin_isfinite(top)) return double(top);  // infinities must not meet in a difference

  double total = 0;
  each_run<C>(a.reduced, x, 0, a.n, [&](const C* p, int64_t n) {
    const auto add = [&](Vec<C> sum, Vec<C> v) { return sum + vexp_down(v - top); };
    total += sum_of(p, n, Largest::kWorst<C>, add);
  });
  return __builtin_log(total) + double(top);
}

template <class T>
Status run_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ReduceArgs*>(args);
  for (int64_t at = begin; at < end; ++at) {
    const Place place = place_of(a.kept, a.kept.n, at);
    const double found = log_sum_exp<Wide<T>>(a, input<T>(data, 0) + place.in);
    output<T>(data)[place.out] = element<T>(found);
  }
  return {};
}

}  // namespace

Status reduce_log_sum_exp(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{}, [&]<class T>() {
    auto* args = plan.make<ReduceArgs>();
    plan.args = args;
    plan_reduction(call, 1, *args);
    plan.add(run_items<T>, args->n_out, args->n + 20);
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
