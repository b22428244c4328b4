// RandomUniform and RandomNormal: batches of 64 words of the node's stream.
#include "kernels/random/numbers.h"

#include "kernels/elements.h"
#include "kernels/random/kernels.h"
#include "simd/double_math.h"
#include "simd/exponential.h"
#include "simd/math.h"
#include "simd/trigonometry.h"

namespace sdx::SDX_ISA {

Status draw_stream(const void*, const Data& data, int64_t, int64_t) {
  *reinterpret_cast<RandomStream*>(data.scratch) = next_random_stream();
  return {};
}

void add_stream(const StreamSource& source, Plan& plan) {
  plan.scratch_bytes = kStreamBytes;
  if (source.is_shared) plan.add(draw_stream, 1, 1);
}

namespace {

constexpr int64_t kBatches = 32;  // of an item
constexpr double kTwoPi = 6.28318530717958647692;

struct NumbersArgs {
  StreamSource source;
  int64_t n = 0;
  double scale = 1, shift = 0;
};

// Normal numbers by the transform of Box and Muller, of a word or two words for each.
SDX_INLINE void normal_batch(int64_t batch, RandomStream of, float* out) {
  uint32_t words[4][kCounters];
  draw_words(uint64_t(batch) * kCounters, of, words);
  for (int w = 0; w < 4; w += 2)
    for (int i = 0; i < kCounters; i += kLanes) {
      // In (0, 1]: the logarithm is finite.
      const f32v u = __builtin_convertvector(load(words[w] + i), f32v) * 0x1p-32f + 0x1p-33f;
      const i32v fractions = (i32v)(load(words[w + 1] + i) >> 8);
      const f32v angle = __builtin_convertvector(fractions, f32v) * float(kTwoPi * 0x1p-24);
      const f32v radius = vsqrt(-2.0f * vlog(u));
      store(out + w * kCounters + i, radius * sine_shifted(angle, 1));
      store(out + (w + 1) * kCounters + i, radius * sine_shifted(angle, 0));
    }
}
SDX_INLINE void normal_batch(int64_t batch, RandomStream of, double* out) {
  uint32_t words[4][kCounters];
  draw_words(uint64_t(batch) * kCounters, of, words);
  double u[kCounters], angle[kCounters];
  for (int i = 0; i < kCounters; ++i) {
    u[i] = (double(joined_bits(words[0][i], words[1][i])) + 0.5) * 0x1p-53;
    angle[i] = double(joined_bits(words[2][i], words[3][i])) * (kTwoPi * 0x1p-53);
  }
  for (int i = 0; i < kCounters; i += kLanesOf<double>) {
    f64v radius = -2.0 * dlog(load(u + i));
    for (int k = 0; k < kLanesOf<double>; ++k) radius[k] = __builtin_sqrt(radius[k]);
    store(out + i, radius * dcos(load(angle + i)));
    store(out + kCounters + i, radius * dsin(load(angle + i)));
  }
}

// Items: kBatches batches.
template <class T, bool kIsNormal>
Status draw_numbers(const void* args, const Data& data, int64_t begin, int64_t end) {
  using C = Wide<T>;
  constexpr int64_t kItem = kBatches * kBatch<C>;
  const auto& a = *static_cast<const NumbersArgs*>(args);
  const RandomStream stream = a.source.stream(data);
  const C scale = C(a.scale), shift = C(a.shift);
  const int64_t to = end * kItem < a.n ? end * kItem : a.n;
  for (int64_t at = begin * kItem; at < to; at += kBatch<C>) {
    C drawn[kBatch<C>];
    if constexpr (kIsNormal)
      normal_batch(at / kBatch<C>, stream, drawn);
    else
      uniform_batch(at / kBatch<C>, stream, drawn);
    for (C& number : drawn) number = number * scale + shift;
    const int64_t n = to - at < kBatch<C> ? to - at : kBatch<C>;
    T* y = output<T>(data) + at;
    if constexpr (std::is_same_v<T, C>)
      memcpy(y, drawn, size_t(n) * sizeof(T));
    else
      write_elements(y, drawn, n);
  }
  return {};
}

template <bool kIsNormal>
Status prepare_numbers(const Call& call, Plan& plan) {
  auto* args = plan.make<NumbersArgs>();
  *args = {StreamSource(call), call.out[0].count(), call.floats[0], call.floats[1]};
  plan.args = args;
  add_stream(args->source, plan);
  return visit(call.out[0].dtype, Floats{}, [&]<class T>() -> Status {
    constexpr int64_t kItem = kBatches * kBatch<Wide<T>>;
    plan.add(draw_numbers<T, kIsNormal>, (args->n + kItem - 1) / kItem, kItem);
    return {};
  });
}

}  // namespace

Status random_uniform(const Call& call, Plan& plan) { return prepare_numbers<false>(call, plan); }
Status random_normal(const Call& call, Plan& plan) { return prepare_numbers<true>(call, plan); }

}  // namespace sdx::SDX_ISA
