// Loops on f32 and f64: arithmetic, comparisons and activations without transcendental functions.
#include "kernels/elementwise/instruction.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

// |x| by clearing the sign bit, NaN and -0 included.
template <class T>
SDX_INLINE Vec<T> magnitude(Vec<T> x) {
  using Bits = Vec<SignedOf<T>>;
  return (Vec<T>)((Bits)x & Bits(splat(~(SignedOf<T>(1) << (8 * sizeof(T) - 1)))));
}

template <class T>
SDX_INLINE Vec<T> hard_sigmoid(Vec<T> x, T alpha, T beta) {
  return vmin(vmax(x * alpha + beta, Vec<T>{}), splat(T(1)));
}

template <class T>
SDX_INLINE Vec<T> shrunk(Vec<T> x, T lambd, T bias) {
  return x < -lambd ? x + bias : x > lambd ? x - bias : Vec<T>{};
}

// A side that does not count is compared with NaN, which equals nothing.
template <class T>
SDX_INLINE auto is_infinite(Vec<T> x, T below, T above) {
  const Vec<T> end = splat(T(__builtin_inf()));
  const Vec<T> low = below != 0 ? -end : splat(T(__builtin_nan("")));
  const Vec<T> high = above != 0 ? end : splat(T(__builtin_nan("")));
  return (x == low) | (x == high);
}

// The table of loops for one type; max, min and relu propagate NaN (simd/vec.h).
template <class T>
struct Of {
  using V = Vec<T>;
  static constexpr Loop kLoops[] = {
      {ChainOp::add, map2<T, [](V a, V b) { return a + b; }>},
      {ChainOp::sub, map2<T, [](V a, V b) { return a - b; }>},
      {ChainOp::mul, map2<T, [](V a, V b) { return a * b; }>},
      {ChainOp::div, map2<T, [](V a, V b) { return a / b; }>},
      {ChainOp::max, map2<T, [](V a, V b) { return vmax(a, b); }>},
      {ChainOp::min, map2<T, [](V a, V b) { return vmin(a, b); }>},
      {ChainOp::prelu, map2<T, [](V a, V b) { return a < 0 ? a * b : a; }>},
      {ChainOp::abs, map1<T, [](V a) { return magnitude<T>(a); }>},
      {ChainOp::neg, map1<T, [](V a) { return -a; }>},
      {ChainOp::relu, map1<T, [](V a) { return vmax(a, V{}); }>},
      {ChainOp::reciprocal, map1<T, [](V a) { return T(1) / a; }>},
      {ChainOp::softsign, map1<T, [](V a) { return a / (T(1) + magnitude<T>(a)); }>},
      {ChainOp::leaky_relu, map1p<T, [](V a, T p, T) { return a < 0 ? a * p : a; }>},
      {ChainOp::divide_by, map1p<T, [](V a, T p, T) { return a / p; }>},
      {ChainOp::thresholded_relu, map1p<T, [](V a, T p, T) { return (a > p) ? a : V{}; }>},
      {ChainOp::hard_sigmoid, map1p<T, [](V a, T p, T q) { return hard_sigmoid<T>(a, p, q); }>},
      {ChainOp::hard_swish,
       map1<T, [](V a) { return a * hard_sigmoid<T>(a, T(1.0 / 6), T(0.5)); }>},
      {ChainOp::shrink, map1p<T, [](V a, T p, T q) { return shrunk<T>(a, p, q); }>},
      {ChainOp::equal, compare<T, [](V a, V b) { return a == b; }>},
      {ChainOp::less, compare<T, [](V a, V b) { return a < b; }>},
      {ChainOp::less_equal, compare<T, [](V a, V b) { return a <= b; }>},
      {ChainOp::greater, compare<T, [](V a, V b) { return (a > b); }>},
      {ChainOp::greater_equal, compare<T, [](V a, V b) { return (a >= b); }>},
      {ChainOp::is_nan, test<T, [](V a, T, T) { return a != a; }>},
      {ChainOp::is_inf, test<T, [](V a, T p, T q) { return is_infinite<T>(a, p, q); }>},
  };
};

}  // namespace

LoopFn find_arithmetic_loop(ChainOp op, DType type) {
  return type == DType::f32 ? find_in(Of<float>::kLoops, op) : find_in(Of<double>::kLoops, op);
}

}  // namespace sdx::SDX_ISA
