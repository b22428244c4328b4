// Fast Fourier transforms of any length. Lengths whose prime factors are at most 13 use a
// mixed-radix Stockham FFT (radices 4, 2, 3, 5, 7, 11, 13): it is self-sorting, so there is no bit
// reversal, at the price of a second buffer that stages alternate with. Other lengths use
// Bluestein's algorithm: the DFT as a convolution with a chirp, computed by FFTs of a power of two
// of at least 2n - 1. Tables (twiddle factors, chirps) are made once per length.
#pragma once

#include <cstdint>

#include "kernels/signal/butterfly.h"

namespace sdx::SDX_ISA {

constexpr int kMaxStages = 48;  // a length below 2^48 has no more factors

template <class T>
struct Stage {
  int radix;
  int64_t rest;                // the length divided by the radices of this and all earlier stages
  const Complex<T>* twiddles;  // twiddle factors, radix - 1 for each of `rest` positions
  const Complex<T>* roots;     // roots of unity of the radix
};

// A mixed-radix FFT of length n.
template <class T>
struct MixedRadix {
  int64_t n = 1;
  int n_stages = 0;
  Stage<T> stages[kMaxStages];
};

// A transform of any length n.
template <class T>
struct Fft {
  int64_t n = 1;
  MixedRadix<T> mixed_radix;             // of length n, or of Bluestein's convolution
  const Complex<T>* chirp = nullptr;     // exp(-pi i k^2 / n); null: no Bluestein
  const Complex<T>* spectrum = nullptr;  // DFT of the conjugate chirp, divided by its length
};

// exp(-2 pi i k / n)
template <class T>
Complex<T> root(int64_t k, int64_t n) {
  const double angle = -6.283185307179586476925 * double(k % n) / double(n);
  return {T(__builtin_cos(angle)), T(__builtin_sin(angle))};
}

// The radix of the next stage. 4 is first: it needs fewer multiplications than two stages of 2.
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

// The length of the mixed-radix FFT: n, or a power of two for Bluestein's linear convolution.
SDX_INLINE int64_t mixed_radix_length(int64_t n) {
  if (has_small_factors(n)) return n;
  int64_t m = 1;
  while (m < 2 * n - 1) m *= 2;
  return m;
}

// An upper bound on the bytes of `make_fft` for lengths up to n, whatever the type: Bluestein's
// length is below 4n, with tables in double besides those in T.
SDX_INLINE int64_t fft_bytes(int64_t n) {
  return (25 * n + 4096) * int64_t(sizeof(Complex<double>));
}

// Decimation in frequency: stage by stage the length shrinks by a radix. take<U>(n) allocates.
template <class T, class Take>
MixedRadix<T> make_mixed_radix(int64_t n, Take&& take) {
  MixedRadix<T> mixed_radix;
  mixed_radix.n = n;
  for (int64_t left = n; left > 1;) {
    const int radix = next_radix(left);
    const int64_t rest = left / radix;
    auto* twiddles = take.template operator()<Complex<T>>(rest * (radix - 1));
    for (int64_t p = 0; p < rest; ++p)
      for (int j = 1; j < radix; ++j) twiddles[p * (radix - 1) + j - 1] = root<T>(p * j, left);
    auto* roots = take.template operator()<Complex<T>>(radix);
    for (int j = 0; j < radix; ++j) roots[j] = root<T>(j, radix);
    mixed_radix.stages[mixed_radix.n_stages++] = {radix, rest, twiddles, roots};
    left = rest;
  }
  return mixed_radix;
}

// One Stockham stage: y[q + inner * (radix * p + j)] is output j of the butterfly over x[q + inner
// * (p + rest * k)], times a twiddle factor. `inner` is the product of the earlier radices.
template <int kRadix, class T, class V>
void run_stage(const Stage<T>& stage, int64_t inner, const Complex<V>* x, Complex<V>* y) {
  const int radix = kRadix > 0 ? kRadix : stage.radix;
  for (int64_t p = 0; p < stage.rest; ++p) {
    const Complex<T>* twiddles = stage.twiddles + p * (radix - 1);
    for (int64_t q = 0; q < inner; ++q) {
      Complex<V> a[kRadix > 0 ? kRadix : kMaxRadix] = {};
      for (int k = 0; k < radix; ++k) a[k] = x[q + inner * (p + stage.rest * k)];
      butterfly<kRadix>(a, radix, stage.roots);
      Complex<V>* to = y + q + inner * radix * p;
      to[0] = a[0];
      for (int j = 1; j < radix; ++j) to[inner * j] = product(a[j], twiddles[j - 1]);
    }
  }
}

// The DFT of `x`; stages alternate between the buffers, and the one with the result is returned.
template <class T, class V>
Complex<V>* run_mixed_radix(const MixedRadix<T>& mixed_radix, Complex<V>* x, Complex<V>* spare) {
  int64_t inner = 1;
  for (int i = 0; i < mixed_radix.n_stages; ++i) {
    const Stage<T>& stage = mixed_radix.stages[i];
    switch (stage.radix) {
      case 2: run_stage<2>(stage, inner, x, spare); break;
      case 3: run_stage<3>(stage, inner, x, spare); break;
      case 4: run_stage<4>(stage, inner, x, spare); break;
      case 5: run_stage<5>(stage, inner, x, spare); break;
      default: run_stage<0>(stage, inner, x, spare);
    }
    inner *= stage.radix;
    Complex<V>* result = spare;
    spare = x, x = result;
  }
  return x;
}

// Any length; Bluestein: multiply by the chirp, convolve with its conjugate (FFT, product with the
// spectrum, inverse FFT), multiply by the chirp again.
template <class T, class V>
Complex<V>* run_fft(const Fft<T>& fft, Complex<V>* x, Complex<V>* spare) {
  if (fft.chirp == nullptr) return run_mixed_radix(fft.mixed_radix, x, spare);
  for (int64_t i = 0; i < fft.n; ++i) x[i] = product(x[i], fft.chirp[i]);
  for (int64_t i = fft.n; i < fft.mixed_radix.n; ++i) x[i] = Complex<V>{};
  Complex<V>* y = run_mixed_radix(fft.mixed_radix, x, spare);
  // The inverse FFT is a forward one with real and imaginary parts swapped before and after.
  for (int64_t i = 0; i < fft.mixed_radix.n; ++i) y[i] = swapped(product(y[i], fft.spectrum[i]));
  y = run_mixed_radix(fft.mixed_radix, y, y == x ? spare : x);
  for (int64_t i = 0; i < fft.n; ++i) y[i] = product(swapped(y[i]), fft.chirp[i]);
  return y;
}

template <class T, class Take>
Fft<T> make_fft(int64_t n, Take&& take) {
  Fft<T> fft;
  fft.n = n;
  const int64_t m = mixed_radix_length(n);
  fft.mixed_radix = make_mixed_radix<T>(m, take);
  if (m == n) return fft;
  auto* chirp = take.template operator()<Complex<T>>(n);
  auto* conjugate = take.template operator()<Complex<double>>(m);
  for (int64_t i = 0; i < m; ++i) conjugate[i] = {};
  for (int64_t i = 0; i < n; ++i) {
    // k^2 is reduced modulo the chirp's period 2n as an integer: a large angle would lose
    // precision.
    const int64_t square = int64_t(__int128(i) * i % (2 * n));
    const Complex<double> phase = root<double>(square, 2 * n);
    chirp[i] = {T(phase.re), T(phase.im)};
    conjugate[i] = conjugate[i == 0 ? 0 : m - i] = {phase.re, -phase.im};
  }
  // The spectrum is computed in double even for float transforms: its error enters every output.
  const MixedRadix<double> mixed_radix = make_mixed_radix<double>(m, take);
  const auto* result =
      run_mixed_radix(mixed_radix, conjugate, take.template operator()<Complex<double>>(m));
  auto* spectrum = take.template operator()<Complex<T>>(m);
  for (int64_t i = 0; i < m; ++i)
    spectrum[i] = {T(result[i].re / double(m)), T(result[i].im / double(m))};
  fft.chirp = chirp, fft.spectrum = spectrum;
  return fft;
}

}  // namespace sdx::SDX_ISA
