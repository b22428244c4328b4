// Softmax and LogSoftmax over the last axis.
#include "kernels/kernel.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

struct SoftmaxArgs {
  int64_t n;  // elements of a row
};

// Three passes over one row, which stays in L1 for every row length that models use.
void softmax_row(const float* x, float* y, int64_t n) {
  f32v top = splat(-kInf);
  vloop(n, [&](int64_t i, auto lanes) { top = vmax(top, load(x + i, lanes, -kInf)); });
  const float shift = reduce_max(top);

  f32v total{};
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v e = vexp(load(x + i, lanes, -kInf) - shift);
    store(y + i, e, lanes);
    total += e;
  });
  const float scale = 1 / reduce_sum(total);
  vloop(n, [&](int64_t i, auto lanes) { store(y + i, load(y + i, lanes) * scale, lanes); });
}

Status softmax_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const int64_t n = static_cast<const SoftmaxArgs*>(args)->n;
  const float* x = input<float>(data, 0);
  float* y = output<float>(data);
  for (int64_t row = begin; row < end; ++row) softmax_row(x + row * n, y + row * n, n);
  return {};
}

Status softmax_f32(const Call& call, Plan& plan) {
  auto* args = plan.make<SoftmaxArgs>();
  args->n = call.in[0].dim(-1);
  plan.args = args;
  plan.add(softmax_rows, call.in[0].count(0, call.in[0].rank - 1), args->n);
  return {};
}

constexpr Kernel kRows[] = {
    {"softmax_f32", Accepts::contiguous, softmax_f32},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(softmax, kRows)
