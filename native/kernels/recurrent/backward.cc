// Backpropagation through time of RNN, GRU and LSTM with the default activations, in one direction.
// The gates of all steps are inputs: saved by the forward pass (LSTM), or recomputed by matrix
// products over all steps, since all states are known then (GRU). What remains sequential is here:
// from the last step to the first, the gradients of a step's gates, and their product with the
// recurrent weights, which is the gradient of the state before. Items are blocks of sequences.
#include "kernels/matmul/pack.h"
#include "kernels/recurrent/layer.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

// Inputs that all three kinds have, then those of LSTM and GRU.
enum BackwardOperand : int {
  kGates,  // [time, batch, ...]: LSTM's `saved`, GRU's gates of the input, RNN's outputs
  kWeights,
  kDy,
  kDyH,
  kInitialCell,  // LSTM
  kDyC,
  kStateGates = kInitialCell,  // GRU: the state's part of the gates, bias included
  kStates = kDyC,              // GRU: the state before each step
};

struct Backward {
  int64_t gates, length, batch, hidden, padded, blocks;
  bool is_reverse, is_relu;
  bool has_dy, has_dy_h, has_dy_c, has_initial_cell;

  SDX_INLINE int64_t width() const { return gates * hidden; }
  SDX_INLINE int64_t time(int64_t step) const { return is_reverse ? length - 1 - step : step; }
  SDX_INLINE int64_t first(int64_t block) const { return part_begin(batch, blocks, block); }
  SDX_INLINE int64_t max_rows() const { return (batch + blocks - 1) / blocks; }
};

Status pack_weights(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Backward*>(args);
  for (int64_t i = begin; i < end; ++i)
    pack_panel(input<float>(data, kWeights), a.hidden, 1, a.width(), a.hidden, i,
               scratch_at(data, 0) + i * kPanel * a.width());
  return {};
}

// One row of one step. `dh` is the gradient of the step's output, and `carried` what passes on to
// the step before without the recurrent weights: LSTM's cell gradient, or GRU's z dh.
struct Row {
  int64_t step, at;  // time step; index of the row among all time steps and sequences
  int64_t sequence;
  const float* dh;
  float* carried;
};

// H = o tanh(C), C = f C' + i g.
void lstm_row(const Backward& a, const Data& data, const Row& row) {
  const int64_t n = a.hidden;
  const float* saved = input<float>(data, kGates) + row.at * kSaved * n;
  const float* before = nullptr;
  if (row.step > 0) {
    const int64_t earlier = a.time(row.step - 1) * a.batch + row.sequence;
    before = input<float>(data, kGates) + (earlier * kSaved + 4) * n;
  } else if (a.has_initial_cell) {
    before = input<float>(data, kInitialCell) + row.sequence * n;
  }
  float* to = output<float>(data) + row.at * 4 * n;
  vloop(n, [&](int64_t j, auto lanes) {
    const f32v in = load(saved + j, lanes), out = load(saved + n + j, lanes);
    const f32v forget = load(saved + 2 * n + j, lanes), cell = load(saved + 3 * n + j, lanes);
    const f32v dh = load(row.dh + j, lanes), t = vtanh(load(saved + 4 * n + j, lanes));
    const f32v dc = load(row.carried + j, lanes) + dh * out * (1.0f - t * t);
    const f32v old = before == nullptr ? f32v{} : load(before + j, lanes);
    store(to + j, dc * cell * in * (1.0f - in), lanes);
    store(to + n + j, dh * t * out * (1.0f - out), lanes);
    store(to + 2 * n + j, dc * old * forget * (1.0f - forget), lanes);
    store(to + 3 * n + j, dc * in * (1.0f - cell * cell), lanes);
    store(row.carried + j, dc * forget, lanes);
  });
}

// H = (1 - z) n + z H', n = tanh(x_n + r h_n), where h_n is the state's part of the gate. Output 0
// has the gradients with respect to x, output 1 those with respect to h.
void gru_row(const Backward& a, const Data& data, const Row& row) {
  const int64_t n = a.hidden;
  const float* x = input<float>(data, kGates) + row.at * 3 * n;
  const float* h = input<float>(data, kStateGates) + row.at * 3 * n;
  const float* states = input<float>(data, kStates) + row.at * n;
  float* dx = output<float>(data) + row.at * 3 * n;
  float* to = output<float>(data, 1) + row.at * 3 * n;
  vloop(n, [&](int64_t j, auto lanes) {
    const auto sum = [&](int64_t at) { return load(x + at, lanes) + load(h + at, lanes); };
    const f32v update = vsigmoid(sum(j)), reset = vsigmoid(sum(n + j));
    const f32v linear = load(h + 2 * n + j, lanes);
    const f32v made = vtanh(load(x + 2 * n + j, lanes) + reset * linear);
    const f32v dh = load(row.dh + j, lanes);
    const f32v dnew = dh * (1.0f - update) * (1.0f - made * made);
    const f32v dupdate = dh * (load(states + j, lanes) - made) * update * (1.0f - update);
    const f32v dreset = dnew * linear * reset * (1.0f - reset);
    store(row.carried + j, dh * update, lanes);
    store(dx + j, dupdate, lanes);
    store(to + j, dupdate, lanes);
    store(dx + n + j, dreset, lanes);
    store(to + n + j, dreset, lanes);
    store(dx + 2 * n + j, dnew, lanes);
    store(to + 2 * n + j, dnew * reset, lanes);
  });
}

// H = tanh(x) or max(x, 0): both derivatives are functions of H.
void rnn_row(const Backward& a, const Data& data, const Row& row) {
  const int64_t n = a.hidden;
  const float* y = input<float>(data, kGates) + row.at * n;
  float* to = output<float>(data) + row.at * n;
  vloop(n, [&](int64_t j, auto lanes) {
    const f32v h = load(y + j, lanes), dh = load(row.dh + j, lanes);
    store(to + j, a.is_relu ? (h > 0.0f ? dh : f32v{}) : dh * (1.0f - h * h), lanes);
  });
}

void add_row(float* to, const float* from, int64_t n) {
  vloop(n, [&](int64_t j, auto lanes) {
    store(to + j, load(to + j, lanes) + load(from + j, lanes), lanes);
  });
}

using RowFn = void (*)(const Backward&, const Data&, const Row&);

// The local memory of an item.
struct Block {
  int64_t first, rows;
  float *dh, *carried, *blocked;
};

Block start_block(const Backward& a, const Data& data, int64_t item, bool has_cell) {
  const int64_t floats = a.max_rows() * a.padded;
  float* local = reinterpret_cast<float*>(data.local);
  const Block block{a.first(item), a.first(item + 1) - a.first(item), local, local + floats,
                    local + 2 * floats};
  memset(local, 0, size_t(2 * floats) * sizeof(float));
  const auto fill = [&](float* to, int operand) {
    for (int64_t i = 0; i < block.rows; ++i)
      memcpy(to + i * a.padded, input<float>(data, operand) + (block.first + i) * a.hidden,
             size_t(a.hidden) * sizeof(float));
  };
  if (a.has_dy_h) fill(block.dh, kDyH);
  if (has_cell && a.has_dy_c) fill(block.carried, kDyC);
  return block;
}

// Writes the gradients of the initial states.
void finish_block(const Backward& a, const Data& data, const Block& block, const float* from,
                  int out) {
  for (int64_t i = 0; i < block.rows; ++i)
    memcpy(output<float>(data, out) + (block.first + i) * a.hidden, from + i * a.padded,
           size_t(a.hidden) * sizeof(float));
}

// kDgates is the output whose rows the recurrent weights multiply; the one after it is the gradient
// of the initial state.
template <RowFn row_fn, int kDgates, bool has_cell>
Status run_backward(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Backward*>(args);
  const Columns weights{scratch_at(data, 0), a.hidden, 0, panels_of(a.hidden)};
  for (int64_t item = begin; item < end; ++item) {
    const Block block = start_block(a, data, item, has_cell);
    for (int64_t step = a.length; step-- > 0;) {
      const int64_t at = a.time(step) * a.batch + block.first;
      for (int64_t i = 0; i < block.rows; ++i) {
        float* dh = block.dh + i * a.padded;
        if (a.has_dy) add_row(dh, input<float>(data, kDy) + (at + i) * a.hidden, a.hidden);
        row_fn(a, data, {step, at + i, block.first + i, dh, block.carried + i * a.padded});
      }
      multiply_rows(block.rows, output<float>(data, kDgates) + at * a.width(), a.width(), a.width(),
                    weights, Target{block.dh, a.padded}, block.blocked);
      if constexpr (kDgates == 1)  // GRU: z dh passes on directly
        for (int64_t i = 0; i < block.rows; ++i)
          add_row(block.dh + i * a.padded, block.carried + i * a.padded, a.hidden);
    }
    finish_block(a, data, block, block.dh, kDgates + 1);
    if constexpr (has_cell) finish_block(a, data, block, block.carried, 2);
  }
  return {};
}

// Blocks of the batch: enough for a few threads, with no more rows than a register tile has.
SDX_INLINE int64_t blocks_of(int64_t batch) {
  constexpr int64_t kEnough = 4;
  const int64_t fewest = (batch + kMaxRows - 1) / kMaxRows;
  const int64_t preferred = batch < kEnough ? batch : kEnough;
  return fewest > preferred ? fewest : preferred < 1 ? 1 : preferred;
}

// ints: reverse, and for RNN relu (else tanh).
template <int64_t kGateCount, RowFn row_fn, int kDgates, bool has_cell>
Status backward(const Call& call, Plan& plan) {
  auto* a = plan.make<Backward>();
  plan.args = a;
  const auto has = [&](int operand) { return operand < call.n_in && call.in[operand].is_given(); };
  const View& gates = call.in[kGates];
  const int64_t hidden = call.in[kWeights].dims[1];
  *a = {};
  a->gates = kGateCount, a->length = gates.dims[0], a->batch = gates.dims[1], a->hidden = hidden;
  a->padded = panels_of(hidden) * kPanel;
  a->blocks = blocks_of(a->batch);
  a->is_reverse = call.ints[0] != 0;
  a->is_relu = call.n_ints > 1 && call.ints[1] != 0;
  a->has_dy = has(kDy), a->has_dy_h = has(kDyH);
  a->has_initial_cell = has_cell && has(kInitialCell), a->has_dy_c = has_cell && has(kDyC);
  plan.scratch_bytes = packed_floats(a->width(), hidden) * int64_t(sizeof(float));
  const int64_t rows = a->max_rows();
  const int64_t local = 2 * rows * a->padded + rows * passes_of(a->width()) * kStride;
  plan.local_bytes = local * int64_t(sizeof(float));
  plan.add(pack_weights, panels_of(hidden), a->width() * 16);
  const int64_t step_work = rows * a->width() * (hidden + 32) / (SDX_VEC_BYTES / 4);
  plan.add(run_backward<row_fn, kDgates, has_cell>, a->blocks, a->length * step_work);
  return {};
}

}  // namespace

Status lstm_backward(const Call& call, Plan& plan) {
  return backward<4, lstm_row, 0, true>(call, plan);
}
Status gru_backward(const Call& call, Plan& plan) {
  return backward<3, gru_row, 1, false>(call, plan);
}
Status rnn_backward(const Call& call, Plan& plan) {
  return backward<1, rnn_row, 0, false>(call, plan);
}

}  // namespace sdx::SDX_ISA
