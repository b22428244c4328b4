// Construction of taps: coordinate transformation, then nearest rounding or a linear or cubic
// (Keys) filter, stretched by 1 / scale where antialiasing shrinks an axis.
#include "kernels/resize/taps.h"

namespace sdx::SDX_ISA {
namespace {

template <class T>
T half_pixel(T x, const ResizedAxis& s) {
  return (x + T(0.5)) / T(s.scale) - T(0.5);
}

// The input coordinate of output j (coordinate_transformation_mode). Nearest mode computes in
// float, the type of ONNX's scales, since its ties must round as in the reference; filters use
// double.
template <class T>
T position(Transform transform, int64_t j, const ResizedAxis& s) {
  const T x = T(j);
  const double resized = double(s.size) * s.scale;
  switch (transform) {
    case kHalfPixelSymmetric:
      return T(double(s.size) / 2 * (1 - double(s.out) / resized)) + half_pixel(x, s);
    case kPytorchHalfPixel: return s.out > 1 ? half_pixel(x, s) : T(0);
    case kAlignCorners: return resized == 1 ? T(0) : x * T(double(s.size - 1) / (resized - 1));
    case kAsymmetric: return x / T(s.scale);
    case kCrop: {
      const double last = double(s.size - 1);
      if (s.out <= 1) return T(0.5 * (s.start + s.end) * last);
      return T(s.start * last) + x * T((s.end - s.start) * last / double(s.out - 1));
    }
    case kHalfPixelForNearest: return (x + T(0.5)) / T(s.scale);
    default: return half_pixel(x, s);
  }
}

// nearest_mode.
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

// Keys' cubic convolution kernel at the distances 1 + t, t, 1 - t and 2 - t.
void cubic_weights(double t, double a, double (&w)[4]) {
  const double u = 1 - t, p = 1 + t, q = 1 + u;
  w[0] = ((a * p - 5 * a) * p + 8 * a) * p - 4 * a;
  w[1] = ((a + 2) * t - (a + 3)) * t * t + 1;
  w[2] = ((a + 2) * u - (a + 3)) * u * u + 1;
  w[3] = ((a * q - 5 * a) * q + 8 * a) * q - 4 * a;
}

// The same kernel at any distance, for stretched filters.
double cubic(double distance, double a) {
  const double x = distance;
  if (x >= 2) return 0;
  if (x >= 1) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return ((a + 2) * x - (a + 3)) * x * x + 1;
}

// The support radius of a filter stretched by 1 / scale: every input then contributes when an axis
// shrinks (antialiasing).
double reach_of(const Filter& filter, double scale) {
  return (filter.mode == kLinear ? 1 : 2) / scale;
}

bool is_wide(const Filter& filter, double scale) {
  return filter.is_antialias && filter.mode != kNearest && scale < 1;
}

int count_taps(const Filter& filter, const ResizedAxis& s) {
  if (filter.mode == kNearest || filter.is_plain(s)) return 1;
  if (!is_wide(filter, s.scale)) return filter.mode == kLinear ? 2 : 4;
  const double reach = reach_of(filter, s.scale);
  return int(__builtin_ceil(reach) - __builtin_floor(-reach));
}

// The weight of tap t for an output at fraction `part` after an element, which is tap -first.
double weight_of(const Filter& filter, const ResizedAxis& s, double first, double fraction, int t) {
  if (!is_wide(filter, s.scale)) {
    if (filter.mode == kLinear) return t == 0 ? 1 - fraction : fraction;
    double w[4];
    cubic_weights(fraction, filter.cubic_a, w);
    return w[t];
  }
  const double distance = __builtin_fabs((first + t - fraction) * s.scale);
  if (filter.mode == kCubic) return cubic(distance, filter.cubic_a);
  return distance < 1 ? 1 - distance : 0;
}

// All taps of output j at coordinate x. Indices outside clamp to the edge; exclude_outside gives
// them weight 0 and renormalizes.
void fill_taps(const Filter& filter, const ResizedAxis& s, double x, int64_t j, int n,
               int32_t* index, float* weight) {
  const bool widens = is_wide(filter, s.scale);
  const double low = __builtin_floor(x), fraction = x - low;
  const double first = widens                   ? __builtin_floor(-reach_of(filter, s.scale)) + 1
                       : filter.mode == kLinear ? 0
                                                : -1;
  double total = 0;
  const auto is_counted = [&](int t) {
    const double at = low + first + t;
    return !filter.excludes_outside || (at >= 0 && at < double(s.size));
  };
  for (int t = 0; t < n; ++t) total += is_counted(t) ? weight_of(filter, s, first, fraction, t) : 0;
  const double scale = widens || filter.excludes_outside ? 1 / total : 1;
  for (int t = 0; t < n; ++t) {
    index[t * s.out + j] = clipped(low + first + t, s.size);
    weight[t * s.out + j] =
        is_counted(t) ? float(weight_of(filter, s, first, fraction, t) * scale) : 0.0f;
  }
}

const uint8_t* find_outside(TableMemory& memory, const Filter& filter, const ResizedAxis& s) {
  auto* outside = memory.take<uint8_t>(s.out);
  for (int64_t j = 0; j < s.out; ++j) {
    const double x = filter.mode == kNearest ? double(position<float>(filter.transform, j, s))
                                             : position<double>(filter.transform, j, s);
    outside[j] = !(x >= 0 && x <= double(s.size - 1));
  }
  return outside;
}

}  // namespace

Taps make_taps(TableMemory& memory, const Filter& filter, const ResizedAxis& s) {
  const int n = count_taps(filter, s);
  const bool is_plain = filter.is_plain(s);
  auto* index = memory.take<int32_t>(n * s.out);
  auto* weight = memory.take<float>(n * s.out);
  for (int64_t j = 0; j < s.out; ++j) {
    if (n > 1) {
      fill_taps(filter, s, position<double>(filter.transform, j, s), j, n, index, weight);
      continue;
    }
    const float x = position<float>(filter.transform, j, s);
    index[j] = is_plain ? int32_t(j) : clipped(double(rounded(x, filter.rounding)), s.size);
    weight[j] = 1;
  }
  // Repetition by an integer factor has fast paths without an index table.
  const int64_t times = s.out / s.size;
  bool is_repeat = n == 1 && times * s.size == s.out;
  for (int64_t j = 0; j < s.out && is_repeat; ++j) is_repeat = index[j] == j / times;
  const uint8_t* outside = filter.transform == kCrop ? find_outside(memory, filter, s) : nullptr;
  return {s.size, s.out, n, is_repeat ? times : 0, index, weight, outside};
}

int64_t max_bytes(const Filter& filter, const ResizedAxis& s) {
  int64_t n = filter.mode == kNearest ? 1 : filter.mode == kLinear ? 2 : 4;
  if (filter.is_antialias && s.out > 0)  // sizes are rounded, so scales may be a little smaller
    n = n * (2 * s.size / s.out + 3);
  return s.out * (8 * n + 1) + 3 * 64;
}

}  // namespace sdx::SDX_ISA
