// How many multiplications a core issues when nothing else holds it up: the limit of every product.
#include "kernels/gemm/rows.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kChains = 12;  // enough to hide the latency, few enough for 16 registers

// Item: one round of kChains multiplications and additions. The output gets how many lanes a
// vector has, and a sum that depends on all of them.
Status rounds(const void*, const Data& data, int64_t begin, int64_t end) {
  const float* x = input<float>(data, 0);
  const f32v factor = splat(x[0]), term = splat(x[1]);
  f32v sum[kChains];
  for (f32v& s : sum) s = term;
  for (int64_t i = begin; i < end; ++i) {
#pragma GCC unroll 12
    for (f32v& s : sum) s = s * factor + term;
  }
  f32v total{};
  for (const f32v s : sum) total += s;
  output<float>(data)[0] = kChains * kLanes;
  output<float>(data)[1] = reduce_sum(total);
  return {};
}

}  // namespace

Status fma_limit(const Call& call, Plan& plan) {
  plan.add(rounds, call.ints[0], 1);
  return {};
}

}  // namespace sdx::SDX_ISA
