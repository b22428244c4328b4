// Fourier transforms of any length: by small factors (Stockham), or as a convolution with a chirp
// (Bluestein) where a prime factor is large. Tables are made once for a length.
#pragma once

#include <cstdint>

#include "kernels/signal/butterfly.h"

namespace sdx::SDX_ISA {

constexpr int kMaxStages = 48;

template <class T>
struct Stage {
  int radix;
  int64_t rest;             // what is left of the length behind it
  const Complex<T>* turns;  // for each of `rest` places, radix - 1 of them
  const Complex<T>* roots;  // of unity
};

template <class T>
struct Steps {
  int64_t n = 1;
  int n_stages = 0;
  Stage<T> stages[kMaxStages];
};

template <class T>
struct Fft {
  int64_t n = 1;
  Steps<T> steps;                        // of its length, or of the convolution's
  const Complex<T>* chirp = nullptr;     // n numbers; null where factors are small
  const Complex<T>* spectrum = nullptr;  // of the chirp's conjugate, over the length of steps
};

// exp(-2 pi i k / n)
template <class T>
Complex<T> root(int64_t k, int64_t n) {
  const double angle = -6.283185307179586476925 * double(k % n) / double(n);
  return {T(__builtin_cos(angle)), T(__builtin_sin(angle))};
}

SDX_INLINE int next_radix(int64_t n) {
  constexpr int radices[] = {4, 2, 3, 5, 7, 11, 13};
  for (const int radix : radices)
    if (n % radix == 0) return radix;
  return 0;
}

SDX_INLINE bool has_small_factors(int64_t n) {
  while (n > 1) {
    const int radix = next_radix(n);
    if (radix == 0) return false;
    n /= radix;
  }
  return true;
}

SDX_INLINE int64_t steps_length(int64_t n) {
  if (has_small_factors(n)) return n;
  int64_t m = 1;
  while (m < 2 * n - 1) m *= 2;
  return m;
}

// Bytes that `make_fft` takes at most for lengths up to n, whatever the type.
SDX_INLINE int64_t fft_bytes(int64_t n) {
  return (25 * n + 4096) * int64_t(sizeof(Complex<double>));
}

template <class T, class Take>
Steps<T> make_steps(int64_t n, Take&& take) {
  Steps<T> steps;
  steps.n = n;
  for (int64_t left = n; left > 1;) {
    const int radix = next_radix(left);
    const int64_t rest = left / radix;
    auto* turns = take.template operator()<Complex<T>>(rest * (radix - 1));
    for (int64_t p = 0; p < rest; ++p)
      for (int j = 1; j < radix; ++j) turns[p * (radix - 1) + j - 1] = root<T>(p * j, left);
    auto* roots = take.template operator()<Complex<T>>(radix);
    for (int j = 0; j < radix; ++j) roots[j] = root<T>(j, radix);
    steps.stages[steps.n_stages++] = {radix, rest, turns, roots};
    left = rest;
  }
  return steps;
}

template <int kRadix, class T, class V>
void run_stage(const Stage<T>& stage, int64_t inner, const Complex<V>* x, Complex<V>* y) {
  const int radix = kRadix > 0 ? kRadix : stage.radix;
  for (int64_t p = 0; p < stage.rest; ++p) {
    const Complex<T>* turns = stage.turns + p * (radix - 1);
    for (int64_t q = 0; q < inner; ++q) {
      Complex<V> a[kRadix > 0 ? kRadix : kMaxRadix] = {};
      for (int k = 0; k < radix; ++k) a[k] = x[q + inner * (p + stage.rest * k)];
      butterfly<kRadix>(a, radix, stage.roots);
      Complex<V>* to = y + q + inner * radix * p;
      to[0] = a[0];
      for (int j = 1; j < radix; ++j) to[inner * j] = product(a[j], turns[j - 1]);
    }
  }
}

// The transform of `x`, in `x` or in `spare`: says where.
template <class T, class V>
Complex<V>* run_steps(const Steps<T>& steps, Complex<V>* x, Complex<V>* spare) {
  int64_t inner = 1;
  for (int i = 0; i < steps.n_stages; ++i) {
    const Stage<T>& stage = steps.stages[i];
    switch (stage.radix) {
      case 2: run_stage<2>(stage, inner, x, spare); break;
      case 3: run_stage<3>(stage, inner, x, spare); break;
      case 4: run_stage<4>(stage, inner, x, spare); break;
      case 5: run_stage<5>(stage, inner, x, spare); break;
      default: run_stage<0>(stage, inner, x, spare);
    }
    inner *= stage.radix;
    Complex<V>* made = spare;
    spare = x, x = made;
  }
  return x;
}

template <class T, class V>
Complex<V>* run_fft(const Fft<T>& fft, Complex<V>* x, Complex<V>* spare) {
  if (fft.chirp == nullptr) return run_steps(fft.steps, x, spare);
  for (int64_t i = 0; i < fft.n; ++i) x[i] = product(x[i], fft.chirp[i]);
  for (int64_t i = fft.n; i < fft.steps.n; ++i) x[i] = Complex<V>{};
  Complex<V>* y = run_steps(fft.steps, x, spare);
  // With its parts swapped before and after, a transform is the inverse one.
  for (int64_t i = 0; i < fft.steps.n; ++i) y[i] = swapped(product(y[i], fft.spectrum[i]));
  y = run_steps(fft.steps, y, y == x ? spare : x);
  for (int64_t i = 0; i < fft.n; ++i) y[i] = product(swapped(y[i]), fft.chirp[i]);
  return y;
}

template <class T, class Take>
Fft<T> make_fft(int64_t n, Take&& take) {
  Fft<T> fft;
  fft.n = n;
  const int64_t m = steps_length(n);
  fft.steps = make_steps<T>(m, take);
  if (m == n) return fft;
  auto* chirp = take.template operator()<Complex<T>>(n);
  auto* whole = take.template operator()<Complex<double>>(m);
  for (int64_t i = 0; i < m; ++i) whole[i] = {};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t square = int64_t(__int128(i) * i % (2 * n));
    const Complex<double> turn = root<double>(square, 2 * n);
    chirp[i] = {T(turn.re), T(turn.im)};
    whole[i] = whole[i == 0 ? 0 : m - i] = {turn.re, -turn.im};
  }
  const Steps<double> steps = make_steps<double>(m, take);
  const auto* made = run_steps(steps, whole, take.template operator()<Complex<double>>(m));
  auto* spectrum = take.template operator()<Complex<T>>(m);
  for (int64_t i = 0; i < m; ++i)
    spectrum[i] = {T(made[i].re / double(m)), T(made[i].im / double(m))};
  fft.chirp = chirp, fft.spectrum = spectrum;
  return fft;
}

}  // namespace sdx::SDX_ISA
