// Linear attention with a recurrent state: one matrix S [depth, width] per head, updated token by
// token with S = decay * S + k (x) v, and read as q S. With a rate it follows the delta rule: S +=
// rate * k (x) (v - k S), which writes only what the state does not predict already.
//
// The columns of a state are independent, so items are blocks of columns and each thread keeps its
// block in L1 over all tokens.
#include "kernels/attention/kernels.h"
#include "simd/half.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {
namespace {

enum Operand : int { kQuery, kKey, kValue, kPast, kDecay, kRate };

constexpr int64_t kColumns = 32;  // a block with 128 rows is 16 KB: half of an L1 cache
constexpr int kChains = 4;        // independent accumulators, to hide the FMA latency

struct LinearArgs {
  int64_t tokens, q_heads, heads, group;  // heads of keys; heads of the query per head of keys
  int64_t depth, width, blocks;           // a state is [depth, width]
  int64_t decays, rates;                  // values for each token: per head, or per row; 0 for none
  DType state;
  bool has_past;
  float scale;
};

// One token's values as floats, and a block of the state, in local memory.
struct Local {
  float *query, *key, *decay, *decayed_key, *state;  // decayed_key: key * decay
};

SDX_INLINE Local local_of(const LinearArgs& a, std::byte* memory) {
  auto* floats = reinterpret_cast<float*>(memory);
  Local l;
  l.query = floats, l.key = l.query + a.group * a.depth, l.decay = l.key + a.depth;
  l.decayed_key = l.decay + a.depth, l.state = l.decayed_key + a.depth;
  return l;
}

template <class T>
SDX_INLINE void widen(const T* from, int64_t n, float* to) {
  vloop(n, [&](int64_t i, auto lanes) { store(to + i, load_float(from + i, lanes), lanes); });
}

template <class S>
SDX_INLINE void copy_in(const LinearArgs& a, const void* past, int64_t at, int64_t n,
                        float* state) {
  const S* from = static_cast<const S*>(past) + at;
  for (int64_t i = 0; i < a.depth; ++i) widen(from + i * a.width, n, state + i * kColumns);
}

template <class S>
SDX_INLINE void copy_out(const LinearArgs& a, const float* state, int64_t at, int64_t n, void* to) {
  for (int64_t i = 0; i < a.depth; ++i) {
    S* row = static_cast<S*>(to) + at + i * a.width;
    const float* from = state + i * kColumns;
    vloop(n, [&](int64_t c, auto lanes) { store_float(row + c, load(from + c, lanes), lanes); });
  }
}

void begin_state(const LinearArgs& a, const Data& data, int64_t at, int64_t n, float* state) {
  if (!a.has_past) {
    vloop(a.depth * kColumns, [&](int64_t i, auto lanes) { store(state + i, f32v{}, lanes); });
    return;
  }
  switch (a.state) {
    case DType::f16: return copy_in<F16>(a, data.in[kPast], at, n, state);
    case DType::bf16: return copy_in<BF16>(a, data.in[kPast], at, n, state);
    default: return copy_in<float>(a, data.in[kPast], at, n, state);
  }
}

void end_state(const LinearArgs& a, const Data& data, int64_t at, int64_t n, const float* state) {
  switch (a.state) {
    case DType::f16: return copy_out<F16>(a, state, at, n, data.out[1]);
    case DType::bf16: return copy_out<BF16>(a, state, at, n, data.out[1]);
    default: return copy_out<float>(a, state, at, n, data.out[1]);
  }
}

// Decay factors e^decay of the rows of a state: one per head, or one per row.
template <class T>
SDX_INLINE void read_decay(const LinearArgs& a, const Data& data, int64_t token, int64_t head,
                           float* factors) {
  const T* decay = input<T>(data, kDecay) + token * a.decays;
  if (a.decays == a.heads) {
    const f32v all = vexp(splat(to_float(decay + head)));
    vloop(a.depth, [&](int64_t i, auto lanes) { store(factors + i, all, lanes); });
    return;
  }
  const T* own = decay + head * a.depth;
  vloop(a.depth, [&](int64_t i, auto lanes) {
    store(factors + i, vexp(load_float(own + i, lanes)), lanes);
  });
}

// sum_i weights[i] * state[i] over a block of columns.
template <class L>
SDX_INLINE f32v weighed(const float* weights, const float* state, int64_t depth, L lanes) {
  f32v sums[kChains] = {};
  int64_t i = 0;
  for (; i + kChains <= depth; i += kChains)
    for (int c = 0; c < kChains; ++c)
      sums[c] += weights[i + c] * load(state + (i + c) * kColumns, lanes);
  for (; i < depth; ++i) sums[0] += weights[i] * load(state + i * kColumns, lanes);
  f32v sum = sums[0];
  for (int c = 1; c < kChains; ++c) sum += sums[c];
  return sum;
}

// One token: decays the state, writes the value (by the delta rule if there is a rate) and reads it
// for every query of the group. Decay, write and the first read are one pass over the block.
template <class T>
SDX_INLINE void step(const LinearArgs& a, const Local& l, const T* value, float rate, int64_t n,
                     T* y) {
  vloop(n, [&](int64_t c, auto lanes) {
    f32v write = load_float(value + c, lanes);
    if (a.rates) write = rate * (write - weighed(l.decayed_key, l.state + c, a.depth, lanes));
    f32v sums[kChains] = {};
    const auto row = [&](int64_t i, f32v& sum) {
      float* at = l.state + i * kColumns + c;
      const f32v s = load(at, lanes) * l.decay[i] + l.key[i] * write;
      store(at, s, lanes);
      sum += l.query[i] * s;
    };
    int64_t i = 0;
    for (; i + kChains <= a.depth; i += kChains)
      for (int k = 0; k < kChains; ++k) row(i + k, sums[k]);
    for (; i < a.depth; ++i) row(i, sums[0]);
    for (int k = 1; k < kChains; ++k) sums[0] += sums[k];
    store_float(y + c, sums[0] * a.scale, lanes);
    for (int64_t g = 1; g < a.group; ++g) {
      const f32v sum = weighed(l.query + g * a.depth, l.state + c, a.depth, lanes);
      store_float(y + g * a.width + c, sum * a.scale, lanes);
    }
  });
}

// Loads one token's query, key and decay of a head.
template <class T>
SDX_INLINE void read_token(const LinearArgs& a, const Data& data, int64_t token, int64_t head,
                           const Local& l) {
  const int64_t shared = a.heads > a.q_heads ? a.heads / a.q_heads : 1;
  const int64_t lead = head * a.group / shared;
  widen(input<T>(data, kKey) + (token * a.heads + head) * a.depth, a.depth, l.key);
  widen(input<T>(data, kQuery) + (token * a.q_heads + lead) * a.depth, a.group * a.depth, l.query);
  if (!a.decays) return;
  read_decay<T>(a, data, token, head, l.decay);
  vloop(a.depth, [&](int64_t i, auto lanes) {
    store(l.decayed_key + i, load(l.key + i, lanes) * load(l.decay + i, lanes), lanes);
  });
}

// Items: blocks of columns of the state of each head.
template <class T>
Status linear_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const LinearArgs*>(args);
  Local l = local_of(a, data.local);
  if (!a.decays) {
    vloop(a.depth, [&](int64_t i, auto lanes) { store(l.decay + i, splat(1.0f), lanes); });
    l.decayed_key = l.key;
  }
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % a.blocks * kColumns, head = item / a.blocks % a.heads;
    const int64_t entry = item / a.blocks / a.heads;
    const int64_t n = a.width - first < kColumns ? a.width - first : kColumns;
    const int64_t at = (entry * a.heads + head) * a.depth * a.width + first;
    begin_state(a, data, at, n, l.state);
    for (int64_t t = 0; t < a.tokens; ++t) {
      const int64_t token = entry * a.tokens + t, place = token * a.heads + head;
      read_token<T>(a, data, token, head, l);
      float rate = 1;
      if (a.rates) {
        const int64_t own = a.rates == 1 ? 0 : head;
        rate = to_float(input<T>(data, kRate) + token * a.rates + own);
      }
      const T* value = input<T>(data, kValue) + place * a.width + first;
      step(a, l, value, rate, n, output<T>(data) + place * a.group * a.width + first);
    }
    end_state(a, data, at, n, l.state);
  }
  return {};
}

PhaseFn phase_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return linear_blocks<F16>;
    case DType::bf16: return linear_blocks<BF16>;
    default: return linear_blocks<float>;
  }
}

}  // namespace

Status linear_attention(const Call& call, Plan& plan) {
  auto* args = plan.make<LinearArgs>();
  plan.args = args;
  LinearArgs& a = *args;
  const View &query = call.in[kQuery], &state = call.out[1], &decay = call.in[kDecay];
  a.q_heads = call.ints[0], a.heads = call.ints[1];
  a.group = a.q_heads > a.heads ? a.q_heads / a.heads : 1;
  a.tokens = query.dims[1], a.depth = state.dims[2], a.width = state.dims[3];
  a.blocks = (a.width + kColumns - 1) / kColumns;
  a.decays = decay.is_given() ? decay.dims[2] : 0;
  a.rates = call.in[kRate].is_given() ? call.in[kRate].dims[2] : 0;
  a.state = state.dtype, a.has_past = call.in[kPast].is_given(), a.scale = float(call.floats[0]);
  if (decay.is_given() && a.decays != a.heads && a.decays != a.heads * a.depth)
    return Status::fail("decay has %ld numbers per token: one for each of %ld heads, or %ld",
                        long(a.decays), long(a.heads), long(a.heads * a.depth));
  plan.local_bytes = ((a.group + 3) * a.depth + a.depth * kColumns) * int64_t(sizeof(float));
  const int64_t work = (a.tokens * (a.group + 2) + 2) * a.depth * kColumns / 16;
  plan.add(phase_of(query.dtype), query.dims[0] * a.heads * a.blocks, work);
  return {};
}

}  // namespace sdx::SDX_ISA
