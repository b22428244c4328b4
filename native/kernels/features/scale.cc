// Elementwise feature preprocessing: Scaler, Normalizer, Imputer and Binarizer.
#include "kernels/features/batch.h"
#include "kernels/features/kernels.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

enum class Norm : int64_t { max, l1, l2 };

// A tensor as rows along its last axis, which is the feature axis.
struct ScaleArgs {
  DType dtype;
  int64_t n_rows, width;
  int64_t stride, scale_stride;  // strides: 1 with one number per feature, 0 with one for all
  bool has_offset, has_scale;
  Norm norm;
  int64_t missing_int;
  double missing_float;
  double threshold;
};

SDX_INLINE ScaleArgs* scale_args(const Call& call, Plan& plan, PhaseFn run) {
  auto* a = plan.make<ScaleArgs>();
  const View& x = call.in[0];
  a->dtype = x.dtype;
  a->width = x.rank < 1 ? 1 : x.dim(-1);
  a->n_rows = x.rank < 1 ? 1 : x.count(0, x.rank - 1);
  plan.args = a;
  plan.add(run, items_of(a->n_rows), kRowsPerItem * (4 + a->width / 4));
  return a;
}

// The type of the arithmetic: float for float features, double for all others.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, float>, float, double>;

Status scale_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ScaleArgs*>(args);
  const float* offset = a.has_offset ? input<float>(data, 1) : nullptr;
  const float* scale = a.has_scale ? input<float>(data, 2) : nullptr;
  visit_features(a.dtype, [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    each_row(a.n_rows, begin, end, [&](int64_t row) {
      const T* x = input<T>(data, 0) + row * a.width;
      float* y = output<float>(data) + row * a.width;
      for (int64_t i = 0; i < a.width; ++i) {
        Wide<T> v = Wide<T>(x[i]);
        if (offset != nullptr) v = v - offset[i * a.stride];
        if (scale != nullptr) v = v * scale[i * a.scale_stride];
        y[i] = float(v);
      }
    });
  });
  return {};
}

// The norm of a row. ONNX's MAX norm is the largest element, not the largest magnitude; NaN stays.
template <class T>
SDX_INLINE double row_norm(const T* x, int64_t n, Norm norm) {
  double norm_value = norm == Norm::max ? -__builtin_inf() : 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = double(x[i]);
    if (norm == Norm::max)
      norm_value = norm_value != norm_value || norm_value > v ? norm_value : v;
    else
      norm_value += norm == Norm::l1 ? __builtin_fabs(v) : v * v;
  }
  return norm == Norm::l2 ? __builtin_sqrt(norm_value) : norm_value;
}

// The same of rows of float, in vectors, unless a row is shorter than one: the sum of a vector's
// lanes takes longer than the row.
SDX_INLINE double row_norm_f32(const float* x, int64_t n, Norm norm) {
  if (n < kLanes) return row_norm(x, n, norm);
  const auto magnitude = [](f32v v) { return (f32v)((i32v)v & 0x7fffffff); };
  const auto add = [](auto a, auto b) { return a + b; };
  const auto max = [](auto a, auto b) { return vmax(a, b); };
  if (norm == Norm::max) {
    f32v top = splat(-kInf);
    vloop(n, [&](int64_t i, auto lanes) { top = vmax(top, load(x + i, lanes, -kInf)); });
    return double(fold(top, max));
  }
  constexpr int64_t kBlock = 64 * kLanes;
  double total = 0;
  for (int64_t at = 0; at < n; at += kBlock) {
    f32v sum{};
    vloop(n - at < kBlock ? n - at : kBlock, [&](int64_t i, auto lanes) {
      const f32v v = load(x + at + i, lanes);
      sum += norm == Norm::l1 ? magnitude(v) : v * v;
    });
    total += double(fold(sum, add));
  }
  if (norm == Norm::l1) return total;
  const bool is_in_range = total > 1e-30 && total < 1e38;  // of squares of floats
  return is_in_range ? __builtin_sqrt(total) : row_norm(x, n, norm);
}

Status normalize_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ScaleArgs*>(args);
  visit_features(a.dtype, [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    each_row(a.n_rows, begin, end, [&](int64_t row) {
      const T* x = input<T>(data, 0) + row * a.width;
      float* y = output<float>(data) + row * a.width;
      double norm_value;
      if constexpr (std::is_same_v<T, float>)
        norm_value = row_norm_f32(x, a.width, a.norm);
      else
        norm_value = row_norm(x, a.width, a.norm);
      const double divisor = norm_value == 0 ? 1 : norm_value;
      if constexpr (std::is_same_v<T, float>) {
        const float d = float(divisor);
        if (a.width >= kLanes && d > 1e-37f && d < kInf) {
          vloop(a.width,
                [&](int64_t i, auto lanes) { store(y + i, load(x + i, lanes) / d, lanes); });
          return;
        }
      }
      for (int64_t i = 0; i < a.width; ++i) y[i] = float(double(x[i]) / divisor);
    });
  });
  return {};
}

// Replaces the elements that equal the missing value, which may be NaN.
Status impute_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ScaleArgs*>(args);
  visit_features(a.dtype, [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const T* replacement = input<T>(data, 1);
    T missing = T(a.missing_int);
    if constexpr (std::is_floating_point_v<T>) missing = T(a.missing_float);
    const bool is_nan = missing != missing;
    each_row(a.n_rows, begin, end, [&](int64_t row) {
      const T* x = input<T>(data, 0) + row * a.width;
      T* y = output<T>(data) + row * a.width;
      for (int64_t i = 0; i < a.width; ++i) {
        const bool is_missing = is_nan ? x[i] != x[i] : x[i] == missing;
        y[i] = is_missing ? replacement[i * a.stride] : x[i];
      }
    });
  });
  return {};
}

Status binarize_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ScaleArgs*>(args);
  visit_features(a.dtype, [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const auto threshold = Wide<T>(a.threshold);
    each_row(a.n_rows, begin, end, [&](int64_t row) {
      const T* x = input<T>(data, 0) + row * a.width;
      T* y = output<T>(data) + row * a.width;
      for (int64_t i = 0; i < a.width; ++i) y[i] = T(Wide<T>(x[i]) > threshold);
    });
  });
  return {};
}

}  // namespace

Status scaler(const Call& call, Plan& plan) {
  ScaleArgs* a = scale_args(call, plan, scale_rows);
  a->has_offset = call.in[1].is_given();
  a->has_scale = call.in[2].is_given();
  a->stride = a->has_offset && call.in[1].count() != 1;
  a->scale_stride = a->has_scale && call.in[2].count() != 1;
  return {};
}

Status normalizer(const Call& call, Plan& plan) {
  scale_args(call, plan, normalize_rows)->norm = Norm(call.ints[0]);
  return {};
}

Status imputer(const Call& call, Plan& plan) {
  ScaleArgs* a = scale_args(call, plan, impute_rows);
  a->stride = call.in[1].count() != 1;
  a->missing_int = call.ints[0];
  a->missing_float = call.floats[0];
  return {};
}

Status binarizer(const Call& call, Plan& plan) {
  scale_args(call, plan, binarize_rows)->threshold = call.floats[0];
  return {};
}

}  // namespace sdx::SDX_ISA
