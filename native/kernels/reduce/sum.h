// The additive reductions: sums of numbers, and the base of sums of magnitudes and of squares.
#pragma once

#include "kernels/reduce/reduce.h"

namespace sdx::SDX_ISA {

// Sums of floats are widened to double. Those of integers wrap around in uint64, whose low bits are
// the sum in any narrower type.
template <class C_>
struct Sum {
  using C = C_;
  using W = std::conditional_t<std::is_floating_point_v<C>, double, C>;
  static constexpr C kNothing = 0;
  static SDX_INLINE Vec<C> step(Vec<C> total, Vec<C> x) { return total + x; }
  static SDX_INLINE Vec<C> join(Vec<C> a, Vec<C> b) { return a + b; }
  static SDX_INLINE W fold(Vec<C> v) { return fold_sum(v); }
  static SDX_INLINE W join(W a, W b) { return W(a + b); }
};

SDX_INLINE bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}
SDX_INLINE bool is_signed(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

}  // namespace sdx::SDX_ISA
