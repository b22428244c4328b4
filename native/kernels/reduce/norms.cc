// ReduceL1, ReduceL2 and ReduceSumSquare.
#include "kernels/reduce/rows.h"
#include "kernels/reduce/sums.h"

namespace sdx::SDX_ISA {
namespace {

template <class C>
struct SumSquare : Sum<C> {
  static SDX_INLINE Vec<C> step(Vec<C> total, Vec<C> x) { return total + x * x; }
};

struct L2 : SumSquare<double> {
  static SDX_INLINE double finish(double total, int64_t) { return __builtin_sqrt(total); }
};

// S is the signed type whose sign bit counts; unsigned numbers are their own magnitude.
template <class C, class S>
struct L1 : Sum<C> {
  static SDX_INLINE Vec<C> step(Vec<C> total, Vec<C> x) {
    if constexpr (std::is_unsigned_v<S>)
      return total + x;
    else
      return total + ((Vec<S>)x < 0 ? -x : x);
  }
};

}  // namespace

Status reduce_sum_square(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{},
               [&]<class T>() { return prepare_reduction<SumSquare<Summed<T>>, T>(call, plan); });
}

Status reduce_l2(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{},
               [&]<class T>() { return prepare_reduction<L2, T>(call, plan); });
}

Status reduce_l1(const Call& call, Plan& plan) {
  return visit(call.in[0].dtype, Summable{}, [&]<class T>() {
    using S = std::conditional_t<kIsHalf<T>, float, T>;
    return prepare_reduction<L1<Summed<T>, S>, T>(call, plan);
  });
}

}  // namespace sdx::SDX_ISA
