// Signals ("lines" along the transformed axis): where they are in memory, and how their elements
// get into and out of a transform. Several lines are transformed together, one per vector lane.
#pragma once

#include "kernels/elements.h"
#include "kernels/signal/fft.h"

namespace sdx::SDX_ISA {

// How a line becomes the input of a complex transform.
enum class Intake {
  pairs,     // real, even length: a complex FFT of half the length over (even, odd) pairs
  numbers,   // real or complex, as they are
  mirrored,  // inverse of a one-sided spectrum: the other half is its conjugate mirror image
};

struct LineShape {
  int64_t n = 1;               // length of the transform
  int64_t n_given = 0;         // input elements of a line, padded with zeros or cut to n
  int64_t n_kept = 0;          // elements of the output
  int64_t components = 1;      // 1: real input, 2: complex
  int64_t out_components = 2;  // likewise for the output
  bool is_inverse = false;
  bool is_onesided = false;  // the spectrum has n / 2 + 1 elements: the rest is redundant
  // Line t starts at t / n_inner * outer + t % n_inner * inner; its elements are `stride` apart.
  int64_t n_inner = 1, outer = 0, inner = 0, stride = 1;
  int64_t out_outer = 0, out_inner = 0, out_stride = 1;

  SDX_INLINE Intake intake() const {
    if (is_inverse && is_onesided) return Intake::mirrored;
    return !is_inverse && components == 1 && n % 2 == 0 ? Intake::pairs : Intake::numbers;
  }
  SDX_INLINE int64_t fft_length() const { return intake() == Intake::pairs ? n / 2 : n; }
  SDX_INLINE int64_t from(int64_t line) const {
    return line / n_inner * outer + line % n_inner * inner;
  }
  SDX_INLINE int64_t to(int64_t line) const {
    return line / n_inner * out_outer + line % n_inner * out_inner;
  }
};

template <class T>
struct Tables {
  Fft<T> fft;
  const Complex<T>* pair_twiddles = nullptr;  // exp(-2 pi i k / n), to split the spectrum of pairs
};

template <class T, class Take>
Tables<T> make_tables(const LineShape& s, Take&& take) {
  Tables<T> tables;
  tables.fft = make_fft<T>(s.fft_length(), take);
  if (s.intake() != Intake::pairs) return tables;
  auto* pair_twiddles = take.template operator()<Complex<T>>(s.n / 2 + 1);
  for (int64_t k = 0; k <= s.n / 2; ++k) pair_twiddles[k] = root<T>(k, s.n);
  tables.pair_twiddles = pair_twiddles;
  return tables;
}

// Lines that are transformed together, one to a lane of V.
template <class T, class V>
struct Lines {
  static constexpr int kWidth = int(sizeof(V) / sizeof(T));
  const T* from[kWidth];
  T* to[kWidth];
  int n;  // lines that exist; the other lanes repeat the first
};

template <class T, class V>
SDX_INLINE void set_lane(V& v, int lane, T x) {
  reinterpret_cast<T*>(&v)[lane] = x;
}
template <class T, class V>
SDX_INLINE T lane_of(const V& v, int lane) {
  return reinterpret_cast<const T*>(&v)[lane];
}

// Element i of every line, times the window; zero after the end.
template <class T, class V>
SDX_INLINE V real_at(const LineShape& s, const Lines<T, V>& lines, int64_t i, const T* window) {
  V v{};
  if (i >= s.n_given) return v;
  for (int l = 0; l < lines.kWidth; ++l) set_lane(v, l, lines.from[l][i * s.stride]);
  return window == nullptr ? v : v * window[i];
}
template <class T, class V>
SDX_INLINE Complex<V> number_at(const LineShape& s, const Lines<T, V>& lines, int64_t i,
                                const T* window) {
  Complex<V> z{real_at(s, lines, i, window), V{}};
  if (s.components == 1 || i >= s.n_given) return z;
  for (int l = 0; l < lines.kWidth; ++l) set_lane(z.im, l, lines.from[l][i * s.stride + 1]);
  if (window != nullptr) z.im = z.im * window[i];
  return z;
}

// Loads lines as the input of the transform. Inverse transforms swap real and imaginary parts here
// and in store_lines.
template <class T, class V>
void load_lines(const LineShape& s, const Lines<T, V>& lines, const T* window, Complex<V>* x) {
  switch (s.intake()) {
    case Intake::pairs:
      for (int64_t i = 0; i < s.n / 2; ++i)
        x[i] = {real_at(s, lines, 2 * i, window), real_at(s, lines, 2 * i + 1, window)};
      return;
    case Intake::numbers:
      for (int64_t i = 0; i < s.n; ++i) {
        const Complex<V> z = number_at(s, lines, i, window);
        x[i] = s.is_inverse ? swapped(z) : z;
      }
      return;
    case Intake::mirrored:
      for (int64_t i = 0; i < s.n; ++i) {
        const bool is_near = 2 * i <= s.n;
        Complex<V> z = number_at(s, lines, is_near ? i : s.n - i, window);
        if (!is_near) z.im = -z.im;
        x[i] = swapped(z);
      }
  }
}

// Frequency k <= n / 2 of real lines from the half-length transform z of their (even, odd) pairs:
// the DFTs of the even and odd samples follow from z[k] and conj(z[n/2 - k]) by symmetry, and one
// radix-2 butterfly joins them.
template <class T, class V>
SDX_INLINE Complex<V> split_pairs(const LineShape& s, const Tables<T>& tables, const Complex<V>* z,
                                  int64_t k) {
  const int64_t half = s.n / 2;
  const Complex<V> a = z[k == half ? 0 : k], b = z[k == 0 ? 0 : half - k];
  const Complex<V> even{(a.re + b.re) * T(0.5), (a.im - b.im) * T(0.5)};
  const Complex<V> odd{(a.im + b.im) * T(0.5), (b.re - a.re) * T(0.5)};
  return even + product(odd, tables.pair_twiddles[k]);
}

// Stores the first `kept` frequencies. The upper half of a real signal's spectrum is the conjugate
// of the lower one.
template <class T, class V>
void store_lines(const LineShape& s, const Tables<T>& tables, const Lines<T, V>& lines,
                 const Complex<V>* y) {
  const T scale = T(1) / T(s.n);
  const bool is_paired = s.intake() == Intake::pairs;
  for (int64_t k = 0; k < s.n_kept; ++k) {
    const bool is_near = 2 * k <= s.n;
    Complex<V> z = is_paired ? split_pairs(s, tables, y, is_near ? k : s.n - k) : y[k];
    if (is_paired && !is_near) z.im = -z.im;
    if (s.is_inverse) z = scaled(swapped(z), scale);
    for (int l = 0; l < lines.n; ++l) {
      lines.to[l][k * s.out_stride] = lane_of<T>(z.re, l);
      if (s.out_components == 2) lines.to[l][k * s.out_stride + 1] = lane_of<T>(z.im, l);
    }
  }
}

// Transforms lines [begin, end), at most as many as V has lanes. `scratch`: twice the FFT's length.
template <class V, class T>
void transform(const LineShape& s, const Tables<T>& tables, const T* x, const T* window, T* y,
               int64_t begin, int64_t end, Complex<V>* scratch) {
  Lines<T, V> lines;
  lines.n = int(end - begin);
  for (int l = 0; l < lines.kWidth; ++l) {
    const int64_t line = begin + (l < lines.n ? l : 0);
    lines.from[l] = x + s.from(line), lines.to[l] = y + s.to(line);
  }
  load_lines(s, lines, window, scratch);
  store_lines(s, tables, lines, run_fft(tables.fft, scratch, scratch + tables.fft.mixed_radix.n));
}

}  // namespace sdx::SDX_ISA
