// ReduceL1, ReduceL2 and ReduceSumSquare.
#include "kernels/reduce/kernels.h"
#include "kernels/reduce/sum.h"

namespace sdx::SDX_ISA {
namespace {

template <class C>
struct SumSquare : Sum<C> {
  static SDX_INLINE Vec<C> step(Vec<C> total, Vec<C> x) { return total + x * x; }
};

// S is the signed type that decides which elements are negative: integers are held in uint64.
template <class C, class S = C>
struct L1 : Sum<C> {
  static SDX_INLINE Vec<C> step(Vec<C> total, Vec<C> x) { return total + ((Vec<S>)x < 0 ? -x : x); }
};

void root(double* totals, int64_t n, int64_t) {
  for (int64_t i = 0; i < n; ++i) totals[i] = __builtin_sqrt(totals[i]);
}

}  // namespace

Status reduce_sum_square(const Call& call, Plan& plan) {
  const DType dtype = call.in[0].dtype;
  if (is_float(dtype)) return prepare_reduction<SumSquare<float>>(call, plan);
  if (dtype == DType::f64) return prepare_reduction<SumSquare<double>>(call, plan);
  return prepare_reduction<SumSquare<uint64_t>>(call, plan);
}

// Squares of f32 overflow before their root does; those of f16 do not.
Status reduce_l2(const Call& call, Plan& plan) {
  if (call.in[0].dtype == DType::f16) return prepare_reduction<SumSquare<float>>(call, plan, root);
  return prepare_reduction<SumSquare<double>>(call, plan, root);
}

Status reduce_l1(const Call& call, Plan& plan) {
  const DType dtype = call.in[0].dtype;
  if (is_float(dtype)) return prepare_reduction<L1<float>>(call, plan);
  if (dtype == DType::f64) return prepare_reduction<L1<double>>(call, plan);
  if (is_signed(dtype)) return prepare_reduction<L1<uint64_t, int64_t>>(call, plan);
  return prepare_reduction<Sum<uint64_t>>(call, plan);
}

}  // namespace sdx::SDX_ISA
