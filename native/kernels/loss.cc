// NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: scores [N, C, D], labels [N, D], weights
// [C]. Losses are summed in double per chunk of 256 labels; chunks depend on sizes only, so results
// do not depend on threads.
#include "kernels/elements.h"
#include "simd/double_math.h"
#include "simd/reduction.h"
#include "simd/softmax_exp.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int { kScores, kLabels, kWeights };
enum Reduction : int64_t { kNone, kSum, kMean };
constexpr int64_t kChunk = 256;  // labels of an item

struct LossArgs {
  int64_t n_labels, classes, inner;  // N * D, C, D
  bool is_log;                       // whether scores are log probabilities
  bool writes_log;                   // whether log probabilities are an output
  bool has_ignore_index, labels_are_i64, has_weights;
  int64_t ignore_index;
  Reduction reduction;
};

// The scores of one label as numbers next to each other.
template <class C, class T>
const C* scores_of(const LossArgs& a, const T* x, int64_t label, C* buffer) {
  const int64_t at = label / a.inner * a.classes * a.inner + label % a.inner;
  return read_elements<C>(x + at, a.inner, a.classes, buffer);
}

// log(sum of e^x).
template <class C>
C log_sum(const C* x, int64_t n) {
  const auto max = [](Vec<C> a, Vec<C> b) { return a > b ? a : b; };
  Vec<C> tops = splat(C(-kInf)), sums{};
  vloop<C>(n, [&](int64_t i, auto lanes) { tops = max(tops, load(x + i, lanes, C(-kInf))); });
  const C top = fold(tops, max);
  vloop<C>(n, [&](int64_t i, auto lanes) {
    const Vec<C> v = load(x + i, lanes, C(-kInf)) - top;
    if constexpr (std::is_same_v<C, double>)
      sums += dexp(v);
    else
      sums += vexp_softmax(v);
  });
  return top + C(__builtin_log(double(fold_sum(sums))));
}

// The log probability of the label of a row, and of all classes if they are an output.
template <class C, class T>
C log_probability(const LossArgs& a, const Data& data, int64_t row, int64_t label, C* buffer) {
  const C* x = scores_of(a, input<T>(data, kScores), row, buffer);
  if (a.is_log) return x[label];
  const C total = log_sum(x, a.classes);
  const C picked = x[label] - total;
  if (a.writes_log) {
    T* y = output<T>(data, 1) + row / a.inner * a.classes * a.inner + row % a.inner;
    for (int64_t i = 0; i < a.classes; ++i) y[i * a.inner] = element<T>(x[i] - total);
  }
  return picked;
}

// Items: chunks of labels; scratch has the loss and the weight of each.
template <class T>
Status loss_chunks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const LossArgs*>(args);
  using C = Wide<T>;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t last = (chunk + 1) * kChunk < a.n_labels ? (chunk + 1) * kChunk : a.n_labels;
    double total = 0, weights = 0;
    for (int64_t i = chunk * kChunk; i < last; ++i) {
      const int64_t label =
          a.labels_are_i64 ? input<int64_t>(data, kLabels)[i] : input<int32_t>(data, kLabels)[i];
      const bool is_ignored = a.has_ignore_index && label == a.ignore_index;
      if (!is_ignored && (label < 0 || label >= a.classes))
        return Status::fail("the label %ld is outside [0, %ld)", long(label), long(a.classes));
      C loss = 0;
      // Log probabilities are an output for ignored labels too.
      if (!is_ignored || (a.writes_log && a.classes > 0))
        loss = -log_probability<C, T>(a, data, i, is_ignored ? 0 : label,
                                      reinterpret_cast<C*>(data.local));
      C weight = is_ignored ? 0 : 1;
      if (a.has_weights && !is_ignored) weight = number<C>(input<T>(data, kWeights)[label]);
      loss = is_ignored ? 0 : loss * weight;
      if (a.reduction == kNone) output<T>(data)[i] = element<T>(loss);
      total += double(loss), weights += double(weight);
    }
    auto* sums = reinterpret_cast<double*>(data.scratch);
    if (a.reduction != kNone) sums[2 * chunk] = total, sums[2 * chunk + 1] = weights;
  }
  return {};
}

template <class T>
Status join_chunks(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const LossArgs*>(args);
  const auto* sums = reinterpret_cast<const double*>(data.scratch);
  double total = 0, weights = 0;
  for (int64_t chunk = 0; chunk * kChunk < a.n_labels; ++chunk)
    total += sums[2 * chunk], weights += sums[2 * chunk + 1];
  output<T>(data)[0] = element<T>(Wide<T>(a.reduction == kMean ? total / weights : total));
  return {};
}

// ints: whether scores are log probabilities, whether a label is ignored, that label, the
// reduction.
Status loss(const Call& call, Plan& plan) {
  auto* a = plan.make<LossArgs>();
  const View& x = call.in[kScores];
  a->classes = x.dims[1], a->inner = x.count(2, x.rank);
  a->n_labels = x.dims[0] * a->inner;
  a->is_log = call.ints[0] != 0, a->has_ignore_index = call.ints[1] != 0;
  a->writes_log = call.n_out > 1 && call.out[1].is_given();
  a->ignore_index = call.ints[2], a->reduction = Reduction(call.ints[3]);
  a->labels_are_i64 = call.in[kLabels].dtype == DType::i64;
  a->has_weights = call.in[kWeights].is_given();
  plan.args = a;
  return visit(x.dtype, Floats{}, [&]<class T>() {
    const int64_t chunks = (a->n_labels + kChunk - 1) / kChunk;
    plan.local_bytes = a->classes * int64_t(sizeof(Wide<T>));
    plan.scratch_bytes = 2 * chunks * int64_t(sizeof(double));
    // A label costs a few reads, or a log_sum over its classes.
    plan.add(loss_chunks<T>, chunks, kChunk * (a->is_log ? 5 : 10 + a->classes / 2));
    if (a->reduction != kNone) plan.add(join_chunks<T>, 1, chunks);
    return Status{};
  });
}

constexpr Kernel kKernels[] = {{"loss", Accepts::contiguous, loss}};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(loss, kKernels)
