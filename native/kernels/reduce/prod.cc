// ReduceProd: floats multiply in double, integers wrap around in uint64.
#include "kernels/reduce/kernels.h"
#include "kernels/reduce/sum.h"

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
};

}  // namespace

Status reduce_prod(const Call& call, Plan& plan) {
  const DType dtype = call.in[0].dtype;
  if (is_float(dtype) || dtype == DType::f64) return prepare_reduction<Product<double>>(call, plan);
  return prepare_reduction<Product<uint64_t>>(call, plan);
}

}  // namespace sdx::SDX_ISA
