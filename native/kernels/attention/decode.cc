// Attention for few query rows (decoding): softmax(q k^T) v as matrix-vector products. Keys and
// values are read once, in place and in order, by all rows of all heads that share them (GQA), in
// blocks of kDecodeKeys with an online softmax. Long caches are split over items (split-K); the
// last phase combines the partial results, each an accumulator with its maximum and denominator.
#include "kernels/attention/attention.h"

namespace sdx::SDX_ISA {
namespace {

// Register tiles: 4 rows x 4 keys (or 4 vectors of a value row) are 16 accumulators, half of the
// registers of AVX-512 and all that AVX2 and SSE2 can spare with 2 rows.
constexpr int kAtOnce = 4;                              // keys, or vectors of a row of values
constexpr int kRowGroup = SDX_VEC_BYTES == 64 ? 4 : 2;  // query rows

// Layout of local memory: for each query row its query, scores, accumulators, maximum, denominator.
struct Rows {
  int64_t n, floats;
  float* memory;
  SDX_INLINE float* query(int64_t i) const { return memory + i * floats; }
  SDX_INLINE float* scores(const AttentionArgs& a, int64_t i) const { return query(i) + a.depth; }
  SDX_INLINE float* acc(const AttentionArgs& a, int64_t i) const {
    return scores(a, i) + kDecodeKeys;
  }
  SDX_INLINE float& top(const AttentionArgs& a, int64_t i) const { return acc(a, i)[a.width]; }
  SDX_INLINE float& total(const AttentionArgs& a, int64_t i) const {
    return acc(a, i)[a.width + 1];
  }
};

// scores[r][t] = scale * q[r] . k[t] for R rows, `stride` floats apart, and n keys.
template <int R, class T>
SDX_INLINE void dot_keys(const AttentionArgs& a, const float* q, int64_t stride, const T* k,
                         int64_t n, float* scores) {
  const int64_t key_stride = a.k.row_stride;
  int64_t t = 0;
  for (; t + kAtOnce <= n; t += kAtOnce, k += kAtOnce * key_stride) {
    f32v dots[R][kAtOnce] = {};
    vloop(a.depth, [&](int64_t i, auto lanes) {
      f32v key[kAtOnce];
      for (int j = 0; j < kAtOnce; ++j) key[j] = load_float(k + j * key_stride + i, lanes);
      for (int r = 0; r < R; ++r) {
        const f32v x = load(q + r * stride + i, lanes);
        for (int j = 0; j < kAtOnce; ++j) dots[r][j] += x * key[j];
      }
    });
    for (int r = 0; r < R; ++r) {
      const f32q all = fold_sums(dots[r]) * a.scale;
      memcpy(scores + r * stride + t, &all, sizeof all);
    }
  }
  for (; t < n; ++t, k += key_stride)
    for (int r = 0; r < R; ++r) {
      f32v sum{};
      vloop(a.depth, [&](int64_t i, auto lanes) {
        sum += load(q + r * stride + i, lanes) * load_float(k + i, lanes);
      });
      scores[r * stride + t] = a.scale * fold_sum(sum);
    }
}

// acc[r] += weights[r] * V for columns from c on, in slabs of W vectors whose accumulators stay in
// registers over all n keys. Returns the first column that is left.
template <int R, int W, class T>
SDX_INLINE int64_t add_slabs(const AttentionArgs& a, const float* weights, int64_t stride,
                             const T* v, int64_t n, float* acc, int64_t c) {
  for (; c + W * kLanes <= a.width; c += W * kLanes) {
    f32v slab[R][W];
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < W; ++j) slab[r][j] = load(acc + r * stride + c + j * kLanes);
    for (int64_t t = 0; t < n; ++t) {
      const T* row = v + t * a.v.row_stride + c;
      for (int j = 0; j < W; ++j) {
        const f32v x = load_float(row + j * kLanes, Full{});
        for (int r = 0; r < R; ++r) slab[r][j] += weights[r * stride + t] * x;
      }
    }
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < W; ++j) store(acc + r * stride + c + j * kLanes, slab[r][j]);
  }
  return c;
}

// The same for all columns: slabs of 4 vectors, of 2, then single vectors.
template <int R, class T>
SDX_INLINE void add_values(const AttentionArgs& a, const float* weights, int64_t stride, const T* v,
                           int64_t n, float* acc) {
  int64_t done = add_slabs<R, kAtOnce>(a, weights, stride, v, n, acc, 0);
  done = add_slabs<R, kAtOnce / 2>(a, weights, stride, v, n, acc, done);
  vloop(a.width - done, [&](int64_t i, auto lanes) {
    const int64_t c = done + i;
    for (int r = 0; r < R; ++r) {
      f32v y = load(acc + r * stride + c, lanes);
      for (int64_t t = 0; t < n; ++t)
        y += weights[r * stride + t] * load_float(v + t * a.v.row_stride + c, lanes);
      store(acc + r * stride + c, y, lanes);
    }
  });
}

// Calls body(first row, constant number of rows) until all n rows are done.
template <class Body>
SDX_INLINE void in_groups(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kRowGroup <= n; i += kRowGroup) body(i, std::integral_constant<int, kRowGroup>{});
  for (; i < n; ++i) body(i, std::integral_constant<int, 1>{});
}

// Online softmax: replaces a block's scores by e^(score - maximum), and rescales accumulators and
// denominator if the block raised the maximum.
void weigh(const AttentionArgs& a, const Rows& rows, int64_t i, float top, int64_t n) {
  float& before = rows.top(a, i);
  if (top > before || top != top) {
    if (before != -kInf) {
      const float factor = vexp(splat(before - top))[0];
      float* acc = rows.acc(a, i);
      vloop(a.width,
            [&](int64_t j, auto lanes) { store(acc + j, load(acc + j, lanes) * factor, lanes); });
      rows.total(a, i) *= factor;
    }
    before = top;
  }
  float* scores = rows.scores(a, i);
  rows.total(a, i) += fold_sum(exponentiate(scores, shift_of(before), scores, n));
}

// Adds one block of keys to all rows of a group of heads.
template <class T>
void add_block(const AttentionArgs& a, const Data& data, const Rows& rows,
               const QueryPosition& position, int64_t batch, int64_t first, int64_t n) {
  const T* k = input<T>(data, kK) + a.k.batches.offset(batch) + first * a.k.row_stride;
  const T* v = input<T>(data, kV) + a.v.batches.offset(batch) + first * a.v.row_stride;
  in_groups(rows.n, [&](int64_t i, auto count) {
    dot_keys<count>(a, rows.query(i), rows.floats, k, n, rows.scores(a, i));
  });
  for (int64_t i = 0; i < rows.n; ++i) {
    const int64_t row = i % a.rows;
    const void* mask = mask_at(a, data, batch + i / a.rows, row, first);
    weigh(a, rows, i,
          finish_scores(a, mask, visible_keys(a, position, row), first, rows.scores(a, i), n), n);
  }
  in_groups(rows.n, [&](int64_t i, auto count) {
    add_values<count>(a, rows.scores(a, i), rows.floats, v, n, rows.acc(a, i));
  });
}

// Widens the queries and initializes the accumulators: 0, maximum -inf, denominator 0.
template <class T>
void begin_rows(const AttentionArgs& a, const Data& data, const Rows& rows, int64_t batch) {
  for (int64_t i = 0; i < rows.n; ++i) {
    const T* q =
        input<T>(data, kQ) + a.q.batches.offset(batch + i / a.rows) + i % a.rows * a.q.row_stride;
    float* to = rows.query(i);
    vloop(a.depth, [&](int64_t j, auto lanes) { store(to + j, load_float(q + j, lanes), lanes); });
    memset(rows.acc(a, i), 0, size_t(a.width) * sizeof(float));
    rows.top(a, i) = -kInf, rows.total(a, i) = 0;
  }
}

// Output of a row whose accumulators are complete except for the sink.
template <class T>
void end_row(const AttentionArgs& a, const Data& data, int64_t batch, int64_t row, float* acc) {
  float &top = acc[a.width], &total = acc[a.width + 1];
  const float factor = add_sink(sink_of(a, data, batch), top, total);
  if (factor != 1)
    vloop(a.width,
          [&](int64_t j, auto lanes) { store(acc + j, load(acc + j, lanes) * factor, lanes); });
  finish_row(a, acc, total, output<T>(data) + a.out.batches.offset(batch) + row * a.out.row_stride);
}

// Items: parts of the keys of each group of heads that share keys and values.
template <class T>
Status run_decode(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AttentionArgs*>(args);
  const Rows rows{a.rows * a.group, decode_row_floats(a), reinterpret_cast<float*>(data.local)};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t stack = item / a.parts, part = item % a.parts, batch = stack * a.group;
    const QueryPosition position = position_of(a, data, batch);
    const KeyRange visible = visible_to_any(a, position, 0, a.rows);
    const int64_t count = visible.end - visible.begin;
    const int64_t last = visible.begin + part_begin(count, a.parts, part + 1);
    begin_rows<T>(a, data, rows, batch);
    for (int64_t t = visible.begin + part_begin(count, a.parts, part); t < last; t += kDecodeKeys)
      add_block<T>(a, data, rows, position, batch, t,
                   last - t < kDecodeKeys ? last - t : kDecodeKeys);
    for (int64_t i = 0; i < rows.n; ++i) {
      if (a.parts == 1) {
        end_row<T>(a, data, batch + i / a.rows, i % a.rows, rows.acc(a, i));
      } else {
        float* to = reinterpret_cast<float*>(data.scratch) + (item * rows.n + i) * (a.width + 2);
        memcpy(to, rows.acc(a, i), size_t(a.width + 2) * sizeof(float));
      }
    }
  }
  return {};
}

// Items: query rows. Combines the splits in the order of the keys, whatever thread computed them.
template <class T>
Status combine_splits(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AttentionArgs*>(args);
  auto* acc = reinterpret_cast<float*>(data.local);
  const int64_t n = a.rows * a.group, floats = a.width + 2;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t stack = item / n, i = item % n;
    const float* from =
        reinterpret_cast<const float*>(data.scratch) + (stack * a.parts * n + i) * floats;
    float top = -kInf, total = 0;
    for (int64_t p = 0; p < a.parts; ++p) {
      const float other = from[p * n * floats + a.width];
      if (other > top || other != other) top = other;
    }
    memset(acc, 0, size_t(a.width) * sizeof(float));
    for (int64_t p = 0; p < a.parts; ++p, from += n * floats) {
      if (from[a.width] == -kInf) continue;
      const float factor = vexp(splat(from[a.width] - top))[0];
      total += from[a.width + 1] * factor;
      vloop(a.width, [&](int64_t j, auto lanes) {
        store(acc + j, load(acc + j, lanes) + load(from + j, lanes) * factor, lanes);
      });
    }
    acc[a.width] = top, acc[a.width + 1] = total;
    end_row<T>(a, data, stack * a.group + i / a.rows, i % a.rows, acc);
  }
  return {};
}

}  // namespace

int64_t decode_row_floats(const AttentionArgs& a) {
  return (a.depth + kDecodeKeys + a.width + 2 + 15) / 16 * 16;
}

DecodePhases decode_phases(DType dtype) {
  switch (dtype) {
    case DType::f16: return {run_decode<F16>, combine_splits<F16>};
    case DType::bf16: return {run_decode<BF16>, combine_splits<BF16>};
    default: return {run_decode<float>, combine_splits<float>};
  }
}

}  // namespace sdx::SDX_ISA
