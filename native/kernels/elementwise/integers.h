// Loops on integers: arithmetic wraps around, and division by zero is reported.
#pragma once

#include "kernels/elementwise/instruction.h"

namespace sdx::SDX_ISA {
namespace {

template <class T>
constexpr bool kIsSigned = T(-1) < T(0);

// Signed overflow is undefined in C++: wrapping arithmetic runs on the unsigned type.
template <class T>
SDX_INLINE auto wrapping(Vec<T> a) {
  return (Vec<UnsignedOf<T>>)a;
}

// Integer division has no vector instruction; false for a divisor of 0.
template <class T, auto f>
bool divide(const LoopArgs& s) {
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  T* out = static_cast<T*>(s.out);
  for (int64_t i = 0; i < s.n; ++i) {
    const T y = b[i * s.stride[1]];
    if (y == 0) return false;
    out[i] = f(a[i * s.stride[0]], y);
  }
  return true;
}

// A divisor of -1 would overflow for the smallest number (and trap on x86): it negates instead.
template <class T>
SDX_INLINE T quotient(T a, T b) {
  if constexpr (kIsSigned<T>)
    if (b == T(-1)) return T(UnsignedOf<T>(0) - UnsignedOf<T>(a));
  return T(a / b);
}
template <class T>
SDX_INLINE T remainder(T a, T b) {
  if constexpr (kIsSigned<T>)
    if (b == T(-1)) return 0;
  return T(a % b);
}
// Mod with fmod = 0: the remainder has the sign of the divisor.
template <class T>
SDX_INLINE T floor_remainder(T a, T b) {
  const T rest = remainder(a, b);
  if constexpr (kIsSigned<T>)
    if (rest != 0 && (rest < 0) != (b < 0)) return T(rest + b);
  return rest;
}

// Exponentiation by squaring; negative exponents truncate 1 / n to 0.
template <class T>
SDX_INLINE T power(T base, T exponent) {
  if constexpr (kIsSigned<T>) {
    if (exponent < 0) {
      if (base != 1 && base != T(-1)) return 0;
      exponent &= 1;
    }
  }
  UnsignedOf<T> result = 1, factor = UnsignedOf<T>(base);
  for (UnsignedOf<T> left = UnsignedOf<T>(exponent); left != 0; left >>= 1) {
    if (left & 1) result = UnsignedOf<T>(result * factor);
    factor = UnsignedOf<T>(factor * factor);
  }
  return T(result);
}

template <class T>
bool pow(const LoopArgs& s) {
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  T* out = static_cast<T*>(s.out);
  for (int64_t i = 0; i < s.n; ++i) out[i] = power(a[i * s.stride[0]], b[i * s.stride[1]]);
  return true;
}

// A shift by at least the width gives 0, or the sign: C++ leaves it undefined, x86 masks the count.
template <class T>
SDX_INLINE Vec<T> shifted_left(Vec<T> a, Vec<T> b) {
  using U = UnsignedOf<T>;
  const auto inside = (Vec<U>)b < U(8 * sizeof(T));
  const Vec<U> by = inside ? (Vec<U>)b : Vec<U>{};
  return (Vec<T>)(inside ? (Vec<U>)a << by : Vec<U>{});
}
template <class T>
SDX_INLINE Vec<T> shifted_right(Vec<T> a, Vec<T> b) {
  using U = UnsignedOf<T>;
  constexpr U most = 8 * sizeof(T);
  const auto inside = (Vec<U>)b < most;
  const Vec<U> by = inside ? (Vec<U>)b : splat(U(most - 1));
  const Vec<T> moved = a >> (Vec<T>)by;
  if constexpr (kIsSigned<T>) return moved;
  return inside ? moved : Vec<T>{};
}

template <class T>
SDX_INLINE Vec<T> signs(Vec<T> x) {
  return x > T(0) ? splat(T(1)) : x < T(0) ? splat(T(-1)) : Vec<T>{};
}

template <class T>
struct Ints {
  using V = Vec<T>;
  static constexpr Loop kLoops[] = {
      {ChainOp::add, map2<T, [](V a, V b) { return V(wrapping<T>(a) + wrapping<T>(b)); }>},
      {ChainOp::sub, map2<T, [](V a, V b) { return V(wrapping<T>(a) - wrapping<T>(b)); }>},
      {ChainOp::mul, map2<T, [](V a, V b) { return V(wrapping<T>(a) * wrapping<T>(b)); }>},
      {ChainOp::div, divide<T, [](T a, T b) { return quotient(a, b); }>},
      {ChainOp::fmod, divide<T, [](T a, T b) { return remainder(a, b); }>},
      {ChainOp::mod, divide<T, [](T a, T b) { return floor_remainder(a, b); }>},
      {ChainOp::pow, pow<T>},
      {ChainOp::max, map2<T, [](V a, V b) { return (a > b) ? a : b; }>},
      {ChainOp::min, map2<T, [](V a, V b) { return a < b ? a : b; }>},
      {ChainOp::prelu,
       map2<T, [](V a, V b) { return a < T(0) ? V(wrapping<T>(a) * wrapping<T>(b)) : a; }>},
      {ChainOp::bit_and, map2<T, [](V a, V b) { return a & b; }>},
      {ChainOp::bit_or, map2<T, [](V a, V b) { return a | b; }>},
      {ChainOp::bit_xor, map2<T, [](V a, V b) { return a ^ b; }>},
      {ChainOp::shift_left, map2<T, [](V a, V b) { return shifted_left<T>(a, b); }>},
      {ChainOp::shift_right, map2<T, [](V a, V b) { return shifted_right<T>(a, b); }>},
      {ChainOp::bit_not, map1<T, [](V a) { return ~a; }>},
      {ChainOp::neg, map1<T, [](V a) { return V(-wrapping<T>(a)); }>},
      {ChainOp::abs, map1<T, [](V a) { return a < T(0) ? V(-wrapping<T>(a)) : a; }>},
      {ChainOp::relu, map1<T, [](V a) { return (a > T(0)) ? a : V{}; }>},
      {ChainOp::sign, map1<T, [](V a) { return signs<T>(a); }>},
      {ChainOp::equal, compare<T, [](V a, V b) { return a == b; }>},
      {ChainOp::less, compare<T, [](V a, V b) { return a < b; }>},
      {ChainOp::less_equal, compare<T, [](V a, V b) { return a <= b; }>},
      {ChainOp::greater, compare<T, [](V a, V b) { return (a > b); }>},
      {ChainOp::greater_equal, compare<T, [](V a, V b) { return (a >= b); }>},
  };
};

}  // namespace
}  // namespace sdx::SDX_ISA
