// The step of GRU. Gates are update, reset, hidden.
#include "kernels/recurrent/functions.h"

namespace sdx::SDX_ISA {
namespace {

// Units [first, last) of a row, from the state in `hidden` to that in `next`. Resets after the
// recurrent product.
template <class Functions>
void gru_row(const Sweep& s, const float* x, const float* state, const float* hidden, float* next,
             int64_t first, int64_t last) {
  const int64_t n = s.layer->padded;
  const Functions by(s.functions);
  for (int64_t j = first; j < last; j += kLanes) {
    const f32v update = by.f(load(x + j) + load(state + j));
    const f32v reset = by.f(load(x + n + j) + load(state + n + j));
    const f32v again = reset * (load(state + 2 * n + j) + load(s.bias + j));
    const f32v made = by.g(load(x + 2 * n + j) + again);
    store(next + j, (1.0f - update) * made + update * load(hidden + j));
  }
}

template <class Functions>
void gru_part(const Sweep& s, const float* x, float* next, int64_t first, int64_t last) {
  multiply_units(s, first, last);
  gru_row<Functions>(s, x, s.gates, s.hidden, next, first, last);
}

template <class Functions>
void gru_rows(const Sweep& s, const float* const* x) {
  const Layer& a = *s.layer;
  multiply(s, s.hidden, a.padded, 0, a.gates);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (x[i] == nullptr) continue;
    float* hidden = s.hidden + i * a.padded;
    gru_row<Functions>(s, x[i], s.gates + i * a.width(), hidden, hidden, 0, a.padded);
  }
}

// Update gate in place, and the state that is left of the reset in place of the reset gate.
template <class Functions>
void reset_row(const Sweep& s, const float* x, float* state, const float* hidden) {
  const int64_t n = s.layer->padded;
  const Functions by(s.functions);
  for (int64_t j = 0; j < n; j += kLanes) {
    store(state + j, by.f(load(x + j) + load(state + j)));
    const f32v reset = by.f(load(x + n + j) + load(state + n + j));
    store(state + n + j, reset * load(hidden + j));
  }
}

template <class Functions>
void update_row(const Sweep& s, const float* x, const float* state, float* hidden) {
  const int64_t n = s.layer->padded;
  const Functions by(s.functions);
  for (int64_t j = 0; j < n; j += kLanes) {
    const f32v update = load(state + j), again = load(state + 2 * n + j) + load(s.bias + j);
    const f32v made = by.g(load(x + 2 * n + j) + again);
    store(hidden + j, (1.0f - update) * made + update * load(hidden + j));
  }
}

// Resets the state before the product: the hidden gate's product follows the other two.
template <class Functions>
void gru_rows_reset_first(const Sweep& s, const float* const* x) {
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
  if (layer.is_linked) return layer.is_standard ? gru_rows<Standard> : gru_rows<Named>;
  return layer.is_standard ? gru_rows_reset_first<Standard> : gru_rows_reset_first<Named>;
}

PartFn gru_part(const Layer& layer) {
  if (!layer.is_linked) return nullptr;  // the hidden gate's product needs all of the reset state
  return layer.is_standard ? gru_part<Standard> : gru_part<Named>;
}

}  // namespace sdx::SDX_ISA
