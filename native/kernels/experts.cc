// QMoE: a router sends each token to a few experts, small networks whose weights are of few bits.
//
// Numbers of k bits lie 8 / k to a byte. Rows are unpacked field by field: first the lowest bits of
// all bytes, then the next ones. What they are multiplied by lies in the same order.
#include "kernels/kernel.h"
#include "simd/math.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {
namespace {

enum Slot { kX, kRouter, kLayers, kZeros = kLayers + 9, kChosen = kZeros + 3 };
enum class Activation : int64_t { relu, gelu, silu, identity, swiglu };
constexpr int64_t kUnits = 16;  // rows of weights that an item takes

// The weights of a layer: `rows` of `columns` for each expert.
struct Weights {
  int slot, zero_slot;
  int64_t rows, columns, bits, block, n_blocks;
  bool has_bias, has_zeros;

  SDX_INLINE int64_t fields() const { return 8 / bits; }
  SDX_INLINE int64_t row_bytes() const { return columns / fields(); }
};

struct Experts {
  Weights in, out, gate;
  int64_t tokens, width, inner, experts, k;
  Activation activation;
  int64_t fusion;  // 0: none, 1: both sides of a SwiGLU take turns, 2: one behind the other
  bool has_gate, has_chosen, normalizes;
  float alpha, beta, limit;
  // Where things lie in the scratch memory, in elements of 4 bytes.
  int64_t starts_at, order_at, shares_at, rows_at, hidden_at, results_at;

  SDX_INLINE int64_t slots() const { return tokens * k; }
};

template <class T>
SDX_INLINE T* at(const Data& data, int64_t place) {
  return reinterpret_cast<T*>(data.scratch) + place;
}

// The experts of one token, best first and the first of equal ones, and what each counts.
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
  for (int64_t j = 0; j < a.k; ++j) shares[j] /= total;
}

// Where element i of n lies when fields are unpacked one after the other.
SDX_INLINE int64_t place_of(int64_t i, int64_t n, int64_t fields) {
  return i % fields * (n / fields) + i / fields;
}

// One item: the slots of each expert one after the other, and the tokens in the order of fields.
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
    for (int64_t i = 0; i < a.width; ++i) to[place_of(i, a.width, fields)] = x[i];
  }
  return {};
}

SDX_INLINE float zero_point(const Weights& w, const Data& data, int64_t expert, int64_t row,
                            int64_t block) {
  if (!w.has_zeros) return float(1 << (w.bits - 1));
  const int64_t fields = w.fields(), per_row = (w.n_blocks + fields - 1) / fields;
  const uint8_t* zeros = input<uint8_t>(data, w.zero_slot);
  int64_t i = block;
  if (w.block > 0)
    zeros += (expert * w.rows + row) * per_row;
  else
    zeros += expert * ((w.rows + fields - 1) / fields), i = row;
  return float(zeros[i / fields] >> (i % fields * w.bits) & ((1 << w.bits) - 1));
}

void unpack_row(const Weights& w, const Data& data, int64_t expert, int64_t row, float* to) {
  const int64_t fields = w.fields(), line = expert * w.rows + row;
  const uint8_t* from = input<uint8_t>(data, w.slot) + line * w.row_bytes();
  const float* scales = input<float>(data, w.slot + 1) + line * w.n_blocks;
  const int64_t n = w.row_bytes() / w.n_blocks;  // bytes of a block
  const i32v mask = splat(int32_t((1 << w.bits) - 1));
  for (int64_t b = 0; b < w.n_blocks; ++b) {
    const f32v zero = splat(zero_point(w, data, expert, row, b)), scale = splat(scales[b]);
    for (int64_t f = 0; f < fields; ++f) {
      float* part = to + f * w.row_bytes() + b * n;
      const int shift = int(f * w.bits);
      vloop(n, [&](int64_t i, auto lanes) {
        const i32v q = (load_i32(from + b * n + i, lanes) >> shift) & mask;
        store(part + i, (__builtin_convertvector(q, f32v) - zero) * scale, lanes);
      });
    }
  }
}

float dot(const float* a, const float* b, int64_t n) {
  f32v sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int u = 0; u < 4; ++u) sums[u] += load(a + i + u * kLanes) * load(b + i + u * kLanes);
  vloop(n - i,
        [&](int64_t j, auto lanes) { sums[0] += load(a + i + j, lanes) * load(b + i + j, lanes); });
  return reduce_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

SDX_INLINE float bias_of(const Weights& w, const Data& data, int64_t expert, int64_t row) {
  return w.has_bias ? input<float>(data, w.slot + 2)[expert * w.rows + row] : 0.0f;
}

float activated(const Experts& a, float h, float linear) {
  const f32v x = splat(h);
  switch (a.activation) {
    case Activation::relu: return vmax(x, f32v{})[0] * linear;
    case Activation::gelu: return vgelu_tanh(x)[0] * linear;
    case Activation::silu: return h * vsigmoid(x)[0] * linear;
    case Activation::identity: return h * linear;
    case Activation::swiglu: break;
  }
  const f32v held = vmin(x, splat(a.limit));
  const f32v side = vmin(vmax(splat(linear), splat(-a.limit)), splat(a.limit));
  return (held * vsigmoid(held * a.alpha) * (side + a.beta))[0];
}

// Items are blocks of units of each expert.
Status hide(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Experts*>(args);
  const auto* starts = at<int32_t>(data, a.starts_at);
  const auto* order = at<int32_t>(data, a.order_at);
  auto* row = reinterpret_cast<float*>(data.local);
  float* side = row + a.width;
  const int64_t blocks = (a.inner + kUnits - 1) / kUnits;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t e = item / blocks, first = item % blocks * kUnits;
    if (starts[e] == starts[e + 1]) continue;
    for (int64_t u = first; u < first + kUnits && u < a.inner; ++u) {
      const int64_t main = a.fusion == 1 ? 2 * u : u;
      const int64_t other = a.fusion == 1 ? main + 1 : a.fusion == 2 ? u + a.inner : u;
      const Weights& second = a.has_gate ? a.gate : a.in;
      const bool has_side = a.has_gate || a.fusion != 0;
      unpack_row(a.in, data, e, main, row);
      if (has_side) unpack_row(second, data, e, other, side);
      for (int32_t i = starts[e]; i < starts[e + 1]; ++i) {
        const int64_t slot = order[i];
        const float* x = at<float>(data, a.rows_at) + slot / a.k * a.width;
        const float h = dot(x, row, a.width) + bias_of(a.in, data, e, main);
        const float linear =
            has_side ? dot(x, side, a.width) + bias_of(second, data, e, other) : 1.0f;
        float* to = at<float>(data, a.hidden_at) + slot * a.inner;
        to[place_of(u, a.inner, a.out.fields())] = activated(a, h, linear);
      }
    }
  }
  return {};
}

// Items are blocks of columns of the result, by each expert.
Status give(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const Experts*>(args);
  const auto* starts = at<int32_t>(data, a.starts_at);
  const auto* order = at<int32_t>(data, a.order_at);
  auto* row = reinterpret_cast<float*>(data.local);
  const int64_t blocks = (a.width + kUnits - 1) / kUnits;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t e = item / blocks, first = item % blocks * kUnits;
    if (starts[e] == starts[e + 1]) continue;
    for (int64_t n = first; n < first + kUnits && n < a.width; ++n) {
      unpack_row(a.out, data, e, n, row);
      for (int32_t i = starts[e]; i < starts[e + 1]; ++i) {
        const int64_t slot = order[i];
        const float* h = at<float>(data, a.hidden_at) + slot * a.inner;
        const float y = dot(h, row, a.inner) + bias_of(a.out, data, e, n);
        at<float>(data, a.results_at)[slot * a.width + n] = y * at<float>(data, a.shares_at)[slot];
      }
    }
  }
  return {};
}

Status add_up(const void* args, const Data& data, int64_t begin, int64_t end) {
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
  w.slot = kLayers + 3 * number, w.zero_slot = kZeros + number;
  w.rows = rows, w.columns = columns;
  w.bits = call.ints[3 + number], w.block = call.ints[2];
  w.n_blocks = w.block > 0 ? columns / w.block : 1;
  if (w.n_blocks < 1) w.n_blocks = 1;
  w.has_bias = call.in[w.slot + 2].is_given();
  w.has_zeros = call.in[w.zero_slot].is_given();
  return w;
}

void place(Experts& a, Plan& plan) {
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
  const int64_t own = 2 * a.width > a.inner ? 2 * a.width : a.inner;
  plan.local_bytes = (own + 15) / 16 * 64;
}

// Operands: tokens, router, weights, scales and bias of each layer (in, out, gate), their zero
// points, and the shares of experts. ints: k, units of an expert, block size, bits of each layer,
// activation, fusion, whether shares are normalized. floats: alpha, beta, limit.
Status qmoe(const Call& call, Plan& plan) {
  auto* a = plan.make<Experts>();
  const View &x = call.in[kX], &router = call.in[kRouter];
  const int64_t* ints = call.ints;
  a->width = x.dims[x.rank - 1], a->tokens = x.count(0, x.rank - 1);
  a->experts = router.dims[1], a->k = ints[0], a->inner = ints[1];
  a->activation = Activation(ints[6]), a->fusion = ints[7], a->normalizes = ints[8] != 0;
  a->has_gate = call.in[kLayers + 6].is_given();
  a->has_chosen = call.in[kChosen].is_given();
  a->alpha = float(call.floats[0]), a->beta = float(call.floats[1]);
  a->limit = float(call.floats[2]);
  a->in = weights_of(call, 0, a->fusion != 0 ? 2 * a->inner : a->inner, a->width);
  a->out = weights_of(call, 1, a->width, a->inner);
  a->gate = weights_of(call, 2, a->inner, a->width);
  place(*a, plan);
  plan.args = a;
  const int64_t each = (a->slots() + a->experts - 1) / (a->experts < 1 ? 1 : a->experts) + 2;
  const int64_t work = kUnits * a->width * each / kLanes;
  plan.add(route_all, 1, a->tokens * (a->experts * a->k + a->width));
  plan.add(hide, a->experts * ((a->inner + kUnits - 1) / kUnits), work);
  plan.add(give, a->experts * ((a->width + kUnits - 1) / kUnits), work);
  plan.add(add_up, a->tokens, a->width * a->k / kLanes);
  return {};
}

constexpr Kernel kRows[] = {
    {"qmoe", Accepts::contiguous, qmoe},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(experts, kRows)
