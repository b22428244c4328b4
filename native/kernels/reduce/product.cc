// ReduceProd and ReduceLogSum.
#include "kernels/reduce/rows.h"
#include "kernels/reduce/sums.h"

namespace sdx::SDX_ISA {
namespace {

template <class C_>
struct Product {
  using C = C_;
  using W = C;
  static constexpr C kNothing = 1;
  static SDX_INLINE Vec<C> step(Vec<C> total, Vec<C> x) { return total * x; }
  static SDX_INLINE Vec<C> join(Vec<C> a, Vec<C> b) { return a * b; }
  static SDX_INLINE W fold(Vec<C> v) {
    return sdx::SDX_ISA::fold(v, [](auto a, auto b) { return a * b; });
  }
  static SDX_INLINE W join(W a, W b) { return W(a * b); }
  static SDX_INLINE W finish(W total, int64_t) { return total; }
};

template <class C>
struct LogSum : Sum<C> {
  static SDX_INLINE double finish(double total, int64_t) { return __builtin_log(total); }
};

}  // namespace

Status reduce_prod(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{}, [&]<class T>() {
    using C = std::conditional_t<kIsFloat<T>, double, Summed<T>>;
    return prepare_reduction<Product<C>, T>(call, plan);
  });
}

Status reduce_log_sum(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Floats{},
               [&]<class T>() { return prepare_reduction<LogSum<Wide<T>>, T>(call, plan); });
}

}  // namespace sdx::SDX_ISA
