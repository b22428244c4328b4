// Bernoulli and Multinomial: comparisons of uniform numbers with probabilities.
#include "kernels/elements.h"
#include "kernels/random/kernels.h"
#include "kernels/random/numbers.h"
#include "simd/double_math.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBatches = 32;  // of an item

struct BernoulliArgs {
  StreamSource source;
  int64_t n = 0;
  uint64_t one = 0;  // the bits of an output
};

// Items: kBatches batches.
template <class T, class Out>
Status draw_successes(const void* args, const Data& data, int64_t begin, int64_t end) {
  using C = Wide<T>;
  constexpr int64_t kItem = kBatches * kBatch<C>;
  const auto& a = *static_cast<const BernoulliArgs*>(args);
  const RandomStream stream = a.source.stream(data);
  const Out one = Out(a.one);
  const int64_t to = end * kItem < a.n ? end * kItem : a.n;
  for (int64_t at = begin * kItem; at < to; at += kBatch<C>) {
    C drawn[kBatch<C>], buffer[kBatch<C>];
    uniform_batch(at / kBatch<C>, stream, drawn);
    const int64_t n = to - at < kBatch<C> ? to - at : kBatch<C>;
    const C* shares = read_elements(input<T>(data, 1) + at, 1, n, buffer);
    Out* y = output<Out>(data) + at;
    for (int64_t i = 0; i < n; ++i) y[i] = drawn[i] < shares[i] ? one : Out(0);
  }
  return {};
}

struct MultinomialArgs {
  StreamSource source;
  int64_t classes = 0, samples = 0;
};

// The running sums of e^(x - max x) in place; the total is not finite if x has no largest number.
double cumulate(double* x, int64_t n) {
  double top = -__builtin_inf(), total = 0;
  for (int64_t j = 0; j < n; ++j) top = x[j] > top ? x[j] : top;
  vloop<double>(
      n, [&](int64_t j, auto lanes) { store(x + j, dexp(load(x + j, lanes) - top), lanes); });
  for (int64_t j = 0; j < n; ++j) x[j] = total += x[j];
  return total;
}

// The first class whose running sum is above a bound, by binary search.
int64_t class_above(const double* sums, int64_t n, double bound) {
  int64_t low = 0, high = n - 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (sums[middle] > bound)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// Items: rows.
template <class T, class Out>
Status draw_classes(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const MultinomialArgs*>(args);
  const RandomStream stream = a.source.stream(data);
  auto* sums = reinterpret_cast<double*>(data.local);
  double drawn[kBatch<double>];
  int64_t batch = -1;  // that is in `drawn`
  for (int64_t row = begin; row < end; ++row) {
    const T* x = input<T>(data, 1) + row * a.classes;
    for (int64_t j = 0; j < a.classes; ++j) sums[j] = number<double>(x[j]);
    const double total = cumulate(sums, a.classes);
    if (!__builtin_isfinite(total))
      return Status::fail("the log probabilities of a row have no largest number");
    for (int64_t s = row * a.samples; s < (row + 1) * a.samples; ++s) {
      if (s / kBatch<double> != batch) uniform_batch(batch = s / kBatch<double>, stream, drawn);
      const double bound = drawn[s % kBatch<double>] * total;
      output<Out>(data)[s] = Out(class_above(sums, a.classes, bound));
    }
  }
  return {};
}

}  // namespace

Status bernoulli(const Call& call, Plan& plan) {
  auto* args = plan.make<BernoulliArgs>();
  *args = {StreamSource(call), call.out[0].count(), uint64_t(call.ints[3])};
  plan.args = args;
  add_stream(args->source, plan);
  const int size = size_of(call.out[0].dtype);
  return visit(call.in[1].dtype, Floats{}, [&]<class T>() -> Status {
    constexpr int64_t kItem = kBatches * kBatch<Wide<T>>;
    const PhaseFn run = size == 1   ? draw_successes<T, uint8_t>
                        : size == 2 ? draw_successes<T, uint16_t>
                        : size == 4 ? draw_successes<T, uint32_t>
                                    : draw_successes<T, uint64_t>;
    plan.add(run, (args->n + kItem - 1) / kItem, kItem);
    return {};
  });
}

Status multinomial(const Call& call, Plan& plan) {
  auto* args = plan.make<MultinomialArgs>();
  *args = {StreamSource(call), call.in[1].dims[1], call.out[0].dims[1]};
  plan.args = args;
  add_stream(args->source, plan);
  plan.local_bytes = args->classes * int64_t(sizeof(double));
  return visit(call.in[1].dtype, Floats{}, [&]<class T>() -> Status {
    const bool is_wide = call.out[0].dtype == DType::i64;
    const PhaseFn run = is_wide ? draw_classes<T, int64_t> : draw_classes<T, int32_t>;
    plan.add(run, call.in[1].dims[0], 3 * args->classes + 10 * args->samples);
    return {};
  });
}

}  // namespace sdx::SDX_ISA
