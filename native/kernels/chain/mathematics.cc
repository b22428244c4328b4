// Steps on f32: mathematical functions.
#include "kernels/chain/step.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

using V = f32v;

constexpr StepRow kSteps[] = {
    {ChainOp::exp, map1<float, [](V x) { return vexp(x); }>},
};

}  // namespace

StepFn find_math_step(ChainOp op) { return find_in(kSteps, op); }

}  // namespace sdx::SDX_ISA
