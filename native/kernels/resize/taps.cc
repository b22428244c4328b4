// Tables of taps, made when sizes are bound.
#include "kernels/resize/taps.h"

namespace sdx::SDX_ISA {
namespace {

struct Stretch {
  int64_t size, out;
  double scale;
};

template <class T>
T half_pixel(T x, const Stretch& s) {
  return (x + T(0.5)) / T(s.scale) - T(0.5);
}

// Nearest neighbours hang on ties, which fall as in float, the type that scales have.
template <class T>
T position(Transform transform, int64_t j, const Stretch& s) {
  const T x = T(j);
  const double resized = double(s.size) * s.scale;
  switch (transform) {
    case kHalfPixelSymmetric:
      return T(double(s.size) / 2 * (1 - double(s.out) / resized)) + half_pixel(x, s);
    case kPytorchHalfPixel: return s.out > 1 ? half_pixel(x, s) : T(0);
    case kAlignCorners: return resized == 1 ? T(0) : x * T(double(s.size - 1) / (resized - 1));
    case kAsymmetric: return x / T(s.scale);
    case kHalfPixelForNearest: return (x + T(0.5)) / T(s.scale);
    default: return half_pixel(x, s);
  }
}

float rounded(float x, Rounding rounding) {
  switch (rounding) {
    case kPreferFloor: return __builtin_ceilf(x - 0.5f);
    case kPreferCeil: return __builtin_floorf(x + 0.5f);
    case kFloor: return __builtin_floorf(x);
    default: return __builtin_ceilf(x);
  }
}

int32_t clipped(double x, int64_t size) {
  const double last = double(size - 1);
  return int32_t(x > last ? last : x > 0 ? x : 0);
}

// Keys' kernel on the distances 1 + t, t, 1 - t and 2 - t.
void cubic_weights(double t, double a, double (&w)[4]) {
  const double u = 1 - t, p = 1 + t, q = 1 + u;
  w[0] = ((a * p - 5 * a) * p + 8 * a) * p - 4 * a;
  w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  w[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
  w[3] = ((a * q - 5 * a) * q + 8 * a) * q - 4 * a;
}

void exclude_outside(double first, int64_t size, int n, double (&w)[4]) {
  double total = 0;
  for (int t = 0; t < n; ++t) {
    if (first + t < 0 || first + t >= double(size)) w[t] = 0;
    total += w[t];
  }
  for (int t = 0; t < n; ++t) w[t] /= total;
}

}  // namespace

Taps make_taps(Plan& plan, const Filter& filter, int64_t size, int64_t out, double scale) {
  const Stretch stretch{size, out, scale};
  const bool is_plain = size == out && scale == 1;
  const int n = is_plain || filter.mode == kNearest ? 1 : filter.mode == kLinear ? 2 : 4;
  auto* index = plan.make<int32_t>(size_t(n * out));
  auto* weight = plan.make<float>(size_t(n * out));
  for (int64_t j = 0; j < out; ++j) {
    if (n == 1) {
      const float x = position<float>(filter.transform, j, stretch);
      index[j] = is_plain ? int32_t(j) : clipped(double(rounded(x, filter.rounding)), size);
      weight[j] = 1;
      continue;
    }
    const double x = position<double>(filter.transform, j, stretch), low = __builtin_floor(x);
    double w[4] = {1 - (x - low), x - low};
    if (n == 4) cubic_weights(x - low, filter.cubic_a, w);
    const double first = n == 4 ? low - 1 : low;
    if (filter.excludes_outside) exclude_outside(first, size, n, w);
    for (int t = 0; t < n; ++t) {
      index[t * out + j] = clipped(first + t, size);
      weight[t * out + j] = float(w[t]);
    }
  }
  const int64_t times = out / size;
  bool is_repeat = n == 1 && times * size == out;
  for (int64_t j = 0; j < out && is_repeat; ++j) is_repeat = index[j] == j / times;
  return {size, out, n, is_repeat ? times : 0, index, weight};
}

}  // namespace sdx::SDX_ISA
