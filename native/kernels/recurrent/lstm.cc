// One time step of LSTM. Gates (input i, output o, forget f, cell c, in ONNX's order) are fused:
// one recurrent product computes all four, and one pass over the units applies peepholes,
// activations and the state update without storing gates.
#include "kernels/recurrent/activations.h"

namespace sdx::SDX_ISA {
namespace {

// Hidden units [first, last) of a row. Peepholes: input and forget gates see the cell before the
// update, the output gate after it.
// For the backward pass: activated gates and the cell, of the hidden units from j on.
SDX_INLINE void save(const Sequences& s, float* to, int64_t j, const f32v (&values)[kSaved]) {
  const int64_t n = s.layer->hidden, left = n - j;
  for (int64_t g = 0; g < kSaved; ++g) {
    if (left >= kLanes)
      store(to + g * n + j, values[g]);
    else if (left > 0)
      store(to + g * n + j, values[g], Part{int(left)});
  }
}

template <class Functions, bool kIsTraining = false>
void lstm_row(const Sequences& s, const float* x, const float* state, float* next, float* cell,
              int64_t first, int64_t last, float* saved = nullptr) {
  const int64_t n = s.layer->padded;
  const bool is_coupled = s.layer->couples_input_forget;
  const float* p = s.peepholes;
  const Functions by(s.functions);
  for (int64_t j = first; j < last; j += kLanes) {
    const auto gate = [&](int64_t g) { return load(x + g * n + j) + load(state + g * n + j); };
    const f32v before = load(cell + j);
    f32v in = gate(0), forget = gate(2), out = gate(1);
    if (p != nullptr) {
      in += load(p + j) * before;
      forget += load(p + 2 * n + j) * before;
    }
    in = by.f(in);
    forget = is_coupled ? 1.0f - in : by.f(forget);
    const f32v cell_gate = by.g(gate(3));
    const f32v after = forget * before + in * cell_gate;
    if (p != nullptr) out += load(p + n + j) * after;
    store(cell + j, after);
    out = by.f(out);
    store(next + j, out * by.h(after));
    if constexpr (kIsTraining) save(s, saved, j, {in, out, forget, cell_gate, after});
  }
}

template <class Functions>
void lstm_units(const Sequences& s, const float* x, float* next, int64_t first, int64_t last) {
  multiply_units(s, first, last);
  lstm_row<Functions>(s, x, s.gates, next, s.cell, first, last);
}

template <class Functions, bool kIsTraining = false>
void lstm_rows(const Sequences& s, const float* const* x) {
  const Layer& a = *s.layer;
  multiply(s, s.hidden, a.padded, 0, a.gates);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (x[i] == nullptr) continue;
    float* hidden = s.hidden + i * a.padded;
    float* cell = s.cell + i * a.padded;
    lstm_row<Functions, kIsTraining>(s, x[i], s.gates + i * a.width(), hidden, cell, 0, a.padded,
                                     kIsTraining ? s.saved[i] : nullptr);
  }
}

}  // namespace

StepFn lstm_step(const Layer& layer) {
  if (layer.is_training) return lstm_rows<DefaultActivations, true>;
  return layer.is_standard ? lstm_rows<DefaultActivations> : lstm_rows<NamedActivations>;
}

UnitsFn lstm_units(const Layer& layer) {
  if (layer.is_training) return nullptr;
  return layer.is_standard ? lstm_units<DefaultActivations> : lstm_units<NamedActivations>;
}

}  // namespace sdx::SDX_ISA
