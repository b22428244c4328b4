// Mixture of experts (MoE, QMoE): a router sends each token to its k best experts, two-layer
// networks whose weights are floats or n-bit codes.
//
// Phases: route_all sorts the (token, expert) slots by expert; hidden_layer and output_layer
// compute the two layers, for blocks of rows of each expert's weights; sum_expert_outputs adds the
// weighted results of a token. A block of weights is dequantized once for all tokens of its expert;
// an expert with a single token (decoding) multiplies codes directly.
//
// Codes of n bits are packed 8 / n to a byte and unpacked field by field: first the lowest bits of
// all bytes, then the next ones. Activations are reordered to match (field order).
#include "kernels/kernel.h"
#include "simd/math.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int { kX, kRouter, kLayers, kZeros = kLayers + 9, kChosen = kZeros + 3 };
enum class Activation : int64_t { relu, gelu, silu, identity, swiglu };
constexpr int64_t kUnits = 16;  // rows of weights in an item
constexpr int64_t kFloat = 32;  // `bits` of float weights

// Weights of a layer: [experts, rows, columns].
struct Weights {
  int operand, zero_operand;
  int64_t rows, columns, bits, block, n_blocks;
  bool has_bias, has_zeros;

  SDX_INLINE int64_t fields() const { return bits == kFloat ? 1 : 8 / bits; }
  SDX_INLINE int64_t row_bytes() const { return columns / fields(); }
};

// Sizes and attributes. A slot is one of the k experts of a token.
struct Experts {
  Weights in, out, gate;
  int64_t tokens, width, inner, experts, k;
  Activation activation;
  int64_t fusion;  // SwiGLU rows: 0 separate, 1 interleaved, 2 one half after the other
  bool has_gate, has_chosen, normalizes;
  bool softmax_over_all_experts;  // in the router; else over the chosen ones
  float alpha, beta, limit;
  // Offsets in scratch memory, in elements of 4 bytes.
  int64_t starts_at, order_at, shares_at, rows_at, hidden_at, results_at;

  SDX_INLINE int64_t slots() const { return tokens * k; }
};

template <class T>
SDX_INLINE T* at(const Data& data, int64_t offset) {
  return reinterpret_cast<T*>(data.scratch) + offset;
}

// Top-k of the router's scores for one token (the first of equal ones), and the weights of the
// chosen experts.
void route(const Experts& a, const Data& data, int64_t token, int32_t* chosen, float* shares) {
  const float* router = input<float>(data, kRouter) + token * a.experts;
  for (int64_t j = 0; j < a.k; ++j) {
    int32_t best = -1;
    for (int32_t e = 0; e < a.experts; ++e) {
      bool is_taken = false;
      for (int64_t i = 0; i < j; ++i) is_taken |= chosen[i] == e;
      if (is_taken) continue;
      const bool is_better = best < 0 || router[e] > router[best] ||
                             (router[best] != router[best] && router[e] == router[e]);
      if (is_better) best = e;
    }
    chosen[j] = best;
  }
  float total = 0;
  for (int64_t j = 0; j < a.k; ++j) {
    if (a.has_chosen)
      shares[j] = input<float>(data, kChosen)[token * a.experts + chosen[j]];
    else
      shares[j] = __builtin_expf(router[chosen[j]] - router[chosen[0]]);
    total += shares[j];
  }
  if (a.has_chosen && (!a.normalizes || total == 0)) return;
  if (a.softmax_over_all_experts) {
    total = 0;
    for (int64_t e = 0; e < a.experts; ++e) total += __builtin_expf(router[e] - router[chosen[0]]);
  }
  for (int64_t j = 0; j < a.k; ++j) shares[j] /= total;
}

// Index of element i of n in field order.
SDX_INLINE int64_t field_index(int64_t i, int64_t n, int64_t fields) {
  return i % fields * (n / fields) + i / fields;
}

// One item: sorts all slots by expert (counting sort), and copies tokens in field order.
Status route_all(const void* args, const Data& data, int64_t, int64_t) {
  const auto& a = *static_cast<const Experts*>(args);
  auto* starts = at<int32_t>(data, a.starts_at);
  auto* order = at<int32_t>(data, a.order_at);
  auto* chosen = order + a.slots();
  for (int64_t t = 0; t < a.tokens; ++t)
    route(a, data, t, chosen + t * a.k, at<float>(data, a.shares_at) + t * a.k);
  int32_t n = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    starts[e] = n;
    for (int64_t s = 0; s < a.slots(); ++s)
      if (chosen[s] == e) order[n++] = int32_t(s);
  }
  starts[a.experts] = n;
  const int64_t fields = a.in.fields();
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float* x = input<float>(data, kX) + t * a.width;
    float* to = at<float>(data, a.rows_at) + t * a.width;
    for (int64_t i = 0; i < a.width; ++i) to[field_index(i, a.width, fields)] = x[i];
  }
  return {};
}

// Zero points of a row, packed like its codes; half of the range if there are none.
struct Zeros {
  const uint8_t* from;
  int64_t first;

  template <int kBits>
  SDX_INLINE float at_block(int64_t block) const {
    if (from == nullptr) return float(1 << (kBits - 1));
    constexpr int kFields = 8 / kBits;
    const uint64_t i = uint64_t(first + block);
    return float(from[i / kFields] >> (i % kFields * kBits) & ((1 << kBits) - 1));
  }
};

Zeros zeros_of(const Weights& w, const Data& data, int64_t expert, int64_t row) {
  if (!w.has_zeros) return {nullptr, 0};
  const uint8_t* zeros = input<uint8_t>(data, w.zero_operand);
  const int64_t fields = w.fields(), count = w.block > 0 ? w.n_blocks : w.rows;
  const int64_t bytes = (count + fields - 1) / fields;
  if (w.block > 0) return {zeros + (expert * w.rows + row) * bytes, 0};
  return {zeros + expert * bytes, row};
}

// Dequantizes one row of weights, in field order.
template <int kBits>
void unpack_bits(const Weights& w, const Data& data, int64_t expert, int64_t row, float* to) {
  const int64_t line = expert * w.rows + row, row_bytes = w.row_bytes();
  const uint8_t* from = input<uint8_t>(data, w.operand) + line * row_bytes;
  const float* scales = input<float>(data, w.operand + 1) + line * w.n_blocks;
  const Zeros zeros = zeros_of(w, data, expert, row);
  const int64_t n = row_bytes / w.n_blocks;  // bytes of a block
  const i32v mask = splat(int32_t((1 << kBits) - 1));
  for (int64_t b = 0; b < w.n_blocks; ++b) {
    const f32v scale = splat(scales[b]), zero = splat(zeros.at_block<kBits>(b));
    vloop(n, [&](int64_t i, auto lanes) {
      const i32v bytes = load_i32(from + b * n + i, lanes);
      for (int f = 0; f < 8 / kBits; ++f) {
        const f32v q = __builtin_convertvector((bytes >> (f * kBits)) & mask, f32v);
        store(to + f * row_bytes + b * n + i, (q - zero) * scale, lanes);
      }
    });
  }
}

void copy_floats(const Weights& w, const Data& data, int64_t expert, int64_t row, float* to) {
  const float* from = input<float>(data, w.operand) + (expert * w.rows + row) * w.columns;
  vloop(w.columns, [&](int64_t i, auto lanes) { store(to + i, load(from + i, lanes), lanes); });
}

// Dequantizes `count` rows from `first` on, `step` apart, one after the other.
void unpack_rows(const Weights& w, const Data& data, int64_t expert, int64_t first, int64_t step,
                 int64_t count, float* to) {
  const auto unpack = w.bits == kFloat ? copy_floats
                      : w.bits == 2    ? unpack_bits<2>
                      : w.bits == 4    ? unpack_bits<4>
                                       : unpack_bits<8>;
  for (int64_t i = 0; i < count; ++i) unpack(w, data, expert, first + i * step, to + i * w.columns);
}

// Dot product of one row of codes with x, without dequantizing to memory: for experts with one
// token.
template <int kBits>
float dot_bits(const Weights& w, const Data& data, int64_t expert, int64_t row, const float* x) {
  constexpr int kFields = 8 / kBits;
  const int64_t line = expert * w.rows + row, row_bytes = w.row_bytes();
  const uint8_t* from = input<uint8_t>(data, w.operand) + line * row_bytes;
  const float* scales = input<float>(data, w.operand + 1) + line * w.n_blocks;
  const Zeros zeros = zeros_of(w, data, expert, row);
  const int64_t n = row_bytes / w.n_blocks;
  const i32v mask = splat(int32_t((1 << kBits) - 1));
  f32v total{};
  for (int64_t b = 0; b < w.n_blocks; ++b) {
    const f32v zero = splat(zeros.at_block<kBits>(b));
    f32v acc[kFields] = {};
    vloop(n, [&](int64_t i, auto lanes) {
      const i32v bytes = load_i32(from + b * n + i, lanes);
      for (int f = 0; f < kFields; ++f) {
        const f32v q = __builtin_convertvector((bytes >> (f * kBits)) & mask, f32v) - zero;
        acc[f] += q * load(x + f * row_bytes + b * n + i, lanes);
      }
    });
    for (int f = 1; f < kFields; ++f) acc[0] += acc[f];
    total += acc[0] * scales[b];
  }
  return reduce_sum(total);
}

float dot_floats(const Weights& w, const Data& data, int64_t expert, int64_t row, const float* x) {
  const float* from = input<float>(data, w.operand) + (expert * w.rows + row) * w.columns;
  f32v total{};
  vloop(w.columns,
        [&](int64_t i, auto lanes) { total += load(from + i, lanes) * load(x + i, lanes); });
  return reduce_sum(total);
}

// Register tile: 4 rows by 4 tokens are 16 accumulators.
constexpr int kRowsTogether = 4;
constexpr int kTokensTogether = 4;

// out[i * kTokensTogether + t] = row i of `rows` (n long) times x[t].
void multiply(const float* rows, const float* const* x, int64_t n, float* out) {
  f32v total[kRowsTogether][kTokensTogether] = {};
  vloop(n, [&](int64_t i, auto lanes) {
    f32v each[kTokensTogether];
    for (int t = 0; t < kTokensTogether; ++t) each[t] = load(x[t] + i, lanes);
    for (int r = 0; r < kRowsTogether; ++r) {
      const f32v row = load(rows + r * n + i, lanes);
      for (int t = 0; t < kTokensTogether; ++t) total[r][t] += row * each[t];
    }
  });
  for (int r = 0; r < kRowsTogether; ++r)
    for (int t = 0; t < kTokensTogether; ++t)
      out[r * kTokensTogether + t] = reduce_sum(total[r][t]);
}

// The same for one token and `count` rows from `first` on, `step` apart; results have the stride of
// `multiply`.
void dot_rows(const Weights& w, const Data& data, int64_t expert, int64_t first, int64_t step,
              int64_t count, const float* x, float* out) {
  const auto dot = w.bits == kFloat ? dot_floats
                   : w.bits == 2    ? dot_bits<2>
                   : w.bits == 4    ? dot_bits<4>
                                    : dot_bits<8>;
  for (int64_t i = 0; i < count; ++i)
    out[i * kTokensTogether] = dot(w, data, expert, first + i * step, x);
}

SDX_INLINE float bias_of(const Weights& w, const Data& data, int64_t expert, int64_t row) {
  return w.has_bias ? input<float>(data, w.operand + 2)[expert * w.rows + row] : 0.0f;
}

// Activation of the hidden layer, times the gate's output `linear` (1 without a gate).
float activated(const Experts& a, float h, float linear) {
  const f32v x = splat(h);
  switch (a.activation) {
    case Activation::relu: return vmax(x, f32v{})[0] * linear;
    case Activation::gelu: return vgelu_tanh(x)[0] * linear;
    case Activation::silu: return h * vsigmoid(x)[0] * linear;
    case Activation::identity: return h * linear;
    case Activation::swiglu: break;
  }
  const f32v clamped = vmin(x, splat(a.limit));
  const f32v side = vmin(vmax(splat(linear), splat(-a.limit)), splat(a.limit));
  return (clamped * vsigmoid(clamped * a.alpha) * (side + a.beta))[0];
}

// Up to kTokensTogether slots of an expert; missing ones repeat the last.
struct Batch {
  int64_t count;
  int64_t slot[kTokensTogether];
  const float* x[kTokensTogether];
};

Batch batch_of(const int32_t* order, int64_t first, int64_t last, const float* rows, int64_t n,
               int64_t share) {
  Batch b{};
  b.count = last - first < kTokensTogether ? last - first : kTokensTogether;
  for (int64_t t = 0; t < kTokensTogether; ++t) {
    b.slot[t] = order[first + (t < b.count ? t : b.count - 1)];
    b.x[t] = rows + b.slot[t] / share * n;
  }
  return b;
}

// First layer: hidden units [first, first + count) of an expert, for all of its slots.
void hidden_units(const Experts& a, const Data& data, int64_t e, int64_t first, int64_t count) {
  const auto* starts = at<int32_t>(data, a.starts_at);
  auto* main = reinterpret_cast<float*>(data.local);
  float* side = main + kRowsTogether * a.width;
  const bool has_side = a.has_gate || a.fusion != 0;
  const Weights& second = a.has_gate ? a.gate : a.in;
  const int64_t step = a.fusion == 1 ? 2 : 1;
  const int64_t other = a.fusion == 1 ? 2 * first + 1 : a.fusion == 2 ? first + a.inner : first;
  const bool is_lone = starts[e + 1] - starts[e] == 1;
  if (!is_lone) unpack_rows(a.in, data, e, first * step, step, count, main);
  if (!is_lone && has_side) unpack_rows(second, data, e, other, step, count, side);
  for (int64_t i = starts[e]; i < starts[e + 1]; i += kTokensTogether) {
    const Batch b = batch_of(at<int32_t>(data, a.order_at), i, starts[e + 1],
                             at<float>(data, a.rows_at), a.width, a.k);
    float h[kRowsTogether * kTokensTogether], linear[kRowsTogether * kTokensTogether];
    if (is_lone) {
      dot_rows(a.in, data, e, first * step, step, count, b.x[0], h);
      if (has_side) dot_rows(second, data, e, other, step, count, b.x[0], linear);
    } else {
      multiply(main, b.x, a.width, h);
      if (has_side) multiply(side, b.x, a.width, linear);
    }
    for (int64_t u = 0; u < count; ++u)
      for (int64_t t = 0; t < b.count; ++t) {
        const int64_t j = u * kTokensTogether + t;
        const float x = h[j] + bias_of(a.in, data, e, (first + u) * step);
        const float y = has_side ? linear[j] + bias_of(second, data, e, other + u * step) : 1.0f;
        at<float>(
            data,
            a.hidden_at)[b.slot[t] * a.inner + field_index(first + u, a.inner, a.out.fields())] =
            activated(a, x, y);
      }
  }
}

// Second layer: outputs [first, first + count) of an expert, weighted by its share.
void output_columns(const Experts& a, const Data& data, int64_t e, int64_t first, int64_t count) {
  const auto* starts = at<int32_t>(data, a.starts_at);
  auto* rows = reinterpret_cast<float*>(data.local);
  const bool is_lone = starts[e + 1] - starts[e] == 1;
  if (!is_lone) unpack_rows(a.out, data, e, first, 1, count, rows);
  for (int64_t i = starts[e]; i < starts[e + 1]; i += kTokensTogether) {
    const Batch b = batch_of(at<int32_t>(data, a.order_at), i, starts[e + 1],
                             at<float>(data, a.hidden_at), a.inner, 1);
    float y[kRowsTogether * kTokensTogether];
    if (is_lone)
      dot_rows(a.out, data, e, first, 1, count, b.x[0], y);
    else
      multiply(rows, b.x, a.inner, y);
    for (int64_t n = 0; n < count; ++n)
      for (int64_t t = 0; t < b.count; ++t)
        at<float>(data, a.results_at)[b.slot[t] * a.width + first + n] =
            (y[n * kTokensTogether + t] + bias_of(a.out, data, e, first + n)) *
            at<float>(data, a.shares_at)[b.slot[t]];
  }
}

// Items: blocks of kUnits of the n rows of each expert; experts without tokens are skipped.
template <void (*run)(const Experts&, const Data&, int64_t, int64_t, int64_t)>
void run_blocks(const Experts& a, const Data& data, int64_t n, int64_t begin, int64_t end) {
  const auto* starts = at<int32_t>(data, a.starts_at);
  const int64_t blocks = (n + kUnits - 1) / kUnits;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t e = item / blocks, first = item % blocks * kUnits;
    const int64_t last = first + kUnits < n ? first + kUnits : n;
    if (starts[e] == starts[e + 1]) continue;
    for (int64_t i = first; i < last; i += kRowsTogether)
      run(a, data, e, i, last - i < kRowsTogether ? last - i : kRowsTogether);
  }
}

Status hidden_layer(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Experts*>(args);
  run_blocks<hidden_units>(a, data, a.inner, begin, end);
  return {};
}

Status output_layer(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Experts*>(args);
  run_blocks<output_columns>(a, data, a.width, begin, end);
  return {};
}

// Items: tokens. Sums the results of a token's experts, in the order of their rank.
Status sum_expert_outputs(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Experts*>(args);
  for (int64_t t = begin; t < end; ++t) {
    const float* from = at<float>(data, a.results_at) + t * a.k * a.width;
    float* to = output<float>(data) + t * a.width;
    vloop(a.width, [&](int64_t i, auto lanes) {
      f32v total = load(from + i, lanes);
      for (int64_t j = 1; j < a.k; ++j) total += load(from + j * a.width + i, lanes);
      store(to + i, total, lanes);
    });
  }
  return {};
}

Weights weights_of(const Call& call, int number, int64_t rows, int64_t columns) {
  Weights w{};
  w.operand = kLayers + 3 * number, w.zero_operand = kZeros + number;
  w.rows = rows, w.columns = columns;
  w.bits = call.ints[3 + number], w.block = call.ints[2];
  w.n_blocks = w.block > 0 ? columns / w.block : 1;
  if (w.n_blocks < 1) w.n_blocks = 1;
  w.has_bias = call.in[w.operand + 2].is_given();
  w.has_zeros = call.in[w.zero_operand].is_given();
  return w;
}

// Offsets in scratch memory, and the size of local memory.
void plan_memory(Experts& a, Plan& plan) {
  int64_t next = 0;
  const auto take = [&](int64_t elements) {
    const int64_t from = next;
    next = (next + elements + 15) / 16 * 16;
    return from;
  };
  a.starts_at = take(a.experts + 1);
  a.order_at = take(2 * a.slots());
  a.shares_at = take(a.slots());
  a.rows_at = take(a.tokens * a.width);
  a.hidden_at = take(a.slots() * a.inner);
  a.results_at = take(a.slots() * a.width);
  plan.scratch_bytes = next * 4;
  const int64_t own = kRowsTogether * (2 * a.width > a.inner ? 2 * a.width : a.inner);
  plan.local_bytes = (own + 15) / 16 * 64;
}

// Operands: tokens, router, weights, scales and bias of each layer (in, out, gate), their zero
// points, and the router's weights of experts. ints: k, hidden units, block size, bits of each
// layer, activation, fusion, whether shares are normalized, and whether they are a softmax over all
// experts. floats: alpha, beta, limit.
Status moe(const Call& call, Plan& plan) {
  auto* a = plan.make<Experts>();
  const View &x = call.in[kX], &router = call.in[kRouter];
  const int64_t* ints = call.ints;
  a->width = x.dims[x.rank - 1], a->tokens = x.count(0, x.rank - 1);
  a->experts = router.dims[1], a->k = ints[0], a->inner = ints[1];
  a->activation = Activation(ints[6]), a->fusion = ints[7], a->normalizes = ints[8] != 0;
  a->softmax_over_all_experts = ints[9] != 0;
  a->has_gate = call.in[kLayers + 6].is_given();
  a->has_chosen = call.in[kChosen].is_given();
  a->alpha = float(call.floats[0]), a->beta = float(call.floats[1]);
  a->limit = float(call.floats[2]);
  a->in = weights_of(call, 0, a->fusion != 0 ? 2 * a->inner : a->inner, a->width);
  a->out = weights_of(call, 1, a->width, a->inner);
  a->gate = weights_of(call, 2, a->inner, a->width);
  plan_memory(*a, plan);
  plan.args = a;
  const int64_t each = (a->slots() + a->experts - 1) / (a->experts < 1 ? 1 : a->experts) + 2;
  const int64_t work = kUnits * a->width * each / kLanes;
  plan.add(route_all, 1, a->tokens * (a->experts * a->k + a->width));
  plan.add(hidden_layer, a->experts * ((a->inner + kUnits - 1) / kUnits), work);
  plan.add(output_layer, a->experts * ((a->width + kUnits - 1) / kUnits), work);
  plan.add(sum_expert_outputs, a->tokens, a->width * a->k / kLanes);
  return {};
}

constexpr Kernel kKernels[] = {
    {"moe", Accepts::contiguous, moe},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(moe, kKernels)
