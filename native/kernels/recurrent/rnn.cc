// One time step of the simple RNN: h' = f(W x + R h + b).
#include "kernels/recurrent/activations.h"

namespace sdx::SDX_ISA {
namespace {

template <class Functions>
void rnn_rows(const Sequences& s, const float* const* x) {
  const Layer& a = *s.layer;
  const Functions by(s.functions);
  multiply(s, s.hidden, a.padded, 0, 1);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (x[i] == nullptr) continue;
    const float* state = s.gates + i * a.width();
    float* hidden = s.hidden + i * a.padded;
    for (int64_t j = 0; j < a.padded; j += kLanes) {
      const f32v sum = load(x[i] + j) + load(state + j);
      // The default of RNN is tanh, which is `g` of the defaults; a named activation is `f`.
      if constexpr (std::is_same_v<Functions, DefaultActivations>)
        store(hidden + j, by.g(sum));
      else
        store(hidden + j, by.f(sum));
    }
  }
}

}  // namespace

StepFn rnn_step(const Layer& layer) {
  return layer.is_standard ? rnn_rows<DefaultActivations> : rnn_rows<NamedActivations>;
}

UnitsFn rnn_units(const Layer&) { return nullptr; }

}  // namespace sdx::SDX_ISA
