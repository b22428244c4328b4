// Attention of few queries, as in decoding: keys and values are read once, in the order they lie.
#include "kernels/attention/attention.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kAtOnce = 4;  // keys, and vectors of a row of values

// scores[t] = scale * q . k[t]
void dot_keys(const AttentionArgs& a, const float* q, const float* k, float* scores) {
  const int64_t stride = a.k.row_stride;
  int64_t t = 0;
  for (; t + kAtOnce <= a.keys; t += kAtOnce, k += kAtOnce * stride) {
    f32v sums[kAtOnce] = {};
    vloop(a.depth, [&](int64_t i, auto lanes) {
      const f32v x = load(q + i, lanes);
      for (int j = 0; j < kAtOnce; ++j) sums[j] += x * load(k + j * stride + i, lanes);
    });
    for (int j = 0; j < kAtOnce; ++j) scores[t + j] = a.scale * fold_sum(sums[j]);
  }
  for (; t < a.keys; ++t, k += stride) {
    f32v sum{};
    vloop(a.depth, [&](int64_t i, auto lanes) { sum += load(q + i, lanes) * load(k + i, lanes); });
    scores[t] = a.scale * fold_sum(sum);
  }
}

// sums = weights times the rows of v.
void add_values(const AttentionArgs& a, const float* weights, const float* v, float* sums) {
  const int64_t stride = a.v.row_stride;
  int64_t c = 0;
  for (; c + kAtOnce * kLanes <= a.width; c += kAtOnce * kLanes) {
    f32v acc[kAtOnce] = {};
    for (int64_t t = 0; t < a.keys; ++t)
      for (int j = 0; j < kAtOnce; ++j)
        acc[j] += weights[t] * load(v + t * stride + c + j * kLanes);
    for (int j = 0; j < kAtOnce; ++j) store(sums + c + j * kLanes, acc[j]);
  }
  vloop(a.width - c, [&](int64_t i, auto lanes) {
    f32v acc{};
    for (int64_t t = 0; t < a.keys; ++t) acc += weights[t] * load(v + t * stride + c + i, lanes);
    store(sums + c + i, acc, lanes);
  });
}

}  // namespace

Status few_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AttentionArgs*>(args);
  auto* scores = reinterpret_cast<float*>(data.local);
  float* sums = scores + a.keys;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / a.rows, row = item % a.rows;
    dot_keys(a, input<float>(data, 0) + a.q.batches.offset(batch) + row * a.q.row_stride,
             input<float>(data, 1) + a.k.batches.offset(batch), scores);
    const float* mask = nullptr;
    if (a.has_mask)
      mask = input<float>(data, 3) + a.mask.batches.offset(batch) + row * a.mask.row_stride;
    const float top = add_mask(a, mask, scores, a.keys);
    const f32v total = exponents(scores, shift_of(top), scores, a.keys);
    add_values(a, scores, input<float>(data, 2) + a.v.batches.offset(batch), sums);
    finish_row(a, sums, fold_sum(total),
               output<float>(data) + a.out.batches.offset(batch) + row * a.out.row_stride);
  }
  return {};
}

}  // namespace sdx::SDX_ISA
