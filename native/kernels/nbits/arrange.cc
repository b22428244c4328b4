// Rows of x in the order in which few rows are multiplied, and the rows that cannot be.
#include "kernels/nbits/few.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::nbits {
namespace {

// Weights along k lie in vectors of fields: each field of all lanes or bytes is a vector of x.
template <int bits, class T>
void spread(const T* from, int64_t n, T* to) {
  constexpr int kFields = 8 * int(sizeof(T)) / bits, kCount = SDX_VEC_BYTES / int(sizeof(T));
  for (int64_t k = 0; k < n;
       k += kFields * kCount, from += kFields * kCount, to += kFields * kCount)
    for (int i = 0; i < kFields; ++i)
      for (int j = 0; j < kCount; ++j) to[i * kCount + j] = from[j * kFields + i];
}

// Fields of all bytes of a word of weights.
template <int bits>
void spread_words(const int8_t* from, int64_t n, int8_t* to) {
  constexpr int kFields = 8 / bits;
  for (int64_t k = 0; k < n; k += 4 * kFields)
    for (int i = 0; i < kFields; ++i)
      for (int j = 0; j < 4; ++j) to[k + 4 * i + j] = from[k + j * kFields + i];
}

template <int bits, class T>
void order_row(const Arranged& x, const T* from, T* to) {
  if constexpr (sizeof(T) == 1) {
    if (x.order == Order::words) return spread_words<bits>(from, x.k, to);
  }
  spread<bits>(from, x.k, to);
}

// Halves of a vector folded onto each other until one lane is left.
template <class T, class F>
SDX_INLINE T fold(Vec<T> v, F&& join) {
  typedef T Four __attribute__((vector_size(16)));
  Four parts[kLanes / 4];
  memcpy(parts, &v, sizeof v);
  if constexpr (kLanes == 16)
    parts[0] = join(parts[0], parts[2]), parts[1] = join(parts[1], parts[3]);
  if constexpr (kLanes >= 8) parts[0] = join(parts[0], parts[1]);
  const Four two = join(parts[0], __builtin_shufflevector(parts[0], parts[0], 2, 3, 0, 1));
  return join(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}

struct Sum {
  template <class V>
  SDX_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};
struct Most {
  template <class V>
  SDX_INLINE V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

// Values [k, k + n) of a row, all in one block.
struct Block {
  float step, sum;
  bool is_finite;
};

// As floats they stay what they are, with their sum; as bytes they become steps.
template <class T>
SDX_INLINE Block take_block(const float* x, int64_t n, T* to) {
  f32v total{};
  i32v top{};  // sizes are ordered as their bits are, and NaN is the largest
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v v = load(x + i, lanes);
    top = Most{}(top, (i32v)v & 0x7fffffff);
    total += v;
    if constexpr (sizeof(T) == sizeof(float)) store(to + i, v, lanes);
  });
  const int32_t bits = fold<int32_t>(top, Most{});
  float most;
  memcpy(&most, &bits, sizeof most);
  // What would give no number, or nearly so, is multiplied in another way.
  const bool is_finite = most < 0x1p100f;
  if constexpr (sizeof(T) == sizeof(float)) return {1, fold<float>(total, Sum{}), is_finite};
  if (!is_finite) return {0, 0, false};
  const float step = most / 127, inverse = most > 0x1p-100f ? 127 / most : 0;
  f32v steps{};
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v v = round_small(load(x + i, lanes) * inverse);
    steps += v;
    store_i32(to + i, __builtin_convertvector(v, i32v), lanes);
  });
  return {step, fold<float>(steps, Sum{}) * step, true};
}

template <class T>
void arrange_row(const Few& f, const Data& data, int64_t row) {
  const Arranged& x = f.x;
  const int64_t k = f.p.w.k;
  auto* wide = reinterpret_cast<float*>(data.local + chain_local_bytes(f.p.chain));
  auto* values = reinterpret_cast<T*>(data.scratch + row * x.value_bytes);
  const bool is_straight = x.order == Order::straight;
  T* straight = is_straight ? values : reinterpret_cast<T*>(wide + x.k);
  float* steps = reinterpret_cast<float*>(data.scratch + x.step_at) + row * x.n_blocks;
  float* sums = reinterpret_cast<float*>(data.scratch + x.sum_at) + row * x.n_blocks;
  widen_row(f.p, data, row, 0, k, wide);
  bool is_finite = true;
  int64_t b = 0;
  for (int64_t at = 0; at < k; at += x.block, ++b) {
    const int64_t n = k - at < x.block ? k - at : x.block;
    const Block block = take_block(wide + at, n, straight + at);
    steps[b] = block.step, sums[b] = block.sum;
    is_finite = is_finite && block.is_finite;
  }
  for (; b < x.n_blocks; ++b) steps[b] = sums[b] = 0;
  for (int64_t i = k; i < x.k; ++i) straight[i] = 0;
  if (!is_straight) {
    switch (f.p.w.bits) {
      case 2: order_row<2>(x, straight, values); break;
      case 4: order_row<4>(x, straight, values); break;
      default: order_row<8>(x, straight, values); break;
    }
  }
  if constexpr (sizeof(T) == 1) {
    if (x.flip != 0)
      for (int64_t i = 0; i < x.k; ++i) values[i] = T(values[i] ^ x.flip);
  }
  data.scratch[x.flag_at + row] = std::byte{!is_finite};
}

// Sums of a row that is not finite, as they are defined.
void exact_sums(const Product& p, const Data& data, int64_t row, int64_t column, int64_t n,
                float* to) {
  for (int64_t j = 0; j < n; ++j) {
    float total = 0;
    for (int64_t k = 0; k < p.w.k; ++k) {
      float x;
      widen_row(p, data, row, k, 1, &x);
      total += x * weight_of(p.w, data, k, column + j);
    }
    to[j] = total;
  }
}

}  // namespace

Status arrange(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Few*>(args);
  for (int64_t row = begin; row < end; ++row)
    f.x.is_bytes ? arrange_row<int8_t>(f, data, row) : arrange_row<float>(f, data, row);
  return {};
}

void place_rows(Few& f, Plan& plan) {
  const int64_t m = f.p.m;
  Arranged& x = f.x;
  const auto whole = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  x.value_bytes = whole(x.k * (x.is_bytes ? 1 : int64_t(sizeof(float)))) | 64;  // odd lines
  x.n_blocks = (x.n_blocks + 15) / 16 * 16;
  x.step_at = m * x.value_bytes;
  x.sum_at = x.step_at + m * x.n_blocks * int64_t(sizeof(float));
  x.flag_at = x.sum_at + m * x.n_blocks * int64_t(sizeof(float));
  plan.scratch_bytes = x.flag_at + whole(m);
  const int64_t own = chain_local_bytes(f.p.chain) + 2 * (x.k + kLanes) * int64_t(sizeof(float));
  if (plan.local_bytes < own) plan.local_bytes = own;
  plan.add(arrange, m, x.k / 2);
}

void finish_sums(const Few& f, const Data& data, int64_t row, int64_t column, int64_t n,
                 float* sums) {
  if (!f.x.is_finite(data, row)) exact_sums(f.p, data, row, column, n, sums);
  finish_row(f.p, data, row, column, n, sums);
}

}  // namespace sdx::SDX_ISA::nbits
