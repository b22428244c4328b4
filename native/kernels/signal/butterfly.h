// Butterflies: DFTs of a few complex numbers, from which the FFT is built. V is a number, or a
// vector of numbers that belong to different signals.
#pragma once

#include "simd/vec.h"

namespace sdx::SDX_ISA {

template <class V>
struct Complex {
  V re, im;
};

constexpr int kMaxRadix = 13;  // lengths with larger prime factors use Bluestein's algorithm

template <class V>
SDX_INLINE Complex<V> operator+(const Complex<V>& a, const Complex<V>& b) {
  return {a.re + b.re, a.im + b.im};
}
template <class V>
SDX_INLINE Complex<V> operator-(const Complex<V>& a, const Complex<V>& b) {
  return {a.re - b.re, a.im - b.im};
}
template <class V, class T>
SDX_INLINE Complex<V> scaled(const Complex<V>& a, T factor) {
  return {a.re * factor, a.im * factor};
}
template <class V, class T>
SDX_INLINE Complex<V> product(const Complex<V>& a, const Complex<T>& b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// Real and imaginary part swapped: swapping before and after a forward DFT makes it the inverse
// one.
template <class V>
SDX_INLINE Complex<V> swapped(const Complex<V>& a) {
  return {a.im, a.re};
}
// a - i b, and a + i b below.
template <class V>
SDX_INLINE Complex<V> minus_i_times(const Complex<V>& a, const Complex<V>& b) {
  return {a.re + b.im, a.im - b.re};
}
template <class V>
SDX_INLINE Complex<V> plus_i_times(const Complex<V>& a, const Complex<V>& b) {
  return {a.re - b.im, a.im + b.re};
}

// The DFT of kRadix numbers in place. Radix 2 to 5 are unrolled and use the symmetry of their
// roots; kRadix 0 is any other radix, a matrix-vector product with the roots of unity.
template <int kRadix, class T, class V>
SDX_INLINE void butterfly(Complex<V>* a, int radix, const Complex<T>* roots) {
  if constexpr (kRadix == 2) {
    const Complex<V> sum = a[0] + a[1];
    a[1] = a[0] - a[1], a[0] = sum;
  } else if constexpr (kRadix == 3) {
    const Complex<V> sum = a[1] + a[2], side = scaled(a[1] - a[2], T(0.86602540378443864676));
    const Complex<V> middle = a[0] - scaled(sum, T(0.5));
    a[0] = a[0] + sum;
    a[1] = minus_i_times(middle, side), a[2] = plus_i_times(middle, side);
  } else if constexpr (kRadix == 4) {
    const Complex<V> even = a[0] + a[2], odd = a[1] + a[3];
    const Complex<V> first = a[0] - a[2], second = a[1] - a[3];
    a[0] = even + odd, a[2] = even - odd;
    a[1] = minus_i_times(first, second), a[3] = plus_i_times(first, second);
  } else if constexpr (kRadix == 5) {
    constexpr T c1 = T(0.30901699437494742410), c2 = T(-0.80901699437494742410);
    constexpr T s1 = T(0.95105651629515357212), s2 = T(0.58778525229247312917);
    const Complex<V> outer = a[1] + a[4], inner = a[2] + a[3], x = a[1] - a[4], y = a[2] - a[3];
    const Complex<V> m1 = a[0] + scaled(outer, c1) + scaled(inner, c2);
    const Complex<V> m2 = a[0] + scaled(outer, c2) + scaled(inner, c1);
    const Complex<V> n1 = scaled(x, s1) + scaled(y, s2), n2 = scaled(x, s2) - scaled(y, s1);
    a[0] = a[0] + outer + inner;
    a[1] = minus_i_times(m1, n1), a[4] = plus_i_times(m1, n1);
    a[2] = minus_i_times(m2, n2), a[3] = plus_i_times(m2, n2);
  } else {
    Complex<V> sums[kMaxRadix];
    for (int j = 0; j < radix; ++j) {
      sums[j] = a[0];
      for (int k = 1; k < radix; ++k) sums[j] = sums[j] + product(a[k], roots[j * k % radix]);
    }
    for (int j = 0; j < radix; ++j) a[j] = sums[j];
  }
}

}  // namespace sdx::SDX_ISA
