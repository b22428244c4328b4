// The description of a recurrent layer (RNN, GRU or LSTM) that all its phases share. Gates are
// padded to whole panels of columns, so that every loop over a state runs over whole vectors; only
// inputs and outputs have their own length.
#pragma once

#include "kernels/kernel.h"
#include "kernels/matmul/tile.h"

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
  float clip = 0;  // the argument is clamped to [-clip, clip]; 0: it is not
};

constexpr int kMaxFunctions = 3;
constexpr int kMaxOutputs = 3;  // Y, Y_h, Y_c; training has one more, see `saved`
constexpr int64_t kSaved = 5;   // of an LSTM step: gates i, o, f, c after activations, and the cell
constexpr int64_t kMaxRows = 12;  // sequences of one item: the rows of a float32 register tile

enum RecurrentOperand : int { kX, kW, kR, kB, kLens, kInitialH, kInitialC, kPeepholes };

// Strides of one matrix per direction.
struct Stack {
  int64_t direction = 0, row = 0;
};

struct Layer {
  int64_t gates, directions, length, batch, inputs, hidden, padded;
  bool is_reverse[2];
  bool is_batch_first;
  bool linear_before_reset;   // of GRU
  bool couples_input_forget;  // of LSTM: input_forget
  bool is_w_packed, is_r_packed, is_standard;
  bool has_bias, has_lens, has_initial_h, has_initial_c, has_peepholes;
  bool has_out[kMaxOutputs];
  int64_t x_time, x_batch;           // strides of the input
  Stack w, r, initial_h, initial_c;  // of states, `row` is a sequence
  int64_t bias_stride, peepholes_stride;
  Function functions[2][kMaxFunctions];
  Split split;     // the split of the input's matrix product into items
  int64_t blocks;  // of the batch
  // Offsets in the scratch memory, in floats.
  int64_t bias_at, peepholes_at, w_at, r_at, gates_at, states_at;
  bool is_training;     // LSTM: output 3 is `saved`, [length, batch, kSaved * hidden]
  int64_t unit_blocks;  // blocks of hidden units that threads share in each time step; 0: none

  SDX_INLINE int64_t width() const { return gates * padded; }
  SDX_INLINE int64_t weight_floats(int64_t k) const { return gates * packed_floats(k, hidden); }
};

// GRU keeps the recurrent bias of its hidden gate separate, since the reset gate may multiply it:
// `padded` more floats per direction.
SDX_INLINE int64_t bias_floats(const Layer& a) { return a.width() + a.padded; }

SDX_INLINE float* scratch_at(const Data& data, int64_t at) {
  return reinterpret_cast<float*>(data.scratch) + at;
}

SDX_INLINE const float* packed_weights(const Layer& a, const Data& data, RecurrentOperand operand,
                                       int64_t direction) {
  const bool is_w = operand == kW;
  const float* first = (is_w ? a.is_w_packed : a.is_r_packed)
                           ? input<float>(data, operand)
                           : scratch_at(data, is_w ? a.w_at : a.r_at);
  return first + direction * a.weight_floats(is_w ? a.inputs : a.hidden);
}

// The state of one item: `rows` sequences in one direction.
struct Sequences {
  const Layer* layer;
  const Function* functions;
  const float* weights;    // recurrent weights, packed
  const float* peepholes;  // input, output, forget; null without
  const float* bias;       // recurrent bias of GRU's hidden gate
  int64_t rows;
  float* gates;         // [rows, width]: state x recurrent weights
  float* hidden;        // [rows, padded]
  float* cell;          // [rows, padded]
  float* blocked;       // states in the block layout of the gemm tile
  float* const* saved;  // training: for each row, what the backward pass reads of this step
};

// One time step of all rows: `x[i]` is the input's contribution to the gates of row i, null after
// the end of its sequence.
using StepFn = void (*)(const Sequences& s, const float* const* x);

// One time step of hidden units [first, last) of a single row, from the state in `s.hidden` to
// `next`.
using UnitsFn = void (*)(const Sequences& s, const float* x, float* next, int64_t first,
                         int64_t last);

StepFn rnn_step(const Layer& layer);
StepFn gru_step(const Layer& layer);
StepFn lstm_step(const Layer& layer);

// Null where a step cannot be split by hidden units.
UnitsFn rnn_units(const Layer& layer);
UnitsFn gru_units(const Layer& layer);
UnitsFn lstm_units(const Layer& layer);

Status quantized_lstm(const Call& call, Plan& plan);

// Backpropagation through the time steps of a layer in one direction (backward.cc).
Status lstm_backward(const Call& call, Plan& plan);
Status gru_backward(const Call& call, Plan& plan);
Status rnn_backward(const Call& call, Plan& plan);

// At most kMaxRows rows of `from`, `stride` apart, times packed weights of depth k. Whole panels
// are stored; `blocked` is local memory of rows * passes_of(k) * kStride floats.
void multiply_rows(int64_t rows, const float* from, int64_t stride, int64_t k, const Columns& b,
                   const Target& to, float* blocked);

// Gates [first, last) of all rows: rows of `from`, `stride` apart, times the recurrent weights.
void multiply(const Sequences& s, const float* from, int64_t stride, int64_t first, int64_t last);

// All gates of hidden units [first, last), which are whole panels, of a single row.
void multiply_units(const Sequences& s, int64_t first, int64_t last);

}  // namespace sdx::SDX_ISA
