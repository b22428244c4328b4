// What the forms of attention share: softmax(scale * q k^T + mask) v for stacks of heads.
#pragma once

#include "kernels/kernel.h"
#include "kernels/matmul/operands.h"
#include "kernels/matmul/tile.h"
#include "simd/half.h"
#include "simd/math.h"
#include "simd/softmax_exp.h"

namespace sdx::SDX_ISA {

// The matrices of one operand, with any strides; 0 repeats.
struct Heads {
  StridedAxes batches;
  int64_t row_stride = 0, column_stride = 0;
};

// What becomes of a row without a number for its result.
enum class FullyMasked : int64_t {
  stays,   // NaN
  zeroes,  // zeros
  unseen,  // zeros where it sees no key; a NaN among its scores stays
};

enum Slot { kQ, kK, kV, kMask, kSpans, kSink };

struct AttentionArgs {
  int64_t batches, rows, keys, depth, width;  // q [rows, depth], k [keys, depth], v [keys, width]
  int64_t group;                              // heads of q that share one of k and v
  int64_t per_entry;                          // heads of q in one entry of the batch
  Heads q, k, v, mask, out;
  bool has_mask, has_spans, has_sink;
  bool has_zero_sink;    // a key of score 0 and value 0 more
  bool is_bottom_right;  // the last row stands at the last key, not the first at the first
  int64_t window_left;   // keys before its own place that a row sees; -1 for all
  int64_t window_right;  // and behind it
  int64_t sink_step;     // between the heads of the sink
  FullyMasked fully_masked;
  float scale, softcap;
  int64_t query_blocks, key_blocks;  // by which a head is cut; keys into kBlockKeys at a time
  int64_t packed_floats;             // of one block of keys and values, or pairs
  bool packs_own;                    // an item packs its keys and values itself
  int64_t scores_at, acc_at, block_out_at, row_at, packed_at;  // in a thread's own memory
  int64_t parts;  // by which the keys of few rows are cut
};

constexpr int64_t kBlockKeys = 512;

// Keys [begin, end) that a row sees.
struct KeyRange {
  int64_t begin, end;
};

// Where the rows of an entry of the batch stand.
struct QueryPosition {
  int64_t first, end;  // of its rows, of its keys
};

SDX_INLINE QueryPosition position_of(const AttentionArgs& a, const Data& data, int64_t batch) {
  if (!a.has_spans) return {a.is_bottom_right ? a.keys - a.rows : 0, a.keys};
  int32_t span[2];
  memcpy(span, input<int32_t>(data, kSpans) + batch / a.per_entry * 2, sizeof span);
  return {span[0], span[1] < a.keys ? span[1] : a.keys};
}

SDX_INLINE KeyRange visible_keys(const AttentionArgs& a, const QueryPosition& position,
                                 int64_t row) {
  const int64_t at = position.first + row;
  const int64_t begin = a.window_left < 0 || at < a.window_left ? 0 : at - a.window_left;
  int64_t end = a.window_right < 0 || position.end < at + a.window_right + 1
                    ? position.end
                    : at + a.window_right + 1;
  if (end < 0) end = 0;
  return {begin < end ? begin : end, end};
}

// The keys that some of the rows [row, row + rows) see.
SDX_INLINE KeyRange visible_to_any(const AttentionArgs& a, const QueryPosition& position,
                                   int64_t row, int64_t rows) {
  const KeyRange last = visible_keys(a, position, row + rows - 1);
  const int64_t begin = visible_keys(a, position, row).begin;
  return {begin < last.end ? begin : last.end, last.end};
}

// Floats of a row of n that products write in whole panels; rows do not share sets of the cache.
constexpr int64_t row_floats(int64_t n) { return panels_of(n) * kPanel + 16; }

typedef float f32q __attribute__((vector_size(16)));

// A vector as four lanes, joined in halves.
template <class Join>
SDX_INLINE f32q fold_quarter(f32v v, [[maybe_unused]] Join&& join) {
#if SDX_VEC_BYTES == 64
  const auto eight = join(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                          __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const auto eight = v;
#endif
#if SDX_VEC_BYTES >= 32
  return join(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
              __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  return eight;
#endif
}

// All lanes as one number.
template <class Join>
SDX_INLINE float fold(f32v v, Join&& join) {
  const f32q four = fold_quarter(v, join);
  const auto two = join(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return join(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}
SDX_INLINE float fold_sum(f32v v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}
// The sums of four vectors.
SDX_INLINE f32q fold_sums(const f32v (&v)[4]) {
  const auto add = [](auto a, auto b) { return a + b; };
  const f32q a = fold_quarter(v[0], add), b = fold_quarter(v[1], add);
  const f32q c = fold_quarter(v[2], add), d = fold_quarter(v[3], add);
  const f32q ab =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const f32q cd =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}
SDX_INLINE float fold_max(f32v v) {
  return fold(v, [](auto a, auto b) { return vmax(a, b); });
}

// What is done to n scores of a row, the first of them that of key `first`: the cap, a row of the
// mask, -inf for keys that the row does not see. The largest of them, or NaN.
float finish_scores(const AttentionArgs& a, const float* mask, const KeyRange& visible,
                    int64_t first, float* scores, int64_t n);

// The score of the key that stands for none, -inf where there is no such key.
SDX_INLINE float sink_of(const AttentionArgs& a, const Data& data, int64_t batch) {
  if (!a.has_sink) return a.has_zero_sink ? 0 : -kInf;
  float score;
  memcpy(&score, input<float>(data, kSink) + batch % a.per_entry * a.sink_step, sizeof score);
  return score;
}

// The largest score of a row and the sum of e^(score - top) when the sink is among them; what the
// sums before it are multiplied by.
SDX_INLINE float add_sink(float sink, float& top, float& total) {
  if (sink == -kInf) return 1;
  const float before = top;
  if (sink > top) top = sink;
  const float factor = before == top ? 1 : before == -kInf ? 0 : vexp(splat(before - top))[0];
  total = total * factor + vexp(splat(sink - top))[0];
  return factor;
}

// to = e^(scores - shift), which none exceeds; their sums by lane.
SDX_INLINE f32v exponentiate(const float* scores, float shift, float* to, int64_t n) {
  f32v total{};
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v e = vexp_softmax(load(scores + i, lanes, -kInf) - shift);
    store(to + i, e, lanes);
    total += e;
  });
  return total;
}

// What is taken from scores before e^x: nothing where all of them are shut out.
SDX_INLINE float shift_of(float top) { return top == -kInf ? 0 : top; }

// What a row of sums is multiplied by. No key was let in: 0 / 0.
SDX_INLINE float factor_of(const AttentionArgs& a, float total) {
  const float factor = total == 0 ? __builtin_nanf("") : 1 / total;
  const bool is_zero = a.fully_masked == FullyMasked::zeroes   ? factor != factor
                       : a.fully_masked == FullyMasked::unseen ? total == 0
                                                               : false;
  return is_zero ? 0 : factor;
}

template <class T>
SDX_INLINE void finish_row(const AttentionArgs& a, const float* sums, float total, T* out) {
  const float factor = factor_of(a, total);
  const bool is_zero = factor == 0 && !(total > 0);  // sums hold NaN there
  vloop(a.width, [&](int64_t i, auto lanes) {
    const f32v x = load(sums + i, lanes);
    store_float(out + i, is_zero ? f32v{} : x * factor, lanes);
  });
}

// Few queries: products of rows with matrices that are read once, as they lie.
struct DecodePhases {
  PhaseFn run, join;
};
DecodePhases decode_phases(DType dtype);
constexpr int64_t kDecodeKeys = 128;  // at a time
int64_t decode_row_floats(const AttentionArgs& a);

// Many queries: blocks of them against packed blocks of keys and values.
struct FlashPhases {
  PhaseFn pack, run;
};
FlashPhases flash_phases(DType dtype, bool is_bf16);

}  // namespace sdx::SDX_ISA
