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

// Integers that fit into as many lanes as a vector of double has.
template <class T>
struct AsDoubles {
  typedef T type __attribute__((vector_size(kLanesOf<double> * sizeof(T))));
};

// Whether doubles give all quotients: truncated, they are exact for dividends below 2^51, and
// conversions of 64 bits are instructions of AVX-512.
template <class T>
bool fits_double(const T* a, int64_t step_a, const T* b, int64_t step_b, int64_t n) {
  if constexpr (sizeof(T) == 4) return true;
  if constexpr (SDX_VEC_BYTES < 64) return false;
  constexpr uint64_t bias = kIsSigned<T> ? uint64_t(1) << 51 : 0;
  uint64_t high = 0;
  const int64_t na = step_a == 0 ? 1 : n, nb = step_b == 0 ? 1 : n;
  for (int64_t i = 0; i < na; ++i) high |= (uint64_t(a[i]) + bias) >> (kIsSigned<T> ? 52 : 51);
  for (int64_t i = 0; i < nb; ++i) high |= (uint64_t(b[i]) + bias) >> (kIsSigned<T> ? 52 : 51);
  return high == 0;
}

// Integer division has no vector instruction: `wide` computes the result of many lanes from a, b
// and their quotient, `each` that of one pair. False for a divisor of 0.
template <class T, auto wide, auto each>
bool divide(const LoopArgs& s) {
  using V = typename AsDoubles<T>::type;
  using U = typename AsDoubles<UnsignedOf<T>>::type;
  const T* a = static_cast<const T*>(s.in[0]);
  const T* b = static_cast<const T*>(s.in[1]);
  T* out = static_cast<T*>(s.out);
  bool has_zero = false;
  for (int64_t i = 0; i < (s.stride[1] == 0 ? 1 : s.n); ++i) has_zero |= b[i] == 0;
  if (has_zero) return false;
  constexpr int64_t lanes = kLanesOf<double>;
  int64_t i = 0;
  if (sizeof(T) >= 4 && fits_double(a, s.stride[0], b, s.stride[1], s.n)) {
    for (; i + lanes <= s.n; i += lanes) {
      V x, y;
      memcpy(&x, a + i * s.stride[0], sizeof x);
      memcpy(&y, b + i * s.stride[1], sizeof y);
      // The smallest number over -1 would overflow: such quotients are negated instead.
      const auto negates = kIsSigned<T> ? y == T(-1) : y != y;
      const V divisor = negates ? V{} + T(1) : y;
      const V quotient = __builtin_convertvector(
          __builtin_convertvector(x, Vec<double>) / __builtin_convertvector(divisor, Vec<double>),
          V);
      const V result = wide(x, y, negates ? V(U{} - U(x)) : quotient);
      memcpy(out + i, &result, sizeof result);
    }
  }
  for (; i < s.n; ++i) out[i] = each(a[i * s.stride[0]], b[i * s.stride[1]]);
  return true;
}

// a - q b, which wraps around.
template <class T, class V>
SDX_INLINE V rest_of(V a, V b, V q) {
  using U = typename AsDoubles<UnsignedOf<T>>::type;
  return V(U(a) - U(q) * U(b));
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

template <class T, class V>
SDX_INLINE V floor_rest(V rest, V b) {
  if constexpr (kIsSigned<T>) return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
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
  using D = typename AsDoubles<T>::type;
  static constexpr Loop kLoops[] = {
      {ChainOp::add, map2<T, [](V a, V b) { return V(wrapping<T>(a) + wrapping<T>(b)); }>},
      {ChainOp::sub, map2<T, [](V a, V b) { return V(wrapping<T>(a) - wrapping<T>(b)); }>},
      {ChainOp::mul, map2<T, [](V a, V b) { return V(wrapping<T>(a) * wrapping<T>(b)); }>},
      {ChainOp::div,
       divide<T, [](D, D, D q) { return q; }, [](T a, T b) { return quotient(a, b); }>},
      {ChainOp::fmod, divide<T, [](D a, D b, D q) { return rest_of<T>(a, b, q); },
                             [](T a, T b) { return remainder(a, b); }>},
      {ChainOp::mod, divide<T, [](D a, D b, D q) { return floor_rest<T>(rest_of<T>(a, b, q), b); },
                            [](T a, T b) { return floor_remainder(a, b); }>},
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
