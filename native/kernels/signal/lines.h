// Lines of numbers that are transformed: where they lie, and how their numbers get into and out of
// a transform.
#pragma once

#include "kernels/fetch.h"
#include "kernels/signal/fft.h"

namespace sdx::SDX_ISA {

// How the numbers of a line become those that are transformed.
enum class Intake {
  pairs,     // two real numbers of the line are one complex one, and the spectrum is taken apart
  numbers,   // real or complex
  mirrored,  // the line is one half of the spectrum of a real signal
};

struct LineShape {
  int64_t n = 1;          // numbers in a transform
  int64_t given = 0;      // of which the line has so many; the others are 0
  int64_t kept = 0;       // and the output so many
  int64_t parts = 1;      // of a number in the input: 1 is real, 2 complex
  int64_t out_parts = 2;  // likewise in the output
  bool is_back = false;
  bool is_half = false;  // one half of a spectrum is enough
  // Line t lies (t / n_inner, t % n_inner) of these elements behind the first:
  int64_t n_inner = 1, outer = 0, inner = 0, step = 1;
  int64_t out_outer = 0, out_inner = 0, out_step = 1;

  SDX_INLINE Intake intake() const {
    if (is_back && is_half) return Intake::mirrored;
    return !is_back && parts == 1 && n % 2 == 0 ? Intake::pairs : Intake::numbers;
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
  const Complex<T>* halves = nullptr;  // what takes a spectrum of pairs apart
};

template <class T, class Take>
Tables<T> make_tables(const LineShape& s, Take&& take) {
  Tables<T> tables;
  tables.fft = make_fft<T>(s.fft_length(), take);
  if (s.intake() != Intake::pairs) return tables;
  auto* halves = take.template operator()<Complex<T>>(s.n / 2 + 1);
  for (int64_t k = 0; k <= s.n / 2; ++k) halves[k] = root<T>(k, s.n);
  tables.halves = halves;
  return tables;
}

// Lines that are transformed together, one to a lane of V.
template <class T, class V>
struct Lines {
  static constexpr int kWidth = int(sizeof(V) / sizeof(T));
  const T* from[kWidth];
  T* to[kWidth];
  int n;  // that are there; the other lanes repeat the first
};

template <class T, class V>
SDX_INLINE void set_lane(V& v, int lane, T x) {
  reinterpret_cast<T*>(&v)[lane] = x;
}
template <class T, class V>
SDX_INLINE T lane_of(const V& v, int lane) {
  return reinterpret_cast<const T*>(&v)[lane];
}

// Number i of every line; behind those that the lines have there are zeros.
template <class T, class V>
SDX_INLINE V real_at(const LineShape& s, const Lines<T, V>& lines, int64_t i, const T* window) {
  V v{};
  if (i >= s.given) return v;
  for (int l = 0; l < lines.kWidth; ++l) set_lane(v, l, lines.from[l][i * s.step]);
  return window == nullptr ? v : v * window[i];
}
template <class T, class V>
SDX_INLINE Complex<V> number_at(const LineShape& s, const Lines<T, V>& lines, int64_t i,
                                const T* window) {
  Complex<V> z{real_at(s, lines, i, window), V{}};
  if (s.parts == 1 || i >= s.given) return z;
  for (int l = 0; l < lines.kWidth; ++l) set_lane(z.im, l, lines.from[l][i * s.step + 1]);
  if (window != nullptr) z.im = z.im * window[i];
  return z;
}

template <class T, class V>
void take_in(const LineShape& s, const Lines<T, V>& lines, const T* window, Complex<V>* x) {
  switch (s.intake()) {
    case Intake::pairs:
      for (int64_t i = 0; i < s.n / 2; ++i)
        x[i] = {real_at(s, lines, 2 * i, window), real_at(s, lines, 2 * i + 1, window)};
      return;
    case Intake::numbers:
      for (int64_t i = 0; i < s.n; ++i) {
        const Complex<V> z = number_at(s, lines, i, window);
        x[i] = s.is_back ? swapped(z) : z;
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

// Frequency k <= n / 2 of lines that came in as pairs.
template <class T, class V>
SDX_INLINE Complex<V> apart(const LineShape& s, const Tables<T>& tables, const Complex<V>* z,
                            int64_t k) {
  const int64_t half = s.n / 2;
  const Complex<V> a = z[k == half ? 0 : k], b = z[k == 0 ? 0 : half - k];
  const Complex<V> even{(a.re + b.re) * T(0.5), (a.im - b.im) * T(0.5)};
  const Complex<V> odd{(a.im + b.im) * T(0.5), (b.re - a.re) * T(0.5)};
  return even + product(odd, tables.halves[k]);
}

template <class T, class V>
void give_out(const LineShape& s, const Tables<T>& tables, const Lines<T, V>& lines,
              const Complex<V>* y) {
  const T scale = T(1) / T(s.n);
  const bool is_paired = s.intake() == Intake::pairs;
  for (int64_t k = 0; k < s.kept; ++k) {
    const bool is_near = 2 * k <= s.n;
    Complex<V> z = is_paired ? apart(s, tables, y, is_near ? k : s.n - k) : y[k];
    if (is_paired && !is_near) z.im = -z.im;
    if (s.is_back) z = scaled(swapped(z), scale);
    for (int l = 0; l < lines.n; ++l) {
      lines.to[l][k * s.out_step] = lane_of<T>(z.re, l);
      if (s.out_parts == 2) lines.to[l][k * s.out_step + 1] = lane_of<T>(z.im, l);
    }
  }
}

// Lines [begin, end), at most as many as V has lanes. `room`: twice the length of the steps.
template <class V, class T>
void transform(const LineShape& s, const Tables<T>& tables, const T* x, const T* window, T* y,
               int64_t begin, int64_t end, Complex<V>* room) {
  Lines<T, V> lines;
  lines.n = int(end - begin);
  for (int l = 0; l < lines.kWidth; ++l) {
    const int64_t line = begin + (l < lines.n ? l : 0);
    lines.from[l] = x + s.from(line), lines.to[l] = y + s.to(line);
  }
  take_in(s, lines, window, room);
  give_out(s, tables, lines, run_fft(tables.fft, room, room + tables.fft.steps.n));
}

}  // namespace sdx::SDX_ISA
