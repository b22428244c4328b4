// Steps on f32: activation functions.
#include "kernels/chain/step.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

using V = f32v;

constexpr StepRow kSteps[] = {
    {ChainOp::sigmoid, map1<float, [](V x) { return 1.0f / (1.0f + vexp(-x)); }>},
    {ChainOp::swish, map1p<float, [](V x, float p, float) { return x / (1.0f + vexp(x * -p)); }>},
};

}  // namespace

StepFn find_activation_step(ChainOp op) { return find_in(kSteps, op); }

}  // namespace sdx::SDX_ISA
