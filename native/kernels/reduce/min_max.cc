// ReduceMax and ReduceMin; NaN propagates.
#include "kernels/reduce/min_max.h"

#include "kernels/reduce/kernels.h"
#include "kernels/reduce/reduce.h"

namespace sdx::SDX_ISA {
namespace {

// The best element, of which NaNs may get lost, and the sum of x * 0: 0 unless there was a NaN or
// an infinity.
template <class C>
struct Best {
  Vec<C> best, zero;
};

// Contiguous floats. Plain max plus one FMA per vector is faster than a NaN-propagating max; only
// if the FMA shows that there may be a NaN does the slow path run.
template <class Order, class C>
SDX_INLINE C best_float(const C* x, int64_t n) {
  const auto step = [](Best<C> a, Vec<C> v) {
    return Best<C>{Order::is_better(a.best, v) ? a.best : v, a.zero + v * 0};
  };
  const auto join = [](Best<C> a, Best<C> b) {
    return Best<C>{Order::is_better(a.best, b.best) ? a.best : b.best, a.zero + b.zero};
  };
  const auto better = [](auto a, auto b) { return Order::better(a, b); };
  constexpr C kWorst = Order::template kWorst<C>;
  if (n == 0) return kWorst;
  const Best<C> result = accumulate(x, n, Best<C>{splat(kWorst), Vec<C>{}}, x[0], step, join);
  if (fold_sum(result.zero) == 0) return fold(result.best, better);
  return fold(accumulate(x, n, splat(kWorst), kWorst, better, better), better);
}

template <class Order, class C_>
struct Extreme {
  using C = C_;
  using W = C;
  static constexpr C kNothing = Order::template kWorst<C>;
  static SDX_INLINE Vec<C> step(Vec<C> best, Vec<C> x) { return Order::better(best, x); }
  static SDX_INLINE Vec<C> join(Vec<C> a, Vec<C> b) { return Order::better(a, b); }
  static SDX_INLINE W fold(Vec<C> v) {
    return sdx::SDX_ISA::fold(v, [](auto a, auto b) { return Order::better(a, b); });
  }
  static SDX_INLINE W run(const C* x, int64_t n)
    requires std::is_floating_point_v<C>
  {
    return best_float<Order>(x, n);
  }
  static SDX_INLINE W join(W a, W b) { return a != a || Order::is_better(a, b) ? a : b; }
};

template <class Order>
Status prepare(const Call& call, Plan& plan) {
  switch (call.in[0].dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16: return prepare_reduction<Extreme<Order, float>>(call, plan);
    case DType::f64: return prepare_reduction<Extreme<Order, double>>(call, plan);
    case DType::i32: return prepare_reduction<Extreme<Order, int32_t>>(call, plan);
    case DType::u64: return prepare_reduction<Extreme<Order, uint64_t>>(call, plan);
    default: return prepare_reduction<Extreme<Order, int64_t>>(call, plan);
  }
}

}  // namespace

Status reduce_max(const Call& call, Plan& plan) { return prepare<Largest>(call, plan); }
Status reduce_min(const Call& call, Plan& plan) { return prepare<Smallest>(call, plan); }

}  // namespace sdx::SDX_ISA
