// Support vector machines as in libsvm: kernel values k(x, support vector), weighted.
// Classification is one-vs-one: every pair of classes has a decision value, and the class with most
// wins is the label. Probabilities come from Platt scaling of each pair, coupled by the second
// method of Wu, Lin and Weng (2004).
#include "kernels/estimator_output.h"
#include "kernels/estimators/kernels.h"
#include "kernels/features/batch.h"
#include "simd/double_math.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int { kX, kVectors, kSquares, kWeights, kRho, kSizes, kLabels, kSlopes, kShifts };
enum class KernelType : int64_t { linear, poly, rbf, sigmoid };

struct SvmArgs {
  OutputRule rule;
  Batch batch;
  KernelType kernel_type;
  int64_t n_vectors, n_classes, n_pairs;
  bool is_one_class, is_probable;
  double gamma, coef0, degree;
};

constexpr int kRows = 4;  // rows that share each load of the support vectors

// Scratch memory of kRows rows, and of one row after its kernel values.
struct Scratch {
  double* rows;           // [kRows, features], in double
  double* kernel_values;  // [kRows, vectors]
  double* partial;        // [class, opponent]: contributions to decision values
  double* decisions;      // by pair of classes
  double* columns;        // the output columns
  double* r;              // [class, class]: pairwise probabilities
  double* q;              // [class, class]: the quadratic form of the coupling
  double* qp;             // by class
};

// Carves the scratch memory out of `at`; returns its size in doubles.
SDX_INLINE int64_t take_scratch(const SvmArgs& a, Scratch* scratch, double* at) {
  double* const first = at;
  const auto take = [&](int64_t n) {
    double* from = at;
    at += n;
    return from;
  };
  const int64_t n = a.n_classes, columns = a.rule.n_columns;
  const int64_t widest = columns > a.n_pairs ? columns : a.n_pairs;
  *scratch = {take(kRows * a.batch.width),
              take(kRows * a.n_vectors),
              take(n * n),
              take(a.n_pairs),
              take(widest < 2 ? 2 : widest),
              take(n * n),
              take(n * n),
              take(n)};
  return at - first;
}

SDX_INLINE double dot(const double* a, const double* b, int64_t n) {
  Vec<double> accumulators[2] = {};
  int64_t i = 0;
  constexpr int64_t lanes = kLanesOf<double>;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    accumulators[0] += load(a + i) * load(b + i);
    accumulators[1] += load(a + i + lanes) * load(b + i + lanes);
  }
  double total = reduce_sum(accumulators[0] + accumulators[1]);
  for (; i < n; ++i) total += a[i] * b[i];
  return total;
}

void read_features(const Batch& batch, const void* x, int64_t row, double* to) {
  visit_features(batch.dtype, [&](auto* type) {
    using X = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    const X* from = static_cast<const X*>(x) + row * batch.row_stride;
    for (int64_t i = 0; i < batch.width; ++i) to[i] = double(from[i]);
  });
}

// x^n for whole n >= 0, by squaring.
SDX_INLINE f64v whole_power(f64v x, int64_t n) {
  f64v y = splat(1.0);
  for (; n > 0; n >>= 1, x *= x)
    if (n & 1) y *= x;
  return y;
}

// The kernel function of a vector of dot products.
SDX_INLINE f64v kernel_function(const SvmArgs& a, f64v dots, double square, f64v squares) {
  constexpr double kMostWhole = 16;  // a power by squaring is as exact as the product it replaces
  switch (a.kernel_type) {
    case KernelType::linear: return dots;
    case KernelType::rbf: return dexp(-a.gamma * at_least(square - 2.0 * dots + squares, f64v{}));
    case KernelType::sigmoid: return dtanh(a.gamma * dots + a.coef0);
    case KernelType::poly: break;
  }
  f64v y = a.gamma * dots + a.coef0;
  if (a.degree >= 0 && a.degree <= kMostWhole && a.degree == __builtin_floor(a.degree))
    return whole_power(y, int64_t(a.degree));
  for (int i = 0; i < kLanesOf<double>; ++i) y[i] = __builtin_pow(y[i], a.degree);
  return y;
}

// Kernel values of kRows rows with support vectors from `at` on, whose features are contiguous by
// vector: lanes are vectors. RBF expands ||x - v||^2 = x.x - 2 x.v + v.v, where v.v is precomputed;
// rounding may make it slightly negative.
template <class Lanes>
SDX_INLINE void kernel_values_at(const SvmArgs& a, const Data& data, const Scratch& scratch,
                                 const double* square, int64_t at, Lanes lanes) {
  const double* vectors = input<double>(data, kVectors) + at;
  f64v dots[kRows] = {};
  for (int64_t i = 0; i < a.batch.width; ++i) {
    const f64v v = load(vectors + i * a.n_vectors, lanes);
    for (int r = 0; r < kRows; ++r) dots[r] += scratch.rows[r * a.batch.width + i] * v;
  }
  const f64v squares = load(input<double>(data, kSquares) + at, lanes);
  for (int r = 0; r < kRows; ++r)
    store(scratch.kernel_values + r * a.n_vectors + at,
          kernel_function(a, dots[r], square[r], squares), lanes);
}

void compute_kernel_values(const SvmArgs& a, const Data& data, const Scratch& scratch) {
  double square[kRows] = {};
  for (int r = 0; r < kRows && a.kernel_type == KernelType::rbf; ++r) {
    const double* row = scratch.rows + r * a.batch.width;
    square[r] = dot(row, row, a.batch.width);
  }
  vloop<double>(a.n_vectors, [&](int64_t at, auto lanes) {
    kernel_values_at(a, data, scratch, square, at, lanes);
  });
}

// The decision value of each pair of classes, positive if the first wins. Support vectors are
// sorted by class; those of class i have one weight for each of the n - 1 opponents.
void decide_pairs(const SvmArgs& a, const Data& data, const Scratch& scratch) {
  const double* weights = input<double>(data, kWeights);  // [opponent, vector]
  const double* rho = input<double>(data, kRho);
  const int64_t* sizes = input<int64_t>(data, kSizes);
  const int64_t n = a.n_classes;
  for (int64_t c = 0, first = 0; c < n; first += sizes[c++])
    for (int64_t j = 0; j < n - 1; ++j)
      scratch.partial[c * n + j] =
          dot(scratch.kernel_values + first, weights + j * a.n_vectors + first, sizes[c]);
  for (int64_t i = 0, pair = 0; i < n; ++i)
    for (int64_t j = i + 1; j < n; ++j, ++pair)
      scratch.decisions[pair] =
          scratch.partial[i * n + j - 1] + scratch.partial[j * n + i] + rho[pair];
}

// The class with most wins, the first of equal ones.
int64_t vote(const SvmArgs& a, const Scratch& scratch) {
  const int64_t n = a.n_classes;
  double* wins = scratch.qp;
  memset(wins, 0, size_t(n) * sizeof(double));
  for (int64_t i = 0, pair = 0; i < n; ++i)
    for (int64_t j = i + 1; j < n; ++j, ++pair) wins[scratch.decisions[pair] > 0 ? i : j] += 1;
  return top_of(wins, n, nullptr);
}

// Pairwise probabilities r by Platt scaling, clipped away from 0 and 1, and the matrix Q of the
// coupling: q_ij = -r_ij r_ji, q_ii = sum_j r_ji^2.
void pair_matrix(const SvmArgs& a, const Data& data, const Scratch& scratch) {
  const float* slopes = input<float>(data, kSlopes);
  const float* shifts = input<float>(data, kShifts);
  const int64_t n = a.n_classes;
  for (int64_t i = 0, pair = 0; i < n; ++i) {
    scratch.r[i * n + i] = 0;
    for (int64_t j = i + 1; j < n; ++j, ++pair) {
      double win_probability =
          1 - logistic(scratch.decisions[pair] * double(slopes[pair]) + double(shifts[pair]));
      win_probability = win_probability < 1e-7       ? 1e-7
                        : win_probability > 1 - 1e-7 ? 1 - 1e-7
                                                     : win_probability;
      scratch.r[i * n + j] = win_probability;
      scratch.r[j * n + i] = 1 - win_probability;
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    double diagonal = 0;
    for (int64_t j = 0; j < n; ++j) {
      scratch.q[i * n + j] = -scratch.r[i * n + j] * scratch.r[j * n + i];
      diagonal += scratch.r[j * n + i] * scratch.r[j * n + i];
    }
    scratch.q[i * n + i] = diagonal;
  }
}

// Minimizes p^T Q p over probability vectors by coordinate descent, as in libsvm's
// multiclass_probability: same tolerance (0.005 / n) and at least 100 rounds.
void couple(int64_t n, const Scratch& scratch, double* p) {
  for (int64_t i = 0; i < n; ++i) p[i] = 1.0 / double(n);
  for (int64_t round = 0; round < (n > 100 ? n : 100); ++round) {
    double energy = 0, worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      scratch.qp[i] = 0;
      for (int64_t j = 0; j < n; ++j) scratch.qp[i] += scratch.q[i * n + j] * p[j];
      energy += p[i] * scratch.qp[i];
    }
    for (int64_t i = 0; i < n; ++i) {
      const double gap = __builtin_fabs(scratch.qp[i] - energy);
      worst = gap > worst || gap != gap ? gap : worst;
    }
    if (!(worst >= 0.005 / double(n))) return;
    for (int64_t t = 0; t < n; ++t) {
      const double q_tt = scratch.q[t * n + t], step = (energy - scratch.qp[t]) / q_tt,
                   by = 1 + step;
      energy = (energy + step * (step * q_tt + 2 * scratch.qp[t])) / (by * by);
      for (int64_t j = 0; j < n; ++j)
        scratch.qp[j] = (scratch.qp[j] + step * scratch.q[t * n + j]) / by;
      p[t] += step;
      for (int64_t j = 0; j < n; ++j) p[j] /= by;
    }
  }
}

void classify(const SvmArgs& a, const Data& data, const Scratch& scratch, int64_t row) {
  decide_pairs(a, data, scratch);
  output<int64_t>(data, 0)[row] = input<int64_t>(data, kLabels)[vote(a, scratch)];
  if (a.is_probable) {
    pair_matrix(a, data, scratch);
    couple(a.n_classes, scratch, scratch.columns);
  } else {
    memcpy(scratch.columns, scratch.decisions, size_t(a.n_pairs) * sizeof(double));
  }
  write_estimator_row<float>(a.rule, scratch.columns, nullptr, nullptr, nullptr,
                             output<float>(data, 1) + row * a.rule.n_columns);
}

Status svm_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const SvmArgs*>(args);
  Scratch scratch;
  take_scratch(a, &scratch, reinterpret_cast<double*>(data.local));
  const int64_t last = end * kRowsPerItem < a.batch.n_rows ? end * kRowsPerItem : a.batch.n_rows;
  for (int64_t first = begin * kRowsPerItem; first < last; first += kRows) {
    const int64_t n = last - first < kRows ? last - first : kRows;
    for (int64_t r = 0; r < kRows; ++r)  // missing rows repeat the last one
      read_features(a.batch, data.in[kX], first + (r < n ? r : n - 1),
                    scratch.rows + r * a.batch.width);
    compute_kernel_values(a, data, scratch);
    Scratch one = scratch;
    for (int64_t row = first; row < first + n; ++row, one.kernel_values += a.n_vectors) {
      if (a.n_classes > 0) {
        classify(a, data, one, row);
        continue;
      }
      const double y = dot(one.kernel_values, input<double>(data, kWeights), a.n_vectors) +
                       input<double>(data, kRho)[0];
      output<float>(data)[row] = a.is_one_class ? (y > 0 ? 1.0f : -1.0f) : float(y);
    }
  }
  return {};
}

}  // namespace

Status svm(const Call& call, Plan& plan) {
  auto* a = plan.make<SvmArgs>();
  const int64_t* ints = call.ints + kOutputRuleInts;
  a->rule = read_output_rule(call.ints);
  a->batch = batch_of(call.in[kX]);
  a->kernel_type = KernelType(ints[0]);
  a->n_classes = ints[1];
  a->is_one_class = ints[2] != 0;
  a->is_probable = ints[3] != 0;
  a->n_vectors = call.in[kSquares].count();
  a->n_pairs = a->n_classes * (a->n_classes - 1) / 2;
  a->gamma = call.floats[0], a->coef0 = call.floats[1], a->degree = call.floats[2];
  plan.args = a;
  Scratch scratch;
  plan.local_bytes = take_scratch(*a, &scratch, nullptr) * int64_t(sizeof(double));
  const int64_t row_work = a->n_vectors * (20 + a->batch.width / 4);
  plan.add(svm_rows, items_of(a->batch.n_rows), kRowsPerItem * row_work);
  return {};
}

}  // namespace sdx::SDX_ISA
