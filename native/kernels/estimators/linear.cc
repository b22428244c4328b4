// Linear models: scores = x W^T + intercepts, one dot product per row and target, followed by the
// estimator's post-transform (kernels/estimator_output.h). Targets are few, so this is a small-n
// matrix product for which packing would not pay.
#include "kernels/estimator_output.h"
#include "kernels/estimators/kernels.h"
#include "kernels/features/batch.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int { kX, kWeights, kIntercepts, kLabels };

struct LinearArgs {
  OutputRule rule;
  Batch batch;
  int64_t pitch;  // doubles per row of scores: max(scores, output columns)
};

constexpr int kTileRows = 4;  // rows that share each load of the weights
constexpr int kTargets = 4;   // targets that share each load of the rows

// Scores of kTogether rows for every target. Fewer rows repeat the last one.
template <class T>
void score_rows(const LinearArgs& a, const T* const (&x)[kTileRows], const T* weights,
                const T* intercepts, double* out) {
  const auto add = [](auto p, auto q) { return p + q; };
  int64_t first = 0;
  for (; first + kTargets <= a.rule.n_scores; first += kTargets) {
    Vec<T> sums[kTargets * kTileRows] = {};
    vloop<T>(a.batch.width, [&](int64_t i, auto lanes) {
      Vec<T> v[kTileRows];
      for (int r = 0; r < kTileRows; ++r) v[r] = load(x[r] + i, lanes);
      for (int t = 0; t < kTargets; ++t) {
        const Vec<T> w = load(weights + (first + t) * a.batch.width + i, lanes);
        for (int r = 0; r < kTileRows; ++r) sums[t * kTileRows + r] += w * v[r];
      }
    });
    T totals[kTargets * kTileRows];
    for (int i = 0; i < kTargets * kTileRows; i += kLanesOf<T>)
      store(totals + i, fold_many(sums + i, add));
    for (int t = 0; t < kTargets; ++t)
      for (int r = 0; r < kTileRows; ++r)
        out[r * a.pitch + first + t] = double(T(totals[t * kTileRows + r] + intercepts[first + t]));
  }
  weights += first * a.batch.width;
  for (int64_t t = first; t < a.rule.n_scores; ++t, weights += a.batch.width) {
    Vec<T> accumulators[kTileRows] = {};
    vloop<T>(a.batch.width, [&](int64_t i, auto lanes) {
      const Vec<T> w = load(weights + i, lanes);
      for (int r = 0; r < kTileRows; ++r) accumulators[r] += w * load(x[r] + i, lanes);
    });
    for (int r = 0; r < kTileRows; ++r)
      out[r * a.pitch + t] = double(T(T(fold(accumulators[r], add)) + intercepts[t]));
  }
}

// A row in the type of the weights, converted into `copy` if it has another.
template <class T>
const T* as_numbers(const Batch& batch, const void* x, int64_t row, T* copy) {
  const T* features = copy;
  visit_features(batch.dtype, [&](auto* type) {
    using X = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const X* from = static_cast<const X*>(x) + row * batch.row_stride;
    if constexpr (std::is_same_v<X, T>) {
      features = from;
    } else {
      for (int64_t i = 0; i < batch.width; ++i) copy[i] = T(from[i]);
    }
  });
  return features;
}

// Post-transform and label of one row.
void end_linear(const LinearArgs& a, const Data& data, int64_t row, double* scores) {
  const int64_t n = a.rule.n_columns;
  if (a.rule.label_rule == LabelRule::none)
    return write_estimator_row(a.rule, scores, nullptr, nullptr, nullptr,
                               output<float>(data) + row * n);
  write_estimator_row(a.rule, scores, nullptr, input<int64_t>(data, kLabels),
                      output<int64_t>(data, 0) + row, output<float>(data, 1) + row * n);
}

template <class T>
Status linear_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const LinearArgs*>(args);
  auto* scores = reinterpret_cast<double*>(data.local);
  T* copies = reinterpret_cast<T*>(scores + kTileRows * a.pitch);
  const int64_t last = end * kRowsPerItem < a.batch.n_rows ? end * kRowsPerItem : a.batch.n_rows;
  for (int64_t row = begin * kRowsPerItem; row < last; row += kTileRows) {
    const T* x[kTileRows];
    for (int64_t r = 0; r < kTileRows; ++r) {
      const int64_t at = row + r < last ? row + r : last - 1;
      x[r] = as_numbers(a.batch, data.in[kX], at, copies + r * a.batch.width);
    }
    score_rows(a, x, input<T>(data, kWeights), input<T>(data, kIntercepts), scores);
    for (int64_t r = 0; r < kTileRows && row + r < last; ++r)
      end_linear(a, data, row + r, scores + r * a.pitch);
  }
  return {};
}

template <class T>
SDX_INLINE Status linear(const Call& call, Plan& plan) {
  auto* a = plan.make<LinearArgs>();
  a->rule = read_output_rule(call.ints);
  a->batch = batch_of(call.in[kX]);
  const int64_t n = a->rule.n_scores, columns = a->rule.n_columns;
  a->pitch = n > columns ? n : columns;
  plan.args = a;
  plan.local_bytes = kTileRows * (a->pitch * 8 + a->batch.width * int64_t(sizeof(T)));
  plan.add(linear_rows<T>, items_of(a->batch.n_rows), kRowsPerItem * n * (10 + a->batch.width / 8));
  return {};
}

}  // namespace

Status linear_f32(const Call& call, Plan& plan) { return linear<float>(call, plan); }
Status linear_f64(const Call& call, Plan& plan) { return linear<double>(call, plan); }

}  // namespace sdx::SDX_ISA
