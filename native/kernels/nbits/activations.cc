// Activations of the n-bit GEMV: rows of x quantized per block and reordered (see gemv.h), and the
// exact fallback for rows with NaN or infinity.
#include "kernels/nbits/gemv.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA::nbits {
namespace {

// n-major weights are read as vectors of packed codes; field i of all lanes (or bytes) must line up
// with one contiguous vector of x, so x is transposed within each vector's worth of codes.
template <int bits, class T>
void reorder_fields(const T* from, int64_t n, T* to) {
  constexpr int kFields = 8 * int(sizeof(T)) / bits, kCount = SDX_VEC_BYTES / int(sizeof(T));
  for (int64_t k = 0; k < n;
       k += kFields * kCount, from += kFields * kCount, to += kFields * kCount)
    for (int i = 0; i < kFields; ++i)
      for (int j = 0; j < kCount; ++j) to[i * kCount + j] = from[j * kFields + i];
}

// The same within each 32-bit word of weights, for tiles of words.
template <int bits>
void reorder_words(const int8_t* from, int64_t n, int8_t* to) {
  constexpr int kFields = 8 / bits;
  for (int64_t k = 0; k < n; k += 4 * kFields)
    for (int i = 0; i < kFields; ++i)
      for (int j = 0; j < 4; ++j) to[k + 4 * i + j] = from[k + j * kFields + i];
}

template <int bits, class T>
void reorder_row(const Activations& x, const T* from, T* to) {
  if constexpr (sizeof(T) == 1) {
    if (x.order == Order::words) return reorder_words<bits>(from, x.k, to);
  }
  reorder_fields<bits>(from, x.k, to);
}

// Horizontal reduction: joins halves of a vector until one lane is left.
template <class T, class F>
SDX_INLINE T reduce_lanes(Vec<T> v, F&& join) {
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
struct Max {
  template <class V>
  SDX_INLINE V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

// Result of quantizing the values of one block: their scale and their sum.
struct Block {
  float scale, sum;
  bool is_finite;
};

// Stores quantized values as signed bytes, each plane `plane` bytes after the one before it. Adding
// half of the range before the shift rounds, so that the remainder is a signed byte.
template <int x_bytes>
SDX_INLINE void store_planes(int8_t* to, int64_t plane, i32v codes, auto lanes) {
  if constexpr (x_bytes == 1) {
    store_i32(to, codes, lanes);
  } else {
    const i32v upper = (codes + 64) >> plane_shift(2), top = (upper + 128) >> plane_shift(1);
    store_i32(to, top, lanes);
    store_i32(to + plane, upper - (top << plane_shift(1)), lanes);
    store_i32(to + 2 * plane, codes - (upper << plane_shift(2)), lanes);
  }
}

// Symmetric quantization of n values of one block to x_bytes; floats are only copied and summed.
template <int x_bytes>
SDX_INLINE Block quantize_block(const float* x, int64_t n, Activation<x_bytes>* to, int64_t plane) {
  f32v total{};
  i32v top{};  // magnitudes compare like their bit patterns, with NaN above infinity
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v v = load(x + i, lanes);
    top = Max{}(top, (i32v)v & 0x7fffffff);
    total += v;
    if constexpr (x_bytes == 0) store(to + i, v, lanes);
  });
  const int32_t bits = reduce_lanes<int32_t>(top, Max{});
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  // Values near infinity would overflow the accumulators: such rows take the exact path.
  const bool is_finite = largest < 0x1p100f;
  if constexpr (x_bytes == 0) {
    return {1, reduce_lanes<float>(total, Sum{}), is_finite};
  } else {
    if (!is_finite) return {0, 0, false};
    const float denormal_scale =
        largest < 0x1p-80f ? 0x1p100f : 1;  // for rows so small that 1 / scale would overflow
    const float scale = largest / kMaxCode<x_bytes>;
    const float inverse = largest > 0 ? kMaxCode<x_bytes> / (largest * denormal_scale) : 0;
    i32v codes{};
    vloop(n, [&](int64_t i, auto lanes) {
      const f32v v = round_small(load(x + i, lanes) * denormal_scale * inverse);
      const i32v whole = __builtin_convertvector(v, i32v);
      codes += whole;
      store_planes<x_bytes>(to + i, plane, whole, lanes);
    });
    return {scale, float(reduce_lanes<int32_t>(codes, Sum{})) * scale, true};
  }
}

// Zero padding and reordering of a row, or of one of its byte planes.
template <class T>
void finish_plane(const Gemv& f, T* natural_order, T* values) {
  const Activations& x = f.x;
  for (int64_t i = f.p.w.k; i < x.k; ++i) natural_order[i] = 0;
  if (x.order != Order::natural_order) {
    switch (f.p.w.bits) {
      case 2: reorder_row<2>(x, natural_order, values); break;
      case 4: reorder_row<4>(x, natural_order, values); break;
      default: reorder_row<8>(x, natural_order, values); break;
    }
  }
  if constexpr (sizeof(T) == 1) {
    if (x.sign_flip != 0)
      for (int64_t i = 0; i < x.k; ++i) values[i] = T(values[i] ^ x.sign_flip);
  }
}

// Widens, quantizes and reorders one row; records its block scales and sums, and whether it is
// finite.
template <int x_bytes>
void quantize_row(const Gemv& f, const Data& data, int64_t row) {
  using T = Activation<x_bytes>;
  const Activations& x = f.x;
  const int64_t k = f.p.w.k;
  auto* wide = reinterpret_cast<float*>(data.local + chain_local_bytes(f.p.chain));
  auto* values = reinterpret_cast<T*>(data.scratch + row * x.value_bytes);
  T* natural_order = x.order == Order::natural_order ? values : reinterpret_cast<T*>(wide + x.k);
  const int64_t plane = x.plane_bytes / int64_t(sizeof(T));
  float* scales = reinterpret_cast<float*>(data.scratch + x.scale_at) + row * x.n_blocks;
  float* sums = reinterpret_cast<float*>(data.scratch + x.sum_at) + row * x.n_blocks;
  widen_row(f.p, data, row, 0, k, wide);
  bool is_finite = true;
  int64_t b = 0;
  for (int64_t at = 0; at < k; at += x.block, ++b) {
    const int64_t n = k - at < x.block ? k - at : x.block;
    const Block block = quantize_block<x_bytes>(wide + at, n, natural_order + at, plane);
    scales[b] = block.scale, sums[b] = block.sum;
    is_finite = is_finite && block.is_finite;
  }
  for (; b < x.n_blocks; ++b) scales[b] = sums[b] = 0;
  for (int d = 0; d < (x_bytes == 0 ? 1 : x_bytes); ++d)
    finish_plane(f, natural_order + d * plane, values + d * plane);
  data.scratch[x.flag_at + row] = std::byte{!is_finite};
}

// Columns of a row with NaN or infinity: sum of x * ((code - zero) * scale), as the op defines.
void exact_columns(const MatMul& p, const Data& data, int64_t row, int64_t column, int64_t n,
                   float* to) {
  constexpr int64_t kChunk = 64;  // rows of k at a time, on the stack
  alignas(64) float panel[kChunk * kPanel], x[kChunk], total[kPanel];
  alignas(64) std::byte local[2 * sizeof panel];
  const Unpack unpack = find_unpack(p.w);
  for (int64_t j = 0; j < n; j += kPanel) {
    const int64_t width = n - j < kPanel ? n - j : kPanel;
    memset(total, 0, sizeof total);
    for (int64_t k = 0; k < p.w.k; k += kChunk) {
      const int64_t values = p.w.k - k < kChunk ? p.w.k - k : kChunk;
      widen_row(p, data, row, k, values, x);
      unpack.run(p.w, data, {k, values, column + j, width}, panel, local);
      for (int64_t i = 0; i < values; ++i)
        vloop(width, [&](int64_t c, auto lanes) {
          store(total + c, load(total + c, lanes) + x[i] * load(panel + i * kPanel + c, lanes),
                lanes);
        });
    }
    memcpy(to + j, total, size_t(width) * sizeof(float));
  }
}

}  // namespace

Status quantize_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Gemv*>(args);
  for (int64_t row = begin; row < end; ++row) {
    switch (f.x.x_bytes) {
      case 0: quantize_row<0>(f, data, row); break;
      case 1: quantize_row<1>(f, data, row); break;
      default: quantize_row<kExactBytes>(f, data, row); break;
    }
  }
  return {};
}

void plan_activations(Gemv& f, Plan& plan) {
  const int64_t m = f.p.m;
  Activations& x = f.x;
  const auto whole = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  x.plane_bytes = whole(x.k * (x.x_bytes == 0 ? int64_t(sizeof(float)) : 1)) |
                  64;  // odd number of cache lines: rows in different sets
  x.value_bytes = x.plane_bytes * (x.x_bytes == 0 ? 1 : x.x_bytes);
  x.n_blocks = (x.n_blocks + 15) / 16 * 16;
  x.scale_at = m * x.value_bytes;
  x.sum_at = x.scale_at + m * x.n_blocks * int64_t(sizeof(float));
  x.flag_at = x.sum_at + m * x.n_blocks * int64_t(sizeof(float));
  plan.scratch_bytes = x.flag_at + whole(m);
  const int64_t own =
      chain_local_bytes(f.p.chain) + x.value_bytes + (x.k + 2 * kLanes) * int64_t(sizeof(float));
  if (plan.local_bytes < own) plan.local_bytes = own;
  plan.add(quantize_rows, m, x.k / 2);
}

void finish_columns(const Gemv& f, const Data& data, int64_t row, int64_t column, int64_t n,
                    float* acc) {
  if (!f.x.is_finite(data, row)) exact_columns(f.p, data, row, column, n, acc);
  finish_row(f.p, data, row, column, n, acc);
}

}  // namespace sdx::SDX_ISA::nbits
