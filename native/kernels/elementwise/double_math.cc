// Loops on f64: transcendental functions that are vectorized (simd/double_math.h).
#include "simd/double_math.h"

#include "kernels/elementwise/instruction.h"

namespace sdx::SDX_ISA {
namespace {

using V = f64v;
using D = double;

SDX_INLINE V expm1_below(V x) { return dexpm1_nonpositive(x < 0.0 ? x : V{}); }

constexpr Loop kLoops[] = {
    {ChainOp::round,
     map1<D, [](V x) { return dabs(x) < 0x1p52 ? with_sign((dabs(x) + 0x1p52) - 0x1p52, x) : x; }>},
    {ChainOp::exp, map1<D, [](V x) { return dexp(x); }>},
    {ChainOp::log, map1<D, [](V x) { return dlog(x); }>},
    {ChainOp::sin, map1<D, [](V x) { return dsin(x); }>},
    {ChainOp::cos, map1<D, [](V x) { return dcos(x); }>},
    {ChainOp::tanh, map1<D, [](V x) { return dtanh(x); }>},
    {ChainOp::sigmoid, map1<D, [](V x) { return dsigmoid(x); }>},
    {ChainOp::gelu_tanh, map1<D,
                              [](V x) {
                                const V z = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x);
                                return x * dsigmoid(z);
                              }>},
    {ChainOp::elu, map1p<D, [](V x, D p, D) { return x < 0.0 ? p * expm1_below(x) : x; }>},
    {ChainOp::selu, map1p<D, [](V x, D p, D q) { return q * (x < 0.0 ? p * expm1_below(x) : x); }>},
    {ChainOp::celu, map1p<D, [](V x, D p, D) { return x < 0.0 ? p * expm1_below(V(x / p)) : x; }>},
    {ChainOp::swish, map1p<D, [](V x, D p, D) { return x * dsigmoid(V(x * p)); }>},
};

}  // namespace

LoopFn find_double_math_loop(ChainOp op) { return find_in(kLoops, op); }

}  // namespace sdx::SDX_ISA
