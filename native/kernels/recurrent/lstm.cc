// The step of LSTM. Gates are input, output, forget, cell.
#include "kernels/recurrent/functions.h"

namespace sdx::SDX_ISA {
namespace {

template <class Functions>
void lstm_row(const Sweep& s, const float* x, const float* state, float* hidden, float* cell) {
  const int64_t n = s.layer->padded;
  const bool is_coupled = s.layer->is_linked;
  const float* p = s.peepholes;
  const Functions by(s.functions);
  for (int64_t j = 0; j < n; j += kLanes) {
    const auto gate = [&](int64_t g) { return load(x + g * n + j) + load(state + g * n + j); };
    const f32v before = load(cell + j);
    f32v in = gate(0), forget = gate(2), out = gate(1);
    if (p != nullptr) {
      in += load(p + j) * before;
      forget += load(p + 2 * n + j) * before;
    }
    in = by.f(in);
    forget = is_coupled ? 1.0f - in : by.f(forget);
    const f32v after = forget * before + in * by.g(gate(3));
    if (p != nullptr) out += load(p + n + j) * after;
    store(cell + j, after);
    store(hidden + j, by.f(out) * by.h(after));
  }
}

template <class Functions>
void lstm_rows(const Sweep& s, const float* const* x) {
  const Layer& a = *s.layer;
  multiply(s, s.hidden, a.padded, 0, a.gates);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (x[i] == nullptr) continue;
    float* hidden = s.hidden + i * a.padded;
    lstm_row<Functions>(s, x[i], s.gates + i * a.width(), hidden, s.cell + i * a.padded);
  }
}

}  // namespace

StepFn lstm_step(const Layer& layer) {
  return layer.is_standard ? lstm_rows<Standard> : lstm_rows<Named>;
}

}  // namespace sdx::SDX_ISA
