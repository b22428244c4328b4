// DynamicQuantizeLSTM: an LSTM whose recurrent weights are 8-bit. The input's contribution to the
// gates is an operand; in each step the states of all sequences are quantized together (asymmetric
// uint8, dynamic range), multiplied by the int8 tile, and corrected for zero points.
#include "kernels/quantize/tile_int8.h"
#include "kernels/recurrent/activations.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {
namespace {

using int8::kGroup;
using int8::kPanel;
using int8::PackedShape;

enum Operand : int {
  kGates,
  kWeights,
  kScale,
  kZero,
  kStepCounts,
  kFirstHidden,
  kFirstCell,
  kPeep
};

struct QuantizedLayer {
  int64_t length, batch, hidden, directions;
  bool is_reverse[2];
  bool is_coupled, is_standard, is_unsigned;
  int64_t n_scale, n_zero;  // per direction: 1 or one per column; 0: no zero points
  bool has_out[kMaxOutputs];
  Function functions[2][kMaxFunctions];
  PackedShape shape;
  int64_t stride;  // bytes of a quantized row
  int64_t blocks;  // of hidden units that threads share in each step; 0: a direction is one item
  // Byte offsets of states, gates and column parameters of a direction: in the scratch memory if
  // threads share its steps, else in a thread's local memory. Quantized rows are always local.
  int64_t next_at, cell_at, gates_at, columns_at, direction_bytes, row_sums_at, rows_bytes;

  SDX_INLINE int64_t width() const { return shape.n_panels() * kPanel; }
};

// The buffers of one direction in one time step.
struct StepBuffers {
  const QuantizedLayer* layer;
  const int8_t* weights;
  float* hidden;    // [batch, hidden]
  float* next;      // [batch, hidden]: states after this step
  float* cell;      // [batch, hidden]
  float* gates;     // [batch, width]: state x recurrent weights
  float* scale;     // by column
  int32_t* offset;  // by column: K * zw - sum(w), to be multiplied by the states' zero point
  int32_t* zero;    // by column: zero point of the weights
  uint8_t* rows;
  int32_t* row_sums;
};

// The buffers of a round; if threads share the steps, states are double-buffered by its parity.
StepBuffers buffers_of(const QuantizedLayer& a, const Data& data, int64_t direction,
                       int64_t round) {
  const bool is_shared = a.blocks > 0;
  std::byte* rows = data.local;
  std::byte* at = is_shared ? data.scratch + direction * a.direction_bytes : rows + a.rows_bytes;
  StepBuffers r{};
  r.layer = &a;
  r.weights = input<int8_t>(data, kWeights) + direction * a.shape.bytes();
  r.hidden = reinterpret_cast<float*>(at + (round % 2 == 0 ? 0 : a.next_at));
  r.next = reinterpret_cast<float*>(at + (round % 2 == 0 ? a.next_at : 0));
  if (!is_shared) r.hidden = r.next = reinterpret_cast<float*>(at);
  r.cell = reinterpret_cast<float*>(at + a.cell_at);
  r.gates = reinterpret_cast<float*>(at + a.gates_at);
  r.scale = reinterpret_cast<float*>(at + a.columns_at);
  r.offset = reinterpret_cast<int32_t*>(r.scale + a.width());
  r.zero = r.offset + a.width();
  r.rows = reinterpret_cast<uint8_t*>(rows);
  r.row_sums = reinterpret_cast<int32_t*>(rows + a.row_sums_at);
  return r;
}

// Initial states and column parameters.
void init_direction(const StepBuffers& r, const Data& data, int64_t direction) {
  const QuantizedLayer& a = *r.layer;
  const int64_t count = a.batch * a.hidden, width = a.width();
  const auto fill = [&](int operand, float* to) {
    if (data.in[operand] == nullptr)
      memset(to, 0, size_t(count) * sizeof(float));
    else
      memcpy(to, input<float>(data, operand) + direction * count, size_t(count) * sizeof(float));
  };
  fill(kFirstHidden, r.hidden);
  fill(kFirstCell, r.cell);
  const float* scales = input<float>(data, kScale) + direction * a.n_scale;
  const auto* column_sums = reinterpret_cast<const int32_t*>(r.weights + a.shape.column_sums_at());
  for (int64_t j = 0; j < width; ++j) {
    const bool is_there = j < a.shape.n;
    int32_t zero = a.is_unsigned ? -128 : 0;
    if (is_there && a.n_zero > 0) {
      const int64_t at = direction * a.n_zero + (a.n_zero == 1 ? 0 : j);
      zero += a.is_unsigned ? input<uint8_t>(data, kZero)[at] : input<int8_t>(data, kZero)[at];
    }
    r.zero[j] = zero;
    r.offset[j] = int32_t(a.shape.k) * zero - column_sums[j];
    r.scale[j] = is_there ? scales[a.n_scale == 1 ? 0 : j] : 0;
  }
}

struct Quantization {
  float scale, zero;
};

// Quantizes the states of all sequences to uint8 over their range, extended to include 0, and sums
// each row for the zero points of the weights.
Quantization quantize_states(const StepBuffers& r) {
  const QuantizedLayer& a = *r.layer;
  f32v low_values{}, high_values{};
  vloop(a.batch * a.hidden, [&](int64_t i, auto lanes) {
    const f32v x = load(r.hidden + i, lanes);
    low_values = vmin(low_values, x);
    high_values = vmax(high_values, x);
  });
  const float low = -reduce_max(-low_values), high = reduce_max(high_values);
  const float step = high == low ? 1.0f : (high - low) / 255.0f;
  const f32v zero_point = round_small(clamp(splat(-low / step), splat(0.0f), splat(255.0f)));
  const f32v scale = splat(step);
  for (int64_t b = 0; b < a.batch; ++b) {
    const float* x = r.hidden + b * a.hidden;
    uint8_t* to = r.rows + b * a.stride;
    i32v total{};
    vloop(a.hidden, [&](int64_t i, auto lanes) {
      const f32v clamped = clamp(load(x + i, lanes) / scale, -zero_point, 255.0f - zero_point);
      store_i32(to + i, __builtin_convertvector(round_small(clamped) + zero_point, i32v), lanes);
    });
    for (int64_t i = a.hidden; i < a.stride; ++i) to[i] = 0;
    vloop<uint8_t>(a.hidden, [&](int64_t i, auto lanes) {
      total = dot4(total, (i32v)load(to + i, lanes), splat(int32_t(0x01010101)));
    });
    r.row_sums[b] = reduce_sum(total);
  }
  return {step, zero_point[0]};
}

// Panels [first, last) of R rows, dequantized into `gates`.
template <int R>
void multiply_rows(const StepBuffers& r, const Quantization& quantization, int64_t row,
                   int64_t first, int64_t last) {
  const QuantizedLayer& a = *r.layer;
  const i32v zero_point = splat(int32_t(quantization.zero));
  const f32v step = splat(quantization.scale);
  for (int64_t p = first; p < last; ++p)
    for (int c = 0; c < kPanel; c += int8::kTileCols) {
      const int8_t* panel = r.weights + p * a.shape.panel_bytes() + c * kGroup;
      const int64_t column = p * kPanel + c;
      const int8::Rows rows{r.rows + row * a.stride, a.stride, a.shape.n_groups(), 0};
      const auto none = [](int, int) { return i32v{}; };
      int8::tile<R, int8::kTileVecs>(rows, panel, none, [&](const auto& accumulators) {
#pragma GCC unroll 24
        for (int q = 0; q < R * int8::kTileVecs; ++q) {
          const int i = q % R, v = q / R;
          const int64_t j = column + v * kLanes;
          const i32v row_sum = splat(r.row_sums[row + i]);
          const i32v total =
              accumulators[i][v] + load(r.offset + j) * zero_point - load(r.zero + j) * row_sum;
          const f32v y = __builtin_convertvector(total, f32v) * (step * load(r.scale + j));
          store(r.gates + (row + i) * a.width() + j, y);
        }
      });
    }
}

void multiply_panels(const StepBuffers& r, const Quantization& quantization, int64_t first,
                     int64_t last) {
  const int64_t n = r.layer->batch;
  int64_t row = 0;
  if constexpr (int8::kTileRows == 12)
    for (; row + 12 <= n; row += 12) multiply_rows<12>(r, quantization, row, first, last);
  for (; row + 4 <= n; row += 4) multiply_rows<4>(r, quantization, row, first, last);
  for (; row < n; ++row) multiply_rows<1>(r, quantization, row, first, last);
}

// The fused gates of hidden units [first, last) of a row, as in lstm.cc, for states without
// padding.
template <class Functions>
void advance(const StepBuffers& r, const Function* functions, const float* peepholes, int64_t row,
             const float* x, int64_t first, int64_t last) {
  const QuantizedLayer& a = *r.layer;
  const int64_t n = a.hidden;
  const float* state = r.gates + row * a.width();
  float *next = r.next + row * n, *cell = r.cell + row * n;
  const float* p = peepholes;
  const Functions by(functions);
  vloop(last - first, [&](int64_t i, auto k) {
    const int64_t j = first + i;
    const auto gate = [&](int64_t g) {
      return load(x + g * n + j, k) + load(state + g * n + j, k);
    };
    const f32v before = load(cell + j, k);
    f32v in = gate(0), forget = gate(2), out = gate(1);
    if (p != nullptr) {
      in += load(p + j, k) * before;
      forget += load(p + 2 * n + j, k) * before;
    }
    in = by.f(in);
    forget = a.is_coupled ? 1.0f - in : by.f(forget);
    const f32v after = forget * before + in * by.g(gate(3));
    if (p != nullptr) out += load(p + n + j, k) * after;
    store(cell + j, after, k);
    store(next + j, by.f(out) * by.h(after), k);
  });
}

// Time step n of hidden units [first, last) of all sequences that have not ended; the states of the
// others are carried over.
void run_step(const StepBuffers& r, const Data& data, int64_t direction, int64_t n, int64_t first,
              int64_t last) {
  const QuantizedLayer& a = *r.layer;
  const float* peepholes =
      data.in[kPeep] == nullptr ? nullptr : input<float>(data, kPeep) + direction * 3 * a.hidden;
  const int32_t* lens = input<int32_t>(data, kStepCounts);
  const size_t size = size_t(last - first) * sizeof(float);
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t length = lens == nullptr ? a.length : lens[b];
    float* next = r.next + b * a.hidden + first;
    if (n >= length) {
      if (r.next != r.hidden) memcpy(next, r.hidden + b * a.hidden + first, size);
      continue;
    }
    const int64_t time = a.is_reverse[direction] ? length - 1 - n : n;
    const float* x = input<float>(data, kGates) +
                     ((time * a.batch + b) * a.directions + direction) * 4 * a.hidden;
    (a.is_standard
         ? advance<DefaultActivations>
         : advance<NamedActivations>)(r, a.functions[direction], peepholes, b, x, first, last);
    if (!a.has_out[0]) continue;
    const int64_t row = (time * a.directions + direction) * a.batch + b;
    memcpy(output<float>(data) + row * a.hidden + first, next, size);
  }
}

// Writes the final states. Y is zero after the end of a sequence, and an empty one has zero states.
void finish_direction(const StepBuffers& r, const Data& data, int64_t direction) {
  const QuantizedLayer& a = *r.layer;
  const size_t size = size_t(a.hidden) * sizeof(float);
  const int32_t* lens = input<int32_t>(data, kStepCounts);
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t length = lens == nullptr ? a.length : lens[b];
    for (int64_t t = length; a.has_out[0] && t < a.length; ++t)
      memset(output<float>(data) + ((t * a.directions + direction) * a.batch + b) * a.hidden, 0,
             size);
    for (int o = 1; o < kMaxOutputs; ++o) {
      if (!a.has_out[o]) continue;
      float* to = output<float>(data, o) + (direction * a.batch + b) * a.hidden;
      if (length == 0)
        memset(to, 0, size);
      else
        memcpy(to, (o == 1 ? r.hidden : r.cell) + b * a.hidden, size);
    }
  }
}

Status check_lengths(const QuantizedLayer& a, const Data& data) {
  const int32_t* lens = input<int32_t>(data, kStepCounts);
  for (int64_t b = 0; lens != nullptr && b < a.batch; ++b)
    if (lens[b] < 0 || lens[b] > a.length)
      return Status::fail("sequence_lens holds %ld, outside [0, %ld]", long(lens[b]),
                          long(a.length));
  return {};
}

// Without sharing: items are directions, each from its first step to its last.
Status run_directions(const void* args, const Data& data, int64_t first, int64_t last) {
  const auto& a = *static_cast<const QuantizedLayer*>(args);
  if (Status status = check_lengths(a, data); !status.ok()) return status;
  for (int64_t direction = first; direction < last; ++direction) {
    const StepBuffers r = buffers_of(a, data, direction, 0);
    init_direction(r, data, direction);
    for (int64_t n = 0; n < a.length; ++n) {
      multiply_panels(r, quantize_states(r), 0, a.shape.n_panels());
      run_step(r, data, direction, n, 0, a.hidden);
    }
    finish_direction(r, data, direction);
  }
  return {};
}

Status init_directions(const void* args, const Data& data, int64_t first, int64_t last) {
  const auto& a = *static_cast<const QuantizedLayer*>(args);
  if (Status status = check_lengths(a, data); !status.ok()) return status;
  for (int64_t direction = first; direction < last; ++direction)
    init_direction(buffers_of(a, data, direction, 0), data, direction);
  return {};
}

// With sharing: items are blocks of hidden units of each direction; the phase's round is the time
// step. Every thread quantizes all states for itself, which is cheaper than another barrier.
Status run_blocks(const void* args, const Data& data, int64_t first, int64_t last) {
  const auto& a = *static_cast<const QuantizedLayer*>(args);
  const int64_t panels = a.hidden / kPanel;
  for (int64_t item = first; item < last; ++item) {
    const int64_t direction = item / a.blocks, block = item % a.blocks;
    const int64_t begins = panels * block / a.blocks, ends = panels * (block + 1) / a.blocks;
    const StepBuffers r = buffers_of(a, data, direction, data.round);
    const Quantization quantization = quantize_states(r);
    for (int64_t gate = 0; gate < 4; ++gate)
      multiply_panels(r, quantization, gate * panels + begins, gate * panels + ends);
    run_step(r, data, direction, data.round, begins * kPanel, ends * kPanel);
  }
  return {};
}

Status finish_directions(const void* args, const Data& data, int64_t first, int64_t last) {
  const auto& a = *static_cast<const QuantizedLayer*>(args);
  for (int64_t direction = first; direction < last; ++direction)
    finish_direction(buffers_of(a, data, direction, a.length), data, direction);
  return {};
}

// Blocks of hidden units for threads to share. A step must take far longer than its barrier: 3 M
// multiply-adds are some 10 us.
int64_t blocks_of(const QuantizedLayer& a) {
  constexpr int64_t kWorthSharing = 3 << 20, kPanelsTogether = 2, kEnough = 4;
  const bool is_worth = a.batch * a.hidden * a.hidden * 4 >= kWorthSharing;
  if (!is_worth || a.hidden % kPanel != 0 || a.length < 2) return 0;
  const int64_t blocks = a.hidden / kPanel / kPanelsTogether;
  return blocks < kEnough ? blocks : kEnough;
}

// Lays out the scratch and local memory.
void layout_memory(QuantizedLayer& a, Plan& plan) {
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t from = at;
    at = (at + bytes + 63) / 64 * 64;
    return from;
  };
  const int64_t state = a.batch * a.hidden * int64_t(sizeof(float));
  take(state);
  a.next_at = take(a.blocks > 0 ? state : 0);
  a.cell_at = take(state);
  a.gates_at = take(a.batch * a.width() * int64_t(sizeof(float)));
  a.columns_at = take(3 * a.width() * int64_t(sizeof(float)));
  a.direction_bytes = at;
  at = 0;
  take(a.batch * a.stride);
  a.row_sums_at = take(a.batch * int64_t(sizeof(int32_t)));
  a.rows_bytes = at;
  plan.scratch_bytes = a.blocks > 0 ? a.directions * a.direction_bytes : 0;
  plan.local_bytes = a.rows_bytes + (a.blocks > 0 ? 0 : a.direction_bytes);
}

}  // namespace

// ints: direction (forward, reverse, bidirectional), hidden size, input_forget, whether activations
// are the defaults, whether weights are unsigned, and each activation of each direction. floats:
// alpha, beta and clip of the same activations.
Status quantized_lstm(const Call& call, Plan& plan) {
  auto* a = plan.make<QuantizedLayer>();
  const int64_t* ints = call.ints;
  const View& gates = call.in[kGates];
  a->directions = ints[0] == 2 ? 2 : 1;
  a->is_reverse[0] = ints[0] == 1;
  a->is_reverse[1] = true;
  a->hidden = ints[1];
  a->is_coupled = ints[2] != 0, a->is_standard = ints[3] != 0, a->is_unsigned = ints[4] != 0;
  a->length = gates.dims[0], a->batch = gates.dims[1];
  const auto each = [&](int operand) {
    return call.in[operand].is_given() ? call.in[operand].count() / a->directions : 0;
  };
  a->n_scale = each(kScale), a->n_zero = each(kZero);
  for (int o = 0; o < kMaxOutputs; ++o) a->has_out[o] = o < call.n_out && call.out[o].is_given();
  for (int64_t i = 0; i < a->directions * kMaxFunctions; ++i) {
    const double* f = call.floats + 3 * i;
    a->functions[i / kMaxFunctions][i % kMaxFunctions] = {Activation(ints[5 + i]), float(f[0]),
                                                          float(f[1]), float(f[2])};
  }
  a->shape = {a->hidden, 4 * a->hidden};
  a->stride = ((a->hidden + 63) / 64 | 1) * 64;
  a->blocks = blocks_of(*a);
  layout_memory(*a, plan);
  plan.args = a;
  const int64_t products = a->batch * a->width() * a->hidden / SDX_VEC_BYTES;
  const int64_t step_work = products / 4 + a->batch * a->hidden;
  if (a->blocks == 0) {
    plan.add(run_directions, a->directions, a->length * step_work);
    return {};
  }
  plan.add(init_directions, a->directions, a->width());
  plan.add(run_blocks, a->directions * a->blocks, step_work / a->blocks, a->length);
  plan.add(finish_directions, a->directions, a->batch * a->hidden);
  return {};
}

}  // namespace sdx::SDX_ISA
