// RNN, GRU and LSTM. The input's contribution to the gates of all time steps is one matrix product,
// x W^T + b, since it does not depend on the state; then the recurrence runs step by step. Items
// are either blocks of sequences, each from its first step to its last, or, for a single sequence
// with a large state, blocks of hidden units with a barrier after every step.
#include "kernels/matmul/pack.h"
#include "kernels/recurrent/layer.h"

namespace sdx::SDX_ISA {
namespace {

SDX_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Packs panel `item` of the weights [directions, gates * hidden, k]: every gate starts a new panel.
SDX_INLINE void pack_gate(const float* from, const Stack& stack, int64_t gates, int64_t hidden,
                          int64_t k, int64_t item, float* to) {
  const int64_t panels = panels_of(hidden), gate = item / panels;
  const float* first = from + gate / gates * stack.direction + gate % gates * hidden * stack.row;
  pack_panel(first, 1, stack.row, k, hidden, item % panels, to + item * kPanel * k);
}

struct PackArgs {
  Stack stack;
  int64_t gates, hidden, k;
};

Status pack_items(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PackArgs*>(args);
  for (int64_t i = begin; i < end; ++i)
    pack_gate(input<float>(data, 0), a.stack, a.gates, a.hidden, a.k, i, output<float>(data));
  return {};
}

// ints: gates.
Status recurrent_pack(const Call& call, Plan& plan) {
  auto* a = plan.make<PackArgs>();
  const View& w = call.in[0];
  *a = {{w.strides[0], w.strides[1]}, call.ints[0], w.dims[1] / call.ints[0], w.dims[2]};
  plan.args = a;
  plan.add(pack_items, w.dims[0] * a->gates * panels_of(a->hidden), a->k * 16);
  return {};
}

// Padded biases: input and recurrent bias of a gate are added up, except for GRU's hidden gate.
void pad_bias(const Layer& a, const Data& data, int64_t direction) {
  float* to = scratch_at(data, a.bias_at) + direction * bias_floats(a);
  memset(to, 0, size_t(bias_floats(a)) * sizeof(float));
  if (!a.has_bias) return;
  const float* local = input<float>(data, kB) + direction * a.bias_stride;
  const float* state = local + a.gates * a.hidden;
  for (int64_t g = 0; g < a.gates; ++g) {
    const bool is_apart = a.gates == 3 && g == 2;
    for (int64_t j = 0; j < a.hidden; ++j) {
      const float recurrent_bias = state[g * a.hidden + j];
      to[g * a.padded + j] = local[g * a.hidden + j] + (is_apart ? 0.0f : recurrent_bias);
      if (is_apart) to[a.width() + j] = recurrent_bias;
    }
  }
}

void pad_peepholes(const Layer& a, const Data& data, int64_t direction) {
  float* to = scratch_at(data, a.peepholes_at) + direction * 3 * a.padded;
  memset(to, 0, size_t(3 * a.padded) * sizeof(float));
  const float* from = input<float>(data, kPeepholes) + direction * a.peepholes_stride;
  for (int64_t g = 0; g < 3; ++g)
    memcpy(to + g * a.padded, from + g * a.hidden, size_t(a.hidden) * sizeof(float));
}

void init_shared_states(const Layer& a, const Data& data);

// Phase 1. Items are directions (biases and states), then panels of weights that are not constant.
Status prepare_weights(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Layer*>(args);
  const int64_t panels = a.directions * a.gates * panels_of(a.hidden);
  for (int64_t item = begin; item < end; ++item) {
    int64_t i = item;
    if (i < a.directions) {
      pad_bias(a, data, i);
      if (a.has_peepholes) pad_peepholes(a, data, i);
      if (a.unit_blocks > 0) init_shared_states(a, data);
      continue;
    }
    i -= a.directions;
    if (!a.is_w_packed && i < panels) {
      pack_gate(input<float>(data, kW), a.w, a.gates, a.hidden, a.inputs, i,
                scratch_at(data, a.w_at));
      continue;
    }
    i -= a.is_w_packed ? 0 : panels;
    pack_gate(input<float>(data, kR), a.r, a.gates, a.hidden, a.hidden, i,
              scratch_at(data, a.r_at));
  }
  return {};
}

// What the input adds to the gates of every step, bias included.
Status multiply_input(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Layer*>(args);
  const Split& s = a.split;
  const float* x = input<float>(data, kX);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t direction = item / s.count(), i = item % s.count();
    const int64_t row = s.row(i % s.row_blocks), rows = s.row(i % s.row_blocks + 1) - row;
    const int64_t first = s.panel(i / s.row_blocks), last = s.panel(i / s.row_blocks + 1);
    float* to = scratch_at(data, a.gates_at) + direction * s.m * a.width();
    const float* bias = scratch_at(data, a.bias_at) + direction * bias_floats(a);
    gemm_block(data.local, rows, a.inputs,
               Columns{packed_weights(a, data, kW, direction), a.width(), first, last},
               Target{to + row * a.width() + first * kPanel, a.width()},
               TileEpilogue{1, bias, false},
               [&](float* into, int64_t from, int64_t n, int64_t depth, int64_t depths) {
                 for (int64_t r = 0; r < n; ++r) {
                   const int64_t at = row + from + r, time = at / a.batch, b = at % a.batch;
                   memcpy(into + r * kStride, x + time * a.x_time + b * a.x_batch + depth,
                          size_t(depths) * sizeof(float));
                 }
               });
  }
  return {};
}

SDX_INLINE int64_t blocked_floats(const Layer& a, int64_t rows) {
  return round_up(rows * passes_of(a.hidden) * kStride, 16);
}

SDX_INLINE int64_t max_rows_of(const Layer& a) { return (a.batch + a.blocks - 1) / a.blocks; }

Sequences sequences_of(const Layer& a, const Data& data, int64_t direction, int64_t rows) {
  const int64_t max_rows = max_rows_of(a);
  Sequences s{};
  s.layer = &a;
  s.functions = a.functions[direction];
  s.weights = packed_weights(a, data, kR, direction);
  s.bias = scratch_at(data, a.bias_at) + direction * bias_floats(a) + a.width();
  if (a.has_peepholes) s.peepholes = scratch_at(data, a.peepholes_at) + direction * 3 * a.padded;
  s.rows = rows;
  s.gates = reinterpret_cast<float*>(data.local);
  s.hidden = s.gates + max_rows * a.width();
  s.cell = s.hidden + max_rows * a.padded;
  s.blocked = s.cell + max_rows * a.padded;
  return s;
}

// Initial states.
void init_states(const Sequences& s, const Data& data, int64_t direction, int64_t first) {
  const Layer& a = *s.layer;
  memset(s.hidden, 0, size_t(s.rows * a.padded) * sizeof(float));
  memset(s.cell, 0, size_t(s.rows * a.padded) * sizeof(float));
  const auto fill = [&](RecurrentOperand operand, const Stack& from, float* to) {
    for (int64_t i = 0; i < s.rows; ++i)
      memcpy(to + i * a.padded,
             input<float>(data, operand) + direction * from.direction + (first + i) * from.row,
             size_t(a.hidden) * sizeof(float));
  };
  if (a.has_initial_h) fill(kInitialH, a.initial_h, s.hidden);
  if (a.has_initial_c) fill(kInitialC, a.initial_c, s.cell);
}

// Row `b` of Y_h or Y_c, and of Y at a time step, in either layout.
SDX_INLINE float* state_row(const Layer& a, float* out, int64_t direction, int64_t b) {
  return out +
         (a.is_batch_first ? b * a.directions + direction : direction * a.batch + b) * a.hidden;
}
SDX_INLINE float* output_row(const Layer& a, float* out, int64_t time, int64_t direction,
                             int64_t b) {
  const int64_t row = a.is_batch_first ? (b * a.length + time) * a.directions + direction
                                       : (time * a.directions + direction) * a.batch + b;
  return out + row * a.hidden;
}

// Writes the final states. Y is zero after the end of a sequence, and an empty one has zero states.
void write_final_states(const Sequences& s, const Data& data, int64_t direction, int64_t first,
                        const int64_t* lengths) {
  const Layer& a = *s.layer;
  const size_t size = size_t(a.hidden) * sizeof(float);
  for (int64_t i = 0; i < s.rows; ++i) {
    if (a.has_out[0])
      for (int64_t t = lengths[i]; t < a.length; ++t)
        memset(output_row(a, output<float>(data), t, direction, first + i), 0, size);
    for (int o = 1; o < kMaxOutputs; ++o) {
      if (!a.has_out[o]) continue;
      float* to = state_row(a, output<float>(data, o), direction, first + i);
      if (lengths[i] == 0)
        memset(to, 0, size);
      else
        memcpy(to, (o == 1 ? s.hidden : s.cell) + i * a.padded, size);
    }
  }
}

// All time steps of a block of sequences. Reversed sequences start at their own last element.
template <StepFn (*step_of)(const Layer&)>
void run_sequences(const Sequences& s, const Data& data, int64_t direction, int64_t first,
                   const int64_t* lengths) {
  const Layer& a = *s.layer;
  const StepFn step = step_of(a);
  const float* gates = scratch_at(data, a.gates_at) + direction * a.split.m * a.width();
  int64_t longest = 0;
  for (int64_t i = 0; i < s.rows; ++i) longest = lengths[i] > longest ? lengths[i] : longest;
  for (int64_t n = 0; n < longest; ++n) {
    const float* x[kMaxRows];
    int64_t time[kMaxRows];
    float* saved[kMaxRows];
    for (int64_t i = 0; i < s.rows; ++i) {
      time[i] = a.is_reverse[direction] ? lengths[i] - 1 - n : n;
      const int64_t row = time[i] * a.batch + first + i;
      x[i] = n < lengths[i] ? gates + row * a.width() : nullptr;
      if (a.is_training) saved[i] = output<float>(data, 3) + row * kSaved * a.hidden;
    }
    Sequences now = s;
    now.saved = saved;
    step(now, x);
    if (!a.has_out[0]) continue;
    for (int64_t i = 0; i < s.rows; ++i)
      if (x[i] != nullptr)
        memcpy(output_row(a, output<float>(data), time[i], direction, first + i),
               s.hidden + i * a.padded, size_t(a.hidden) * sizeof(float));
  }
}

// A single sequence whose hidden units threads share in every step. The state is double-buffered by
// the parity of the step: no thread writes what others still read.
Sequences shared_sequence(const Layer& a, const Data& data, int64_t round) {
  Sequences s = sequences_of(a, data, 0, 1);
  float* at = scratch_at(data, a.states_at);
  s.hidden = at + round % 2 * a.padded;
  s.cell = at + 2 * a.padded;
  s.gates = at + 3 * a.padded;
  return s;
}

void init_shared_states(const Layer& a, const Data& data) {
  init_states(shared_sequence(a, data, 0), data, 0, 0);
}

Status read_length(const Layer& a, const Data& data, int64_t row, int64_t* length) {
  *length = a.has_lens ? input<int32_t>(data, kLens)[row] : a.length;
  if (*length >= 0 && *length <= a.length) return {};
  return Status::fail("sequence_lens holds %ld, outside [0, %ld]", long(*length), long(a.length));
}

// Items are blocks of hidden units; the phase's round is the time step.
template <UnitsFn (*units_of)(const Layer&)>
Status run_units(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Layer*>(args);
  int64_t length = 0;
  if (Status status = read_length(a, data, 0, &length); !status.ok()) return status;
  if (data.round >= length) return {};
  const UnitsFn step_units = units_of(a);
  const Sequences s = shared_sequence(a, data, data.round);
  float* next = shared_sequence(a, data, data.round + 1).hidden;
  const int64_t time = a.is_reverse[0] ? length - 1 - data.round : data.round;
  const float* x = scratch_at(data, a.gates_at) + time * a.width();
  for (int64_t item = begin; item < end; ++item) {
    const int64_t panels = a.padded / kPanel;
    const int64_t first = part_begin(panels, a.unit_blocks, item) * kPanel;
    const int64_t last = part_begin(panels, a.unit_blocks, item + 1) * kPanel;
    step_units(s, x, next, first, last);
    if (!a.has_out[0]) continue;
    const int64_t most = last < a.hidden ? last : a.hidden;
    memcpy(output_row(a, output<float>(data), time, 0, 0) + first, next + first,
           size_t(most - first) * sizeof(float));
  }
  return {};
}

Status finish_units(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const Layer*>(args);
  int64_t length = 0;
  if (Status status = read_length(a, data, 0, &length); !status.ok()) return status;
  write_final_states(shared_sequence(a, data, length), data, 0, 0, &length);
  return {};
}

// Items are blocks of sequences in one direction, then in the other.
template <StepFn (*step_of)(const Layer&)>
Status run_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Layer*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t direction = item / a.blocks, block = item % a.blocks;
    const int64_t first = part_begin(a.batch, a.blocks, block);
    const Sequences s =
        sequences_of(a, data, direction, part_begin(a.batch, a.blocks, block + 1) - first);
    int64_t lengths[kMaxRows];
    for (int64_t i = 0; i < s.rows; ++i)
      if (Status status = read_length(a, data, first + i, &lengths[i]); !status.ok()) return status;
    init_states(s, data, direction, first);
    run_sequences<step_of>(s, data, direction, first, lengths);
    write_final_states(s, data, direction, first, lengths);
  }
  return {};
}

SDX_INLINE Stack stack_of(const Call& call, int operand, bool is_batch_first) {
  if (operand >= call.n_in || !call.in[operand].is_given()) return {};
  const int64_t* strides = call.in[operand].strides;
  return is_batch_first ? Stack{strides[1], strides[0]} : Stack{strides[0], strides[1]};
}

// ints: direction (forward, reverse, bidirectional), layout, hidden size, linear_before_reset (GRU)
// or input_forget (LSTM), whether W and R are packed, whether activations are the defaults, and
// then each activation of each direction. floats: alpha, beta and clip of the same activations.
void read_sizes(const Call& call, int64_t gates, int functions, Layer& a) {
  const int64_t* ints = call.ints;
  const View& x = call.in[kX];
  a.gates = gates;
  a.directions = ints[0] == 2 ? 2 : 1;
  a.is_reverse[0] = ints[0] == 1;
  a.is_reverse[1] = true;
  a.is_batch_first = ints[1] != 0;
  a.length = x.dims[a.is_batch_first], a.batch = x.dims[!a.is_batch_first], a.inputs = x.dims[2];
  a.x_time = x.strides[a.is_batch_first], a.x_batch = x.strides[!a.is_batch_first];
  a.hidden = ints[2];
  a.padded = round_up(a.hidden, kPanel);
  a.linear_before_reset = a.couples_input_forget = ints[3] != 0;
  a.is_w_packed = ints[4] != 0;
  a.is_r_packed = ints[5] != 0;
  a.is_standard = ints[6] != 0;
  for (int64_t i = 0; i < a.directions * functions; ++i) {
    const double* f = call.floats + 3 * i;
    a.functions[i / functions][i % functions] = {Activation(ints[7 + i]), float(f[0]), float(f[1]),
                                                 float(f[2])};
  }
}

void read_operands(const Call& call, Layer& a) {
  const auto has = [&](int operand) { return operand < call.n_in && call.in[operand].is_given(); };
  a.has_bias = has(kB), a.has_lens = has(kLens);
  a.has_initial_h = has(kInitialH), a.has_initial_c = has(kInitialC);
  a.has_peepholes = has(kPeepholes);
  a.is_training = call.n_out > kMaxOutputs;
  for (int o = 0; o < kMaxOutputs; ++o) a.has_out[o] = o < call.n_out && call.out[o].is_given();
  if (!a.is_w_packed) a.w = stack_of(call, kW, false);
  if (!a.is_r_packed) a.r = stack_of(call, kR, false);
  a.initial_h = stack_of(call, kInitialH, a.is_batch_first);
  a.initial_c = stack_of(call, kInitialC, a.is_batch_first);
  a.bias_stride = a.has_bias ? call.in[kB].strides[0] : 0;
  a.peepholes_stride = a.has_peepholes ? call.in[kPeepholes].strides[0] : 0;
}

// Blocks of the batch: enough for a few threads, with no more rows than a register tile has.
SDX_INLINE int64_t blocks_of(const Layer& a) {
  constexpr int64_t kEnough = 4;
  const int64_t fewest = (a.batch + kMaxRows - 1) / kMaxRows;
  const int64_t preferred = a.batch < kEnough / a.directions ? a.batch : kEnough / a.directions;
  const int64_t blocks = fewest > preferred ? fewest : preferred;
  return blocks < 1 ? 1 : blocks;
}

// Blocks of hidden units for threads to share, for a single sequence. A step must take far longer
// than its barrier: 128 K weights are about 10 us at memory speed, a barrier about 1 us.
SDX_INLINE int64_t unit_blocks_of(const Layer& a, bool has_unit_step) {
  constexpr int64_t kWorthSharing = 128 * 1024, kPanelsTogether = 2;
  const bool is_alone = a.batch == 1 && a.directions == 1;
  if (!has_unit_step || !is_alone || a.width() * a.hidden < kWorthSharing) return 0;
  return a.padded / kPanel / kPanelsTogether;
}

// Lays out the scratch and local memory.
void layout_scratch(Layer& a, Plan& plan) {
  int64_t at = 0;
  const auto take = [&](int64_t floats) {
    const int64_t from = at;
    at = round_up(at + floats, 16);
    return from;
  };
  a.bias_at = take(a.directions * bias_floats(a));
  a.peepholes_at = take(a.has_peepholes ? a.directions * 3 * a.padded : 0);
  a.w_at = take(a.is_w_packed ? 0 : a.directions * a.weight_floats(a.inputs));
  a.r_at = take(a.is_r_packed ? 0 : a.directions * a.weight_floats(a.hidden));
  a.gates_at = take(a.directions * a.split.m * a.width());
  a.states_at = take(a.unit_blocks > 0 ? 3 * a.padded + a.width() : 0);
  plan.scratch_bytes = at * int64_t(sizeof(float));
  const int64_t rows = max_rows_of(a);
  const int64_t local = rows * (a.width() + 2 * a.padded) + blocked_floats(a, rows);
  const int64_t bytes = local * int64_t(sizeof(float));
  plan.local_bytes = bytes > kBlockBytes ? bytes : kBlockBytes;
}

template <int64_t kGates, int kFunctions, StepFn (*step_of)(const Layer&),
          UnitsFn (*units_of)(const Layer&)>
Status recurrent(const Call& call, Plan& plan) {
  auto* a = plan.make<Layer>();
  plan.args = a;
  read_sizes(call, kGates, kFunctions, *a);
  read_operands(call, *a);
  a->split = split_matmul(a->length * a->batch, a->width(), a->inputs);
  a->blocks = blocks_of(*a);
  a->unit_blocks = unit_blocks_of(*a, units_of(*a) != nullptr);
  layout_scratch(*a, plan);
  const int64_t panels = a->directions * a->gates * panels_of(a->hidden);
  const int64_t n_raw = (a->is_w_packed ? 0 : panels) + (a->is_r_packed ? 0 : panels);
  plan.add(prepare_weights, a->directions + n_raw, a->width() + (a->inputs + a->hidden) * 8);
  plan.add(multiply_input, a->directions * a->split.count(), a->split.work);
  const int64_t step_work = max_rows_of(*a) * a->width() * (a->hidden + 32) / (SDX_VEC_BYTES / 4);
  if (a->unit_blocks > 0) {
    plan.add(run_units<units_of>, a->unit_blocks, step_work / a->unit_blocks, a->length);
    plan.add(finish_units, 1, 1);
  } else {
    plan.add(run_blocks<step_of>, a->directions * a->blocks, a->length * step_work);
  }
  return {};
}

constexpr Kernel kKernels[] = {
    {"gru", Accepts::rows, recurrent<3, 2, gru_step, gru_units>},
    {"gru_backward", Accepts::contiguous, gru_backward},
    {"lstm", Accepts::rows, recurrent<4, 3, lstm_step, lstm_units>},
    {"lstm_backward", Accepts::contiguous, lstm_backward},
    {"quantized_lstm", Accepts::contiguous, quantized_lstm},
    {"recurrent_pack", Accepts::rows, recurrent_pack},
    {"rnn", Accepts::rows, recurrent<1, 1, rnn_step, rnn_units>},
    {"rnn_backward", Accepts::contiguous, rnn_backward},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(recurrent, kKernels)
