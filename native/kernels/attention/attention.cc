// Attention as one step: scores never leave the cache.
//
// attention   q [.., rows, depth], k [.., keys, depth], v [.., keys, width], mask? [.., rows, keys]
//   ints    heads lie inside the rows of the output; rows without a number give zeros
//   floats  scale
#include "kernels/attention/attention.h"

namespace sdx::SDX_ISA {

float add_mask(const AttentionArgs& a, const float* mask, float* scores, int64_t n) {
  f32v top = splat(-kInf);
  if (!a.has_mask) {
    vloop(n, [&](int64_t i, auto lanes) { top = vmax(top, load(scores + i, lanes, -kInf)); });
    return fold_max(top);
  }
  const int64_t stride = a.mask.column_stride;
  if (stride != 0 && stride != 1) {
    for (int64_t i = 0; i < n; ++i) scores[i] += mask[i * stride];
    vloop(n, [&](int64_t i, auto lanes) { top = vmax(top, load(scores + i, lanes, -kInf)); });
    return fold_max(top);
  }
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v added = stride == 1 ? load(mask + i, lanes) : splat(mask[0]);
    const f32v x = load(scores + i, lanes, -kInf) + added;
    store(scores + i, x, lanes);
    top = vmax(top, x);
  });
  return fold_max(top);
}

namespace {

constexpr int64_t kFewRows = 4;
constexpr int64_t kMostScores = 48 * 1024;  // floats of a block of scores
constexpr int64_t kEnough = 8;              // items that balance
constexpr int64_t kFewest = 2 * kTileRows;  // rows of a block worth packing for

Heads heads_of(const View& view, const View& whole, int lead) {
  Heads heads;
  const int missing = lead + 2 - view.rank;
  for (int i = 0; i < lead; ++i) {
    const bool repeats = i < missing || view.dims[i - missing] == 1;
    heads.batches.add(whole.dims[i], repeats ? 0 : view.strides[i - missing]);
  }
  const auto stride = [&](int axis) {
    return view.rank < -axis || view.dim(axis) == 1 ? 0 : view.stride(axis);
  };
  heads.row_stride = stride(-2);
  heads.column_stride = stride(-1);
  return heads;
}

// The output as [.., heads, rows, width], whichever way it lies.
View output_of(const View& out, bool is_inside) {
  View turned = out;
  if (!is_inside) return turned;
  const int row = out.rank - 3, head = out.rank - 2;
  turned.dims[row] = out.dims[head], turned.strides[row] = out.strides[head];
  turned.dims[head] = out.dims[row], turned.strides[head] = out.strides[row];
  return turned;
}

void plan_blocks(AttentionArgs& a, Plan& plan) {
  const int64_t width = a.keys < kKeys ? a.keys : kKeys;
  int64_t most = kMostScores / (width > 0 ? width : 1);
  most = most > kBlockRows ? kBlockRows : most < kFewest ? kFewest : most;
  a.query_blocks = (a.rows + most - 1) / most;
  while (a.batches * a.query_blocks < kEnough && a.rows / (a.query_blocks + 1) >= kFewest)
    ++a.query_blocks;
  const int64_t rows = (a.rows + a.query_blocks - 1) / a.query_blocks;
  a.packs_own = a.query_blocks == 1;
  a.packed_floats = packed_floats(a.depth, width) + packed_floats(width, a.width);
  int64_t at = kBlockBytes;
  const auto take = [&](int64_t floats) {
    const int64_t here = at;
    at += (floats * int64_t(sizeof(float)) + 63) / 64 * 64;
    return here;
  };
  a.scores_at = take(rows * row_floats(width));
  a.sums_at = take(rows * row_floats(a.width));
  a.part_at = take(rows * row_floats(a.width));
  a.row_at = take(rows * (kLanes + 2));
  a.packed_at = take(a.packs_own ? a.packed_floats : 0);
  plan.local_bytes = at;
  const int64_t pack_work = width * (a.depth + a.width) / 4;
  if (!a.packs_own) {
    plan.scratch_bytes = a.batches * a.key_blocks * a.packed_floats * int64_t(sizeof(float));
    plan.add(pack_keys, a.batches * a.key_blocks, pack_work);
  }
  const int64_t work = rows * a.keys * (a.depth + a.width + 16) / (SDX_VEC_BYTES / 2);
  plan.add(query_blocks, a.batches * a.query_blocks, work + (a.packs_own ? pack_work : 0));
}

Status attention(const Call& call, Plan& plan) {
  auto* args = plan.make<AttentionArgs>();
  plan.args = args;
  AttentionArgs& a = *args;
  const View &q = call.in[0], &k = call.in[1], &v = call.in[2], &mask = call.in[3];
  const View out = output_of(call.out[0], call.ints[0] != 0);
  const int lead = out.rank - 2;
  a.rows = q.dim(-2), a.depth = q.dim(-1), a.keys = k.dim(-2), a.width = v.dim(-1);
  a.batches = out.count(0, lead);
  a.q = heads_of(q, out, lead), a.k = heads_of(k, out, lead), a.v = heads_of(v, out, lead);
  a.out = heads_of(out, out, lead);
  a.has_mask = mask.is_given();
  if (a.has_mask) a.mask = heads_of(mask, out, lead);
  a.zeroes = call.ints[1] != 0 || a.keys == 0;  // a sum over nothing is 0
  a.scale = float(call.floats[0]);
  a.key_blocks = (a.keys + kKeys - 1) / kKeys;
  if (out.count() == 0) {
    plan.add(few_rows, 0, 1);
    return {};
  }
  const bool lies_well = (a.k.column_stride == 1 || a.depth == 1) &&
                         (a.v.column_stride == 1 || a.width == 1) &&
                         (a.q.column_stride == 1 || a.depth == 1);
  if (a.keys > 0 && !(a.rows < kFewRows && lies_well)) {
    plan_blocks(a, plan);
    return {};
  }
  a.row_at = (a.keys + a.width) * int64_t(sizeof(float));
  plan.local_bytes = a.row_at;
  plan.add(few_rows, a.batches * a.rows, a.keys * (a.depth + a.width) / 8 + 1);
  return {};
}

constexpr Kernel kRows[] = {
    {"attention", Accepts::any, attention},
};

}  // namespace
}  // namespace sdx::SDX_ISA

SDX_FAMILY(attention, kRows)
