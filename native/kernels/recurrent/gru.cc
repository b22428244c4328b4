// One time step of GRU, with its gates (update z, reset r, hidden h) fused into a single pass after
// the recurrent product. The two variants differ in where the reset applies: after the product
// (linear_before_reset: one product of all gates), or before it (two dependent products).
#include "kernels/recurrent/activations.h"

namespace sdx::SDX_ISA {
namespace {

// linear_before_reset: hidden units [first, last) of a row, from the state in `hidden` to `next`.
template <class Functions>
void gru_row(const Sequences& s, const float* x, const float* state, const float* hidden,
             float* next, int64_t first, int64_t last) {
  const int64_t n = s.layer->padded;
  const Functions by(s.functions);
  for (int64_t j = first; j < last; j += kLanes) {
    const f32v update = by.f(load(x + j) + load(state + j));
    const f32v reset = by.f(load(x + n + j) + load(state + n + j));
    const f32v recurrent = reset * (load(state + 2 * n + j) + load(s.bias + j));
    const f32v candidate = by.g(load(x + 2 * n + j) + recurrent);
    store(next + j, (1.0f - update) * candidate + update * load(hidden + j));
  }
}

template <class Functions>
void gru_units(const Sequences& s, const float* x, float* next, int64_t first, int64_t last) {
  multiply_units(s, first, last);
  gru_row<Functions>(s, x, s.gates, s.hidden, next, first, last);
}

template <class Functions>
void gru_rows(const Sequences& s, const float* const* x) {
  const Layer& a = *s.layer;
  multiply(s, s.hidden, a.padded, 0, a.gates);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (x[i] == nullptr) continue;
    float* hidden = s.hidden + i * a.padded;
    gru_row<Functions>(s, x[i], s.gates + i * a.width(), hidden, hidden, 0, a.padded);
  }
}

// Reset before the product, first half: the update gate in place, and reset * state in place of the
// reset gate, from which the hidden gate's product is then computed.
template <class Functions>
void reset_row(const Sequences& s, const float* x, float* state, const float* hidden) {
  const int64_t n = s.layer->padded;
  const Functions by(s.functions);
  for (int64_t j = 0; j < n; j += kLanes) {
    store(state + j, by.f(load(x + j) + load(state + j)));
    const f32v reset = by.f(load(x + n + j) + load(state + n + j));
    store(state + n + j, reset * load(hidden + j));
  }
}

// Second half: the hidden gate and the new state.
template <class Functions>
void update_row(const Sequences& s, const float* x, const float* state, float* hidden) {
  const int64_t n = s.layer->padded;
  const Functions by(s.functions);
  for (int64_t j = 0; j < n; j += kLanes) {
    const f32v update = load(state + j), recurrent = load(state + 2 * n + j) + load(s.bias + j);
    const f32v candidate = by.g(load(x + 2 * n + j) + recurrent);
    store(hidden + j, (1.0f - update) * candidate + update * load(hidden + j));
  }
}

// The hidden gate's product depends on the reset state, so it follows that of the other two gates.
template <class Functions>
void gru_rows_reset_first(const Sequences& s, const float* const* x) {
  const Layer& a = *s.layer;
  multiply(s, s.hidden, a.padded, 0, 2);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (x[i] == nullptr) continue;
    float* state = s.gates + i * a.width();
    reset_row<Functions>(s, x[i], state, s.hidden + i * a.padded);
  }
  multiply(s, s.gates + a.padded, a.width(), 2, 3);
  for (int64_t i = 0; i < s.rows; ++i) {
    float* hidden = s.hidden + i * a.padded;
    if (x[i] != nullptr) update_row<Functions>(s, x[i], s.gates + i * a.width(), hidden);
  }
}

}  // namespace

StepFn gru_step(const Layer& layer) {
  if (layer.linear_before_reset)
    return layer.is_standard ? gru_rows<DefaultActivations> : gru_rows<NamedActivations>;
  return layer.is_standard ? gru_rows_reset_first<DefaultActivations>
                           : gru_rows_reset_first<NamedActivations>;
}

UnitsFn gru_units(const Layer& layer) {
  if (!layer.linear_before_reset)
    return nullptr;  // the hidden gate needs the reset state of all units
  return layer.is_standard ? gru_units<DefaultActivations> : gru_units<NamedActivations>;
}

}  // namespace sdx::SDX_ISA
