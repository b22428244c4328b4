// Operations of reductions that add: sums of numbers, of magnitudes and of squares.
#pragma once

#include "kernels/reduce/reduce.h"

namespace sdx::SDX_ISA {

// Sums of floats are kept in double, those of integers wrap around in their own width.
template <class C_>
struct Sum {
  using C = C_;
  using W = std::conditional_t<std::is_floating_point_v<C>, double, C>;
  static constexpr C kNothing = 0;
  static SDX_INLINE Vec<C> step(Vec<C> total, Vec<C> x) { return total + x; }
  static SDX_INLINE Vec<C> join(Vec<C> a, Vec<C> b) { return a + b; }
  static SDX_INLINE W fold(Vec<C> v) { return fold_sum(v); }
  static SDX_INLINE W join(W a, W b) { return W(a + b); }
  static SDX_INLINE W finish(W total, int64_t) { return total; }
};

template <class T>
using Unsigned = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

// What sums of T are computed in: overflow of unsigned integers is defined.
template <class T>
struct SummedIn {
  using type = std::conditional_t<kIsFloat<T>, Wide<T>, Unsigned<T>>;
};
template <class T>
using Summed = typename SummedIn<T>::type;

using Summable = Types<float, double, F16, BF16, int32_t, int64_t, uint32_t, uint64_t>;

}  // namespace sdx::SDX_ISA
