// Definitions shared by the attention kernels: softmax(scale * q k^T + mask) v for batches of
// heads, with causal and sliding windows, grouped heads (GQA/MQA) and attention sinks.
#pragma once

#include "kernels/kernel.h"
#include "kernels/matmul/operands.h"
#include "kernels/matmul/tile.h"
#include "simd/half.h"
#include "simd/masks.h"
#include "simd/math.h"
#include "simd/softmax_exp.h"

namespace sdx::SDX_ISA {

// Strides of one operand's matrices; 0 where heads or rows are broadcast.
struct Heads {
  StridedAxes batches;
  int64_t row_stride = 0, column_stride = 0;
};

// Result of a query row whose softmax is 0 / 0, because every key is masked or a score is NaN.
enum class FullyMasked : int64_t {
  nan,
  zeros,
  zeros_unless_nan,  // zeros if every key is masked; a NaN among the scores stays NaN
};

enum AttentionOperand : int { kQ, kK, kV, kMask, kSpans, kSink, kKeep };

struct AttentionArgs {
  int64_t batches, rows, keys, depth, width;  // q [rows, depth], k [keys, depth], v [keys, width]
  int64_t group;                              // heads of q per head of k and v (GQA)
  int64_t per_entry;                          // heads of q in one batch entry
  Heads q, k, v, mask, keep, out, lse;
  bool has_mask, has_spans, has_sink;
  bool is_bool_mask;     // true for keys that are visible, else floats that are added
  bool has_keep;         // dropout: which softmax weights are kept
  bool has_lse;          // output 1: logsumexp of each row's scores
  bool has_zero_sink;    // one more key of score 0 and value 0 (softmax plus one)
  bool is_bottom_right;  // causal diagonal ends at the last key, else starts at the first
  int64_t window_left;   // visible keys before a row's own position; -1: all
  int64_t window_right;  // visible keys after it: 0 for causal; -1: all
  int64_t sink_stride;   // stride of the sink's heads
  FullyMasked fully_masked;
  float scale, softcap;
  float keep_scale;                  // factor of the weights that dropout keeps
  int64_t query_blocks, key_blocks;  // blocks of a head: nearly equal, kBlockKeys
  int64_t packed_floats;             // elements of one packed block of keys and values
  bool packs_own;                    // into local memory, not in a phase before
  int64_t scores_at, acc_at, block_out_at, row_at, packed_at;  // offsets in local memory
  int64_t parts;  // splits of the keys in decoding (split-K)
};

// Keys of a flash block: 512 keys and values of 64 floats are 256 KB packed, which stays in L2.
constexpr int64_t kBlockKeys = 512;

// Keys [begin, end).
struct KeyRange {
  int64_t begin, end;
};

// Position of a batch entry's first query row among its keys, and the number of its keys.
struct QueryPosition {
  int64_t first, end;  // the first row's position, one past the last key
};

// `spans` gives both per batch entry (padding, KV cache); else all entries are the same.
SDX_INLINE QueryPosition position_of(const AttentionArgs& a, const Data& data, int64_t batch) {
  if (!a.has_spans) return {a.is_bottom_right ? a.keys - a.rows : 0, a.keys};
  int32_t span[2];
  memcpy(span, input<int32_t>(data, kSpans) + batch / a.per_entry * 2, sizeof span);
  return {span[0], span[1] < a.keys ? span[1] : a.keys};
}

// Keys that a row attends to: a causal or sliding window around its position, clipped to the
// entry's keys.
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

// Union of the visible keys of rows [row, row + rows); windows move on with the row.
SDX_INLINE KeyRange visible_to_any(const AttentionArgs& a, const QueryPosition& position,
                                   int64_t row, int64_t rows) {
  const KeyRange last = visible_keys(a, position, row + rows - 1);
  const int64_t begin = visible_keys(a, position, row).begin;
  return {begin < last.end ? begin : last.end, last.end};
}

// Row stride of a buffer that matmuls write in whole panels; the 16 extra floats keep neighbouring
// rows out of one set of the L1 cache.
constexpr int64_t row_floats(int64_t n) { return panels_of(n) * kPanel + 16; }

typedef float f32q __attribute__((vector_size(16)));

// A vector reduced to four lanes by joining halves.
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
// The sums of four vectors, as four lanes: fewer shuffles than four separate sums.
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

// The mask of a row of scores from a key on: floats or bools; null if there is none.
SDX_INLINE const void* mask_at(const AttentionArgs& a, const Data& data, int64_t batch, int64_t row,
                               int64_t key) {
  if (!a.has_mask) return nullptr;
  const int64_t at =
      a.mask.batches.offset(batch) + row * a.mask.row_stride + key * a.mask.column_stride;
  if (a.is_bool_mask) return input<uint8_t>(data, kMask) + at;
  return input<float>(data, kMask) + at;
}

// Which softmax weights of a row dropout keeps, from a key on; null if it keeps all.
SDX_INLINE const uint8_t* keep_at(const AttentionArgs& a, const Data& data, int64_t batch,
                                  int64_t row, int64_t key) {
  if (!a.has_keep) return nullptr;
  return input<uint8_t>(data, kKeep) + a.keep.batches.offset(batch) + row * a.keep.row_stride +
         key * a.keep.column_stride;
}

// Adds a mask of floats to n scores, or sets those to -inf where a mask of bools is false.
void apply_mask(const AttentionArgs& a, const void* mask, float* scores, int64_t n);

// Sets scores of keys outside the visible ones to -inf; `first` is the key of scores[0].
SDX_INLINE void hide_keys(const KeyRange& visible, int64_t first, float* scores, int64_t n) {
  for (int64_t i = 0; i < n && first + i < visible.begin; ++i) scores[i] = -kInf;
  for (int64_t i = visible.end > first ? visible.end - first : 0; i < n; ++i) scores[i] = -kInf;
}

// Turns raw scores of one row into softmax inputs, in place: softcap, mask row, -inf for keys that
// are not visible. `first` is the key of scores[0]. Returns the largest score, or NaN.
float finish_scores(const AttentionArgs& a, const void* mask, const KeyRange& visible,
                    int64_t first, float* scores, int64_t n);

// Score of the attention sink, a key without value; -inf if there is none.
SDX_INLINE float sink_of(const AttentionArgs& a, const Data& data, int64_t batch) {
  if (!a.has_sink) return a.has_zero_sink ? 0 : -kInf;
  float score;
  memcpy(&score, input<float>(data, kSink) + batch % a.per_entry * a.sink_stride, sizeof score);
  return score;
}

// Adds the sink to the online softmax (`top` is the running maximum, `total` the running
// denominator). Returns the factor by which accumulators must be rescaled.
SDX_INLINE float add_sink(float sink, float& top, float& total) {
  if (sink == -kInf) return 1;
  const float before = top;
  if (sink > top) top = sink;
  const float factor = before == top ? 1 : before == -kInf ? 0 : vexp(splat(before - top))[0];
  total = total * factor + vexp(splat(sink - top))[0];
  return factor;
}

// to[i] = e^(scores[i] - shift), all <= 1. Returns the partial sums by lane.
SDX_INLINE f32v exponentiate(const float* scores, float shift, float* to, int64_t n) {
  f32v total{};
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v e = vexp_softmax(load(scores + i, lanes, -kInf) - shift);
    store(to + i, e, lanes);
    total += e;
  });
  return total;
}

// What is subtracted before e^x: the maximum, or 0 where all scores are -inf (inf - inf is NaN).
SDX_INLINE float shift_of(float top) { return top == -kInf ? 0 : top; }

// Final scale of a row's accumulators, 1 / denominator; the denominator is 0 if no key was visible.
SDX_INLINE float factor_of(const AttentionArgs& a, float total) {
  const float factor = total == 0 ? __builtin_nanf("") : 1 / total;
  const bool is_zero = a.fully_masked == FullyMasked::zeros              ? factor != factor
                       : a.fully_masked == FullyMasked::zeros_unless_nan ? total == 0
                                                                         : false;
  return is_zero ? 0 : factor;
}

template <class T>
SDX_INLINE void finish_row(const AttentionArgs& a, const float* acc, float total, T* out) {
  const float factor = factor_of(a, total) * a.keep_scale;
  const bool is_zero = factor == 0 && !(total > 0);  // accumulators hold NaN there
  vloop(a.width, [&](int64_t i, auto lanes) {
    const f32v x = load(acc + i, lanes);
    store_float(out + i, is_zero ? f32v{} : x * factor, lanes);
  });
}

// Sizes, and which mask there is; `read_training` also reads the settings of the training kernels.
void read_sizes(const Call& call, AttentionArgs& a);
void read_training(const Call& call, AttentionArgs& a);

// Strides of an operand with the `lead` batch axes of `whole`; missing and unit axes are broadcast.
Heads heads_of(const View& view, const View& whole, int lead);

// [.., rows, heads, width] as [.., heads, rows, width].
View heads_first(const View& view);

// [.., rows] as matrices of one column.
SDX_INLINE View as_columns(const View& view) {
  View matrices = view;
  matrices.dims[view.rank] = 1, matrices.strides[view.rank] = 0;
  ++matrices.rank;
  return matrices;
}

// GQA: [.., heads, rows, columns] as [.., heads / group, group, rows, columns]. k and v
// (`is_shared`) get a group axis of size 1, so that the heads of q broadcast over them.
View grouped(const View& view, int64_t group, bool is_shared);

// Reads sizes, batches and strides of the inputs; `whole` is the output, [.., heads, rows, width].
// Returns it with grouped heads.
View read_operands(const Call& call, const View& whole, AttentionArgs& a);

// Decoding (few query rows, decode.cc): keys and values are read once, in place.
struct DecodePhases {
  PhaseFn run, combine;
};
DecodePhases decode_phases(DType dtype);
constexpr int64_t kDecodeKeys = 128;  // keys of a block: its scores and values stay in L1
int64_t decode_row_floats(const AttentionArgs& a);

// Prefill (many query rows, flash.cc): blocks of queries against packed blocks of keys and values.
struct FlashPhases {
  PhaseFn pack, run;
};
FlashPhases flash_phases(DType dtype, bool is_bf16);

}  // namespace sdx::SDX_ISA
