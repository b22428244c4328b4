// What the forms of attention share: softmax(scale * q k^T + mask) v for stacks of heads.
#pragma once

#include "kernels/gemm/stack.h"
#include "kernels/gemm/tile.h"
#include "kernels/kernel.h"
#include "simd/math.h"

namespace sdx::SDX_ISA {

// The matrices of one operand, with any strides; 0 repeats.
struct Heads {
  Axes batches;
  int64_t row_stride = 0, column_stride = 0;
};

struct AttentionArgs {
  int64_t batches, rows, keys, depth, width;  // q [rows, depth], k [keys, depth], v [keys, width]
  Heads q, k, v, mask, out;
  bool has_mask;
  bool zeroes;  // a row without a number for its result gives zeros, not NaN
  float scale;
  int64_t query_blocks, key_blocks;  // by which a head is cut; keys into kKeys at a time
  int64_t packed_floats;             // of one block of keys and values
  bool packs_own;                    // an item packs its keys and values itself
  int64_t scores_at, sums_at, part_at, row_at, packed_at;  // in a thread's own memory
};

constexpr int64_t kKeys = 512;

// Floats of a row of n that products write in whole panels; rows do not share sets of the cache.
constexpr int64_t row_floats(int64_t n) { return panels_of(n) * kPanel + 16; }

// All lanes as one number, in halves.
template <class Join>
SDX_INLINE float fold(f32v v, Join&& join) {
#if SDX_VEC_BYTES == 64
  const auto eight = join(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                          __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const auto eight = v;
#endif
#if SDX_VEC_BYTES >= 32
  const auto four = join(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                         __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  const auto four = eight;
#endif
  const auto two = join(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return join(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}
SDX_INLINE float fold_sum(f32v v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}
SDX_INLINE float fold_max(f32v v) {
  return fold(v, [](auto a, auto b) { return vmax(a, b); });
}

// Adds a row of the mask to a row of scores; the largest of them, or NaN.
float add_mask(const AttentionArgs& a, const float* mask, float* scores, int64_t n);

// to = e^(scores - shift); their sums by lane.
SDX_INLINE f32v exponents(const float* scores, float shift, float* to, int64_t n) {
  f32v total{};
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v e = vexp(load(scores + i, lanes, -kInf) - shift);
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
  return a.zeroes && factor != factor ? 0 : factor;
}

SDX_INLINE void finish_row(const AttentionArgs& a, const float* sums, float total, float* out) {
  const float factor = factor_of(a, total);
  const bool is_zero = a.zeroes && factor == 0;  // sums hold NaN there
  vloop(a.width, [&](int64_t i, auto lanes) {
    const f32v x = load(sums + i, lanes);
    store(out + i, is_zero ? f32v{} : x * factor, lanes);
  });
}

// Few queries: products of a row with matrices that are read once, as they lie.
Status few_rows(const void* args, const Data& data, int64_t begin, int64_t end);

// Many queries: blocks of them against packed blocks of keys and values.
Status pack_keys(const void* args, const Data& data, int64_t begin, int64_t end);
Status query_blocks(const void* args, const Data& data, int64_t begin, int64_t end);

}  // namespace sdx::SDX_ISA
