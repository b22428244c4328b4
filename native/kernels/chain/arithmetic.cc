// Steps on f32: arithmetic.
#include "kernels/chain/step.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

using V = f32v;

constexpr StepRow kSteps[] = {
    {ChainOp::add, map2<float, [](V a, V b) { return a + b; }>},
    {ChainOp::sub, map2<float, [](V a, V b) { return a - b; }>},
    {ChainOp::mul, map2<float, [](V a, V b) { return a * b; }>},
    {ChainOp::div, map2<float, [](V a, V b) { return a / b; }>},
    {ChainOp::max, map2<float, [](V a, V b) { return vmax(a, b); }>},
    {ChainOp::min, map2<float, [](V a, V b) { return vmin(a, b); }>},
    {ChainOp::prelu, map2<float, [](V a, V b) { return a < 0 ? a * b : a; }>},
    {ChainOp::relu, map1<float, [](V a) { return vmax(a, V{}); }>},
    {ChainOp::neg, map1<float, [](V a) { return -a; }>},
    {ChainOp::reciprocal, map1<float, [](V a) { return 1.0f / a; }>},
    {ChainOp::leaky_relu, map1p<float, [](V a, float p, float) { return a < 0 ? a * p : a; }>},
    {ChainOp::divide_by, map1p<float, [](V a, float p, float) { return a / p; }>},
};

}  // namespace

StepFn find_arithmetic_step(ChainOp op) { return find_in(kSteps, op); }

}  // namespace sdx::SDX_ISA
