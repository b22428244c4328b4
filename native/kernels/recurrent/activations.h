// Activations of recurrent layers: the default ones inlined, all others by a switch.
#pragma once

#include "kernels/recurrent/layer.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {

// The defaults of ONNX: f = sigmoid, g = h = tanh, no clipping.
struct DefaultActivations {
  SDX_INLINE explicit DefaultActivations(const Function*) {}
  SDX_INLINE f32v f(f32v x) const { return vsigmoid(x); }
  SDX_INLINE f32v g(f32v x) const { return vtanh(x); }
  SDX_INLINE f32v h(f32v x) const { return vtanh(x); }
};

namespace {

// Out of line: all these inlined three times would spill the registers of the common path.
[[gnu::noinline]] f32v activate(const Function& f, f32v x) {
  if (f.clip > 0) x = vmin(vmax(x, splat(-f.clip)), splat(f.clip));
  const f32v zero{}, one = splat(1.0f), line = x * f.alpha + f.beta;
  switch (f.kind) {
    case Activation::relu: return vmax(x, zero);
    case Activation::tanh: return vtanh(x);
    case Activation::sigmoid: return vsigmoid(x);
    case Activation::affine: return line;
    case Activation::leaky_relu: return x >= 0.0f ? x : x * f.alpha;
    case Activation::thresholded_relu: return x >= f.alpha ? x : zero;
    case Activation::scaled_tanh: return f.alpha * vtanh(x * f.beta);
    case Activation::hard_sigmoid: return vmin(vmax(line, zero), one);
    case Activation::elu: return x >= 0.0f ? x : f.alpha * vexpm1_nonpositive(x);
    case Activation::softsign: return x / (1.0f + (x < 0.0f ? -x : x));
    case Activation::softplus: return vsoftplus(x);
  }
  return x;
}

}  // namespace

// The activations that the node names. RNN has one, GRU two.
struct NamedActivations {
  const Function* functions;

  SDX_INLINE explicit NamedActivations(const Function* f) : functions(f) {}
  SDX_INLINE f32v f(f32v x) const { return activate(functions[0], x); }
  SDX_INLINE f32v g(f32v x) const { return activate(functions[1], x); }
  SDX_INLINE f32v h(f32v x) const { return activate(functions[2], x); }
};

}  // namespace sdx::SDX_ISA
