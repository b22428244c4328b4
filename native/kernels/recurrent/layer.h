// A recurrent layer as binding knows it. Gates are padded to whole panels of columns, so that
// every loop over a state runs over whole vectors; only what goes in and out has its own length.
#pragma once

#include "kernels/gemm/tile.h"
#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

enum class Activation : int64_t {
  relu,
  tanh,
  sigmoid,
  affine,
  leaky_relu,
  thresholded_relu,
  scaled_tanh,
  hard_sigmoid,
  elu,
  softsign,
  softplus,
};

struct Function {
  Activation kind = Activation::tanh;
  float alpha = 0, beta = 0;
  float clip = 0;  // what goes in is held within [-clip, clip]; 0: it is not
};

constexpr int kMostFunctions = 3;
constexpr int kMostOutputs = 3;    // of all steps, and the last states
constexpr int64_t kMostRows = 12;  // sequences that one item runs

enum RecurrentSlot { kX, kW, kR, kB, kLens, kInitialH, kInitialC, kPeepholes };

// Strides of a matrix of rows for each direction.
struct Stack {
  int64_t direction = 0, row = 0;
};

struct Layer {
  int64_t gates, directions, length, batch, inputs, hidden, padded;
  bool is_reverse[2];
  bool is_batch_first, is_linked;  // GRU: resets after the product; LSTM: input gate forgets
  bool is_w_packed, is_r_packed, is_standard;
  bool has_bias, has_lens, has_initial_h, has_initial_c, has_peepholes;
  bool has_out[kMostOutputs];
  int64_t x_time, x_batch;           // strides of the input
  Stack w, r, initial_h, initial_c;  // of states, `row` is a sequence
  int64_t bias_step, peepholes_step;
  Function functions[2][kMostFunctions];
  Split split;     // of the product of the input
  int64_t blocks;  // of the batch
  // Where things lie in the scratch memory, in floats.
  int64_t bias_at, peepholes_at, w_at, r_at, gates_at, states_at;
  int64_t unit_blocks;  // of a state whose units threads share, step by step; 0: none are shared

  SDX_INLINE int64_t width() const { return gates * padded; }
  SDX_INLINE int64_t weight_floats(int64_t k) const { return gates * packed_floats(k, hidden); }
};

// GRU keeps the state's bias of the hidden gate apart: one more run of `padded` in each direction.
SDX_INLINE int64_t bias_floats(const Layer& a) { return a.width() + a.padded; }

SDX_INLINE float* scratch_at(const Data& data, int64_t at) {
  return reinterpret_cast<float*>(data.scratch) + at;
}

SDX_INLINE const float* packed_weights(const Layer& a, const Data& data, RecurrentSlot slot,
                                       int64_t direction) {
  const bool is_w = slot == kW;
  const float* first = (is_w ? a.is_w_packed : a.is_r_packed)
                           ? input<float>(data, slot)
                           : scratch_at(data, is_w ? a.w_at : a.r_at);
  return first + direction * a.weight_floats(is_w ? a.inputs : a.hidden);
}

// What one item works on: `rows` sequences in one direction.
struct Sweep {
  const Layer* layer;
  const Function* functions;
  const float* weights;    // of the state, packed
  const float* peepholes;  // input, output, forget; null without
  const float* bias;       // of the hidden gate, for GRU
  int64_t rows;
  float* gates;   // [rows, width]: products of the state
  float* hidden;  // [rows, padded]
  float* cell;    // [rows, padded]
  float* spread;  // states as products of many rows read them
};

// A step of all rows: `x[i]` is what the input adds to the gates of row i, null where it is over.
using StepFn = void (*)(const Sweep& s, const float* const* x);

// A step of some units of the one row that there is, from the state in `s.hidden` to `next`.
using PartFn = void (*)(const Sweep& s, const float* x, float* next, int64_t first, int64_t last);

StepFn rnn_step(const Layer& layer);
StepFn gru_step(const Layer& layer);
StepFn lstm_step(const Layer& layer);

// Null where a step cannot be done in parts.
PartFn rnn_part(const Layer& layer);
PartFn gru_part(const Layer& layer);
PartFn lstm_part(const Layer& layer);

Status quantized_lstm(const Call& call, Plan& plan);

// Gates [first, last) of all rows: products of `from`, which lie `stride` apart, with weights.
void multiply(const Sweep& s, const float* from, int64_t stride, int64_t first, int64_t last);

// All gates of units [first, last), which are whole panels, of the one row that there is.
void multiply_units(const Sweep& s, int64_t first, int64_t last);

}  // namespace sdx::SDX_ISA
