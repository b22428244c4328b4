// Peak rates of a core: FMA, dot-product and memory throughput without other bottlenecks. The
// profiler reports kernels as a share of these limits (a roofline).
#include "kernels/probe/kernels.h"
#include "simd/dot.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {
namespace {

// Independent dependency chains: an FMA has 4 cycles of latency and 2 ports, so 8 or more saturate
// it, and 12 leave 4 of the 16 registers of AVX2 for operands.
constexpr int kChains = 12;
constexpr int64_t kSteps = 4096;       // steps of every chain in a round: some microseconds
constexpr int64_t kRoundWork = 10000;  // ns

struct Fma {
  template <class V>
  static SDX_INLINE V step(V sum, V a, V b) {
    return sum * a + b;
  }
  static constexpr int kProducts = 1;  // multiplications per lane
};

struct Dot {
  static SDX_INLINE i32v step(i32v sum, i32v a, i32v b) { return dot4(sum, a, b); }
  static constexpr int kProducts = 4;
};

struct Bf16Pairs {
  static SDX_INLINE f32v step(f32v sum, f32v a, f32v b) { return dot2_bf16(sum, (u32v)a, (u32v)b); }
  static constexpr int kProducts = 2;
};

// Item: a round. The operands come from memory, so that the compiler cannot fold constants.
template <class T, class Op>
Status rounds(const void*, const Data& data, int64_t begin, int64_t end) {
  using V = Vec<T>;
  const T* x = input<T>(data, 0);
  const V a = V{} + x[0], b = V{} + x[1];
  for (int64_t i = begin; i < end; ++i) {
    V sum[kChains];  // different start values: equal chains would be merged
    for (int j = 0; j < kChains; ++j) sum[j] = b * T(j + 1);
    for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
      for (V& s : sum) s = Op::step(s, a, b);
    }
    V total{};
    for (const V s : sum) total += s;
    float* to = output<float>(data) + 2 * i;
    to[0] = float(kSteps * kChains * kLanesOf<T> * Op::kProducts);
    to[1] = float(reduce_sum(total));
  }
  return {};
}

struct StreamArgs {
  int64_t n_read, n_written, n_items;
};

// Item: a share of the bytes that are read, then of those that are written. Four accumulators keep
// loads, not additions, the bottleneck.
Status stream(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const StreamArgs*>(args);
  const auto* x = input<int32_t>(data, 0);
  auto* y = output<int32_t>(data, 0);
  const i32v value = i32v{} + 1;
  for (int64_t i = begin; i < end; ++i) {
    i32v sum[4] = {};
    const int64_t last = a.n_read * (i + 1) / a.n_items;
    int64_t at = a.n_read * i / a.n_items;
    for (; at + 4 * kLanes <= last; at += 4 * kLanes)
      for (int j = 0; j < 4; ++j) sum[j] += load(x + at + j * kLanes, Full{});
    output<int32_t>(data, 1)[i] = reduce_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    const int64_t stop = a.n_written * (i + 1) / a.n_items;
    for (at = a.n_written * i / a.n_items; at + kLanes <= stop; at += kLanes)
      store(y + at, value, Full{});
  }
  return {};
}

}  // namespace

Status fma_limit(const Call& call, Plan& plan) {
  plan.add(rounds<float, Fma>, call.out[0].dims[0], kRoundWork);
  return {};
}

Status fma_limit_64(const Call& call, Plan& plan) {
  plan.add(rounds<double, Fma>, call.out[0].dims[0], kRoundWork);
  return {};
}

Status dot_limit(const Call& call, Plan& plan) {
  plan.add(rounds<int32_t, Dot>, call.out[0].dims[0], kRoundWork);
  return {};
}

Status bf16_limit(const Call& call, Plan& plan) {
  plan.add(rounds<float, Bf16Pairs>, call.out[0].dims[0], kRoundWork);
  return {};
}

Status stream_limit(const Call& call, Plan& plan) {
  auto* args = plan.make<StreamArgs>();
  args->n_read = call.in[0].count() / 4;
  args->n_written = call.out[0].count() / 4;
  args->n_items = call.out[1].count();
  plan.args = args;
  const int64_t words = args->n_read + args->n_written;
  const int64_t work = words / 4 / (args->n_items < 1 ? 1 : args->n_items);
  plan.add(stream, args->n_items, work, call.ints[0]);
  return {};
}

}  // namespace sdx::SDX_ISA
