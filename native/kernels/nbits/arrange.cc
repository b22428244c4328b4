// Rows of x in the order in which few rows are multiplied, and the rows that cannot be.
#include "kernels/nbits/few.h"

namespace sdx::SDX_ISA::nbits {
namespace {

constexpr int64_t kPiece = 256;  // of a row that is looked at; no block of x is larger

// Where value k of a row goes: weights along k lie in vectors of fields, each field of all bytes
// or lanes a vector of x.
template <class T>
SDX_INLINE void spread(const Arranged& x, int bits, const float* from, int64_t k, int64_t n,
                       T* to) {
  if (!x.is_along) {
    for (int64_t i = 0; i < n; ++i) to[k + i] = T(from[i]);
    return;
  }
  const int fields = 8 * int(sizeof(T)) / bits;
  constexpr int kCount = SDX_VEC_BYTES / int(sizeof(T));
  const int64_t whole = int64_t(fields) * kCount;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = (k + i) % whole;
    to[k + i - at + at % fields * kCount + at / fields] = T(from[i]);
  }
}

// A block in steps; they and their sum are exact.
SDX_INLINE float round_block(float* x, int64_t n, float top, float& sum) {
  const float step = top / 127, inverse = top > 0x1p-100f ? 127 / top : 0;
  f32v total{};
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v steps = round_small(load(x + i, lanes) * inverse);
    total += steps;
    store(x + i, steps, lanes);
  });
  sum = reduce_sum(total) * step;
  return step;
}

}  // namespace

Status arrange(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& f = *static_cast<const Few*>(args);
  const Arranged& x = f.x;
  for (int64_t row = begin; row < end; ++row) {
    std::byte* values = data.scratch + row * x.value_bytes;
    float* steps = reinterpret_cast<float*>(data.scratch + x.step_at) + row * x.n_blocks;
    float* sums = reinterpret_cast<float*>(data.scratch + x.sum_at) + row * x.n_blocks;
    memset(values, 0, size_t(x.value_bytes));
    memset(steps, 0, size_t(x.n_blocks) * sizeof(float));
    memset(sums, 0, size_t(x.n_blocks) * sizeof(float));
    bool is_finite = true;
    for (int64_t k = 0; k < f.p.w.k; k += x.block) {
      float piece[kPiece + kLanes];
      const int64_t n = f.p.w.k - k < x.block ? f.p.w.k - k : x.block;
      widen_row(f.p, data, row, k, n, piece);
      f32v top{}, total{};
      vloop(n, [&](int64_t i, auto lanes) {
        const f32v v = load(piece + i, lanes);
        top = vmax(top, (f32v)((u32v)v & 0x7fffffffu));
        total += v;
      });
      const float most = reduce_max(top);
      float sum = reduce_sum(total);
      // A sum that is not finite has a part that is not, or comes near to it.
      is_finite = is_finite && sum - sum == 0 && most < kInf;
      if (x.is_bytes) {
        steps[k / x.block] = round_block(piece, n, is_finite ? most : 0, sum);
        spread(x, f.p.w.bits, piece, k, n, reinterpret_cast<int8_t*>(values));
      } else {
        spread(x, f.p.w.bits, piece, k, n, reinterpret_cast<float*>(values));
      }
      sums[k / x.block] = sum;
    }
    data.scratch[x.flag_at + row] = std::byte{!is_finite};
  }
  return {};
}

void place_rows(Few& f, Plan& plan) {
  const int64_t m = f.p.m;
  Arranged& x = f.x;
  const auto whole = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
  x.value_bytes = whole(x.k * (x.is_bytes ? 1 : int64_t(sizeof(float))));
  x.n_blocks = (x.n_blocks + 15) / 16 * 16;
  x.step_at = m * x.value_bytes;
  x.sum_at = x.step_at + m * x.n_blocks * int64_t(sizeof(float));
  x.flag_at = x.sum_at + m * x.n_blocks * int64_t(sizeof(float));
  plan.scratch_bytes = x.flag_at + whole(m);
  plan.add(arrange, m, x.k / 2);
}

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

}  // namespace sdx::SDX_ISA::nbits
