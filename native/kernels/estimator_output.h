// Output of ai.onnx.ml estimators (trees, linear models, SVM): the post_transform of scores, and
// the label of a class.
#pragma once

#include "kernels/kernel.h"
#include "simd/double_math.h"

namespace sdx::SDX_ISA {

// The values of the attribute post_transform.
enum class Post : int64_t { none, softmax, logistic, softmax_zero, probit };

// How the label is chosen.
enum class LabelRule : int64_t {
  none,    // no label: a regressor
  argmax,  // the label of the largest score
  binary,  // one score decides between two labels
};

// Read from `ints`, in the order of providers/cpu/scores.py.
struct OutputRule {
  LabelRule label_rule = LabelRule::none;
  Post post = Post::none;
  int64_t n_scores = 1;    // scores of a row
  int64_t n_columns = 1;   // outputs of a row
  bool is_single = false;  // scores are rounded to float before they are compared or transformed
  bool is_second = false;  // binary: the columns are 0 and the score
  bool is_complement = false;  // binary: the first column is 1 - score, not -score
  bool is_probable = false;    // binary: the threshold is 0.5, not 0
};

constexpr int kOutputRuleInts = 8;

SDX_INLINE OutputRule read_output_rule(const int64_t* ints) {
  return {LabelRule(ints[0]), Post(ints[1]), ints[2],      ints[3],
          ints[4] != 0,       ints[5] != 0,  ints[6] != 0, ints[7] != 0};
}

SDX_INLINE double logistic(double x) {
  const double e = __builtin_exp(-__builtin_fabs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

// Quantile of the normal distribution, by Winitzki's approximation; 3.14159 as in onnxruntime.
SDX_INLINE double probit(double x) {
  const double t = 2 * x - 1, a = 0.147;
  const double log = __builtin_log((1 - t) * (1 + t));
  const double half = 2 / (3.14159 * a) + log / 2;
  const double size = __builtin_sqrt(2 * (__builtin_sqrt(half * half - log / a) - half));
  return __builtin_copysign(size, t);
}

// Replaces n scores by f of them. Few have just been written one by one: loading these as a vector
// would wait for the stores.
template <class F>
SDX_INLINE void each_score(double* s, int64_t n, F&& f) {
  if (n < kLanesOf<double>) {
    for (int64_t i = 0; i < n; ++i) s[i] = f(s[i]);
  } else {
    vloop<double>(n, [&](int64_t i, auto lanes) { store(s + i, f(load(s + i, lanes)), lanes); });
  }
}

SDX_INLINE void softmax(double* s, int64_t n) {
  double top = s[0], total = 0;
  for (int64_t i = 1; i < n; ++i) top = top != top || top > s[i] ? top : s[i];
  each_score(s, n, [&](auto x) {
    if constexpr (sizeof x == sizeof(double))
      return __builtin_exp(x - top);
    else
      return dexp(x - top);
  });
  for (int64_t i = 0; i < n; ++i) total += s[i];
  for (int64_t i = 0; i < n; ++i) s[i] /= total;
}

// SOFTMAX_ZERO: a score of zero, which means no votes at all, stays zero.
SDX_INLINE void softmax_zero(double* s, int64_t n) {
  double top = s[0], total = 0;
  for (int64_t i = 1; i < n; ++i) top = top != top || top > s[i] ? top : s[i];
  for (int64_t i = 0; i < n; ++i) {
    const bool has_votes = __builtin_fabs(s[i]) > 1e-7;
    s[i] = has_votes ? __builtin_exp(s[i] - top) : s[i] * __builtin_exp(-top);
    if (has_votes) total += s[i];
  }
  for (int64_t i = 0; i < n; ++i) s[i] /= total;
}

// Applies the post_transform in place. Only PROBIT changes a single score.
SDX_INLINE void transform(double* s, int64_t n, Post post) {
  if (n < 2 && post != Post::probit) return;
  switch (post) {
    case Post::none: return;
    case Post::softmax: return softmax(s, n);
    case Post::softmax_zero: return softmax_zero(s, n);
    case Post::logistic:
      each_score(s, n, [](auto x) {
        if constexpr (sizeof x == sizeof(double))
          return logistic(x);
        else
          return dsigmoid(x);
      });
      return;
    case Post::probit:
      for (int64_t i = 0; i < n; ++i) s[i] = probit(s[i]);
  }
}

// The first of the largest scores; those without votes, and NaN, lose against all others.
SDX_INLINE int64_t top_of(const double* s, int64_t n, const uint8_t* voted) {
  int64_t best = 0;
  double top = -__builtin_inf();
  for (int64_t i = 0; i < n; ++i) {
    if ((voted == nullptr || voted[i]) && s[i] > top) top = s[i], best = i;
  }
  return best;
}

// The columns of a binary classifier from its score in s[0]; s has capacity for two.
SDX_INLINE void two_columns(const OutputRule& v, double* s) {
  const double score = s[0];
  if (v.n_columns == 1) return transform(s, 1, v.post);
  s[1] = score;
  if (v.is_second) {
    s[0] = 0;
    return transform(s, 2, v.post);
  }
  const double rest = v.is_single ? double(1 - float(score)) : 1 - score;
  s[0] = v.is_complement || v.post == Post::probit ? rest : -score;
  if (v.post == Post::logistic) s[0] = -score;
  if (v.post == Post::logistic || v.post == Post::probit) transform(s, 2, v.post);
}

// Writes one row: `s` holds n_scores scores, has capacity for n_columns, and is overwritten.
// `labels` are those of the classes, or null if no label is needed.
template <class Out>
SDX_INLINE void write_estimator_row(const OutputRule& v, double* s, const uint8_t* voted,
                                    const int64_t* labels, int64_t* label, Out* out) {
  if (v.is_single)
    for (int64_t i = 0; i < v.n_scores; ++i) s[i] = double(float(s[i]));
  if (v.label_rule == LabelRule::binary) {
    if (label != nullptr) *label = labels[s[0] > (v.is_probable ? 0.5 : 0.0)];
    two_columns(v, s);
  } else {
    if (v.label_rule == LabelRule::argmax && label != nullptr)
      *label = labels[top_of(s, v.n_scores, voted)];
    transform(s, v.n_scores, v.post);
  }
  if (out == nullptr) return;
  const bool is_exact = v.post == Post::none;
  for (int64_t i = 0; i < v.n_columns; ++i) out[i] = is_exact ? Out(s[i]) : Out(float(s[i]));
}

}  // namespace sdx::SDX_ISA
