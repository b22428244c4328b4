// Loops on f32: transcendental and activation functions, vectorized by simd/math.h.
#include "kernels/elementwise/instruction.h"
#include "simd/hyperbolic.h"

namespace sdx::SDX_ISA {
namespace {

using V = f32v;

// expm1 in place of exp - 1, which cancels near 0.
SDX_INLINE V elu(V x, float alpha) { return x < 0.0f ? alpha * vexpm1_nonpositive(x) : x; }

SDX_INLINE V selu(V x, float alpha, float gamma) {
  return gamma * (x > 0.0f ? x : alpha * vexpm1_nonpositive(x));
}

// alpha * (exp(x / alpha) - 1) for x <= 0, else x.
SDX_INLINE V celu(V x, float alpha) {
  const V below = x / alpha;
  return x > 0.0f ? x : alpha * vexpm1_nonpositive(below);
}

constexpr Loop kLoops[] = {
    {ChainOp::ceil, map1<float, [](V x) { return vceil(x); }>},
    {ChainOp::floor, map1<float, [](V x) { return vfloor(x); }>},
    {ChainOp::round, map1<float, [](V x) { return vround(x); }>},
    {ChainOp::sign, map1<float, [](V x) { return vsign(x); }>},
    {ChainOp::sqrt, map1<float, [](V x) { return vsqrt(x); }>},
    {ChainOp::exp, map1<float, [](V x) { return vexp(x); }>},
    {ChainOp::log, map1<float, [](V x) { return vlog(x); }>},
    {ChainOp::sin, map1<float, [](V x) { return vsin(x); }>},
    {ChainOp::cos, map1<float, [](V x) { return vcos(x); }>},
    {ChainOp::tan, map1<float, [](V x) { return vtan(x); }>},
    {ChainOp::asin, map1<float, [](V x) { return vasin(x); }>},
    {ChainOp::acos, map1<float, [](V x) { return vacos(x); }>},
    {ChainOp::atan, map1<float, [](V x) { return vatan(x); }>},
    {ChainOp::tanh, map1<float, [](V x) { return vtanh(x); }>},
    {ChainOp::sinh, map1<float, [](V x) { return vsinh(x); }>},
    {ChainOp::cosh, map1<float, [](V x) { return vcosh(x); }>},
    {ChainOp::asinh, map1<float, [](V x) { return vasinh(x); }>},
    {ChainOp::acosh, map1<float, [](V x) { return vacosh(x); }>},
    {ChainOp::atanh, map1<float, [](V x) { return vatanh(x); }>},
    {ChainOp::erf, map1<float, [](V x) { return verf(x); }>},
    {ChainOp::sigmoid, map1<float, [](V x) { return vsigmoid(x); }>},
    {ChainOp::softplus, map1<float, [](V x) { return vsoftplus(x); }>},
    {ChainOp::mish, map1<float, [](V x) { return vmish(x); }>},
    {ChainOp::gelu, map1<float, [](V x) { return vgelu(x); }>},
    {ChainOp::gelu_tanh, map1<float, [](V x) { return vgelu_tanh(x); }>},
    {ChainOp::elu, map1p<float, [](V x, float p, float) { return elu(x, p); }>},
    {ChainOp::selu, map1p<float, [](V x, float p, float q) { return selu(x, p, q); }>},
    {ChainOp::celu, map1p<float, [](V x, float p, float) { return celu(x, p); }>},
    {ChainOp::swish, map1p<float, [](V x, float p, float) { return x * vsigmoid(x * p); }>},
};

}  // namespace

LoopFn find_math_loop(ChainOp op) { return find_in(kLoops, op); }

}  // namespace sdx::SDX_ISA
