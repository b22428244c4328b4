// Linear models: scores = x W^T + intercepts, followed by the estimator's post-transform
// (kernels/estimator_output.h). With few targets, or in float64, a score is one dot product per
// row.
#include "kernels/estimator_output.h"
#include "kernels/estimators/kernels.h"
#include "kernels/features/batch.h"
#include "simd/math.h"
#include "simd/reduction.h"
#include "simd/softmax_exp.h"

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

// Models of float32 with several targets. Lanes of the product are targets, and those of what
// follows are rows: a class's score in all rows of an item is one vector, or a few.
struct ColumnsArgs {
  OutputRule rule;
  Batch batch;
  int64_t pitch;  // targets with their padding
};

constexpr int kItemRows = int(kRowsPerItem);

// Scores of 16 rows, of which the last may repeat: [row, pitch].
void score_item(const ColumnsArgs& a, const float* const* x, const float* weights,
                const float* intercepts, float* scores) {
  constexpr int kTogether = 8;  // rows
  for (int64_t t = 0; t < a.pitch; t += kLanes)
    for (int first = 0; first < kItemRows; first += kTogether) {
      f32v sums[kTogether] = {};
      for (int64_t i = 0; i < a.batch.width; ++i) {
        const f32v w = load(weights + i * a.pitch + t);
        for (int r = 0; r < kTogether; ++r) sums[r] += w * x[first + r][i];
      }
      const f32v shift = load(intercepts + t);
      for (int r = 0; r < kTogether; ++r)
        store(scores + (first + r) * a.pitch + t, sums[r] + shift);
    }
}

// The class of the largest score in each row; NaN loses against all others, and the first wins.
void find_classes(const float* s, int64_t n, int32_t* classes, float* tops) {
  for (int lane = 0; lane < kItemRows; lane += kLanes) {
    f32v top = splat(-kInf);
    i32v best{};
    for (int64_t t = 0; t < n; ++t) {
      const f32v v = load(s + t * kItemRows + lane);
      const i32v is_better = v > top;
      best = is_better ? splat(int32_t(t)) : best;
      top = is_better ? v : top;
    }
    store(classes + lane, best);
    store(tops + lane, top);
  }
}

// Softmax or logistic of n scores of each row, in place.
void transform_columns(float* s, int64_t n, Post post, const float* tops) {
  for (int lane = 0; lane < kItemRows; lane += kLanes) {
    const f32v top = load(tops + lane);
    f32v total{};
    for (float* at = s + lane; at < s + n * kItemRows; at += kItemRows) {
      const f32v x = load(at), y = post == Post::logistic ? vsigmoid(x) : vexp_softmax(x - top);
      store(at, y);
      total += y;
    }
    if (post == Post::softmax)
      for (float* at = s + lane; at < s + n * kItemRows; at += kItemRows)
        store(at, load(at) / total);
  }
}

// Items: 16 rows.
Status linear_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const ColumnsArgs*>(args);
  const int64_t n = a.rule.n_scores;
  auto* scores = reinterpret_cast<float*>(data.local);
  float *columns = scores + kItemRows * a.pitch, tops[kItemRows];
  int32_t classes[kItemRows];
  const bool has_labels = a.rule.label_rule == LabelRule::argmax;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item * kItemRows;
    const int count = a.batch.n_rows - first < kItemRows ? int(a.batch.n_rows - first) : kItemRows;
    const float* x[kItemRows];
    for (int r = 0; r < kItemRows; ++r)
      x[r] = input<float>(data, kX) + (first + (r < count ? r : count - 1)) * a.batch.row_stride;
    score_item(a, x, input<float>(data, kWeights), input<float>(data, kIntercepts), scores);
    float* y = output<float>(data, has_labels ? 1 : 0) + first * n;
    const bool is_changed = a.rule.post != Post::none;
    if (has_labels || is_changed) {
      for (int r = 0; r < kItemRows; ++r)
        for (int64_t t = 0; t < n; ++t) columns[t * kItemRows + r] = scores[r * a.pitch + t];
      find_classes(columns, n, classes, tops);
      for (int r = 0; r < count && has_labels; ++r)
        output<int64_t>(data, 0)[first + r] = input<int64_t>(data, kLabels)[classes[r]];
    }
    if (is_changed) transform_columns(columns, n, a.rule.post, tops);
    const int64_t row_step = is_changed ? 1 : a.pitch, step = is_changed ? kItemRows : 1;
    const float* from = is_changed ? columns : scores;
    for (int r = 0; r < count; ++r)
      for (int64_t t = 0; t < n; ++t) y[r * n + t] = from[r * row_step + t * step];
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

Status linear_columns_f32(const Call& call, Plan& plan) {
  auto* a = plan.make<ColumnsArgs>();
  a->rule = read_output_rule(call.ints);
  a->batch = batch_of(call.in[kX]);
  a->pitch = call.in[kIntercepts].count();
  plan.args = a;
  plan.local_bytes = kItemRows * (a->pitch + a->rule.n_scores) * int64_t(sizeof(float));
  plan.add(linear_items, items_of(a->batch.n_rows),
           kItemRows * (a->pitch * a->batch.width / 16 + 4 * a->rule.n_scores));
  return {};
}
Status linear_f32(const Call& call, Plan& plan) { return linear<float>(call, plan); }
Status linear_f64(const Call& call, Plan& plan) { return linear<double>(call, plan); }

}  // namespace sdx::SDX_ISA
