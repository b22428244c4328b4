// Attention as one step, by flash attention: blocks of keys and an online softmax, so that the
// score matrix never leaves the cache. This file reads the attributes and dispatches:
//   decode.cc  fewer than kMinFlashRows query rows (decoding): bound by the time that reading the
//              KV cache takes
//   flash.cc   otherwise (prefill, encoders): GEMM over packed keys and values
//
//   attention, attention_bf16
//               q [.., rows, depth], k [.., keys, depth], v [.., keys, width],
//               mask? [.., rows, keys], spans? [entries, 2], sink? [heads]
//     ints    whether heads are inside the rows of the output ([.., rows, heads, width]); result
//             of a fully masked row; heads of q for each of k and v; visible keys before and after
//             a row's position, -1 for all; whether the last row is at the last key; smooth
//             softmax: an extra zero logit
//     floats  scale, softcap of the scores or 0
//   attention_training
//               the same with keep? [.., rows, keys] after the sink, which is absent like spans;
//               mask may be bools. Outputs y [.., rows, heads, width] and lse [.., heads, rows].
//     ints    whether it is causal
//     floats  scale, factor of the weights that dropout keeps
//     attention_bf16 rounds both sides of both matmuls to bf16, except in decoding, which is bound
//     by the time that reading keys and values takes.
#include "kernels/attention/attention.h"

#include "kernels/attention/kernels.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kMinFlashRows = 9;              // rows from which packing keys pays off
constexpr int64_t kMaxScoreFloats = 48 * 1024;    // floats of a block of scores: 192 KB of L2
constexpr int64_t kMinItems = 8;                  // enough to balance the load of threads
constexpr int64_t kMinQueryRows = 2 * kTileRows;  // minimum of a query block
constexpr int64_t kCausalRows = 4 * kTileRows;
constexpr int64_t kMinSplitKeys = 512;  // keys worth a split of their own

// Block sizes and local memory of flash.cc. Packed keys and values are shared by all query blocks
// and heads of a group through scratch memory, or packed by the item itself where it is their only
// user.
void plan_flash(AttentionArgs& a, DType dtype, bool is_bf16, Plan& plan) {
  const int64_t width = a.keys < kBlockKeys ? a.keys : kBlockKeys;
  int64_t most = kMaxScoreFloats / (width > 0 ? width : 1);
  most = most > kBlockRows ? kBlockRows : most < kMinQueryRows ? kMinQueryRows : most;
  // Causal: later rows attend to more keys, and a block computes the union. Small blocks waste
  // less.
  if (a.window_right >= 0 && a.rows * 2 > a.keys) {
    const int64_t part = a.rows / 4 < kCausalRows ? a.rows / 4 : kCausalRows;
    most = part < kMinQueryRows ? kMinQueryRows : part;
  }
  a.query_blocks = (a.rows + most - 1) / most;
  while (a.batches * a.query_blocks < kMinItems && a.rows / (a.query_blocks + 1) >= kMinQueryRows)
    ++a.query_blocks;
  const int64_t rows = (a.rows + a.query_blocks - 1) / a.query_blocks;
  a.packs_own = a.query_blocks == 1 && a.group == 1;
  a.packed_floats = is_bf16 ? packed_floats(depth_of<Bf16Pair>(a.depth), width) +
                                  packed_floats(depth_of<Bf16Pair>(width), a.width)
                            : packed_floats(a.depth, width) + packed_floats(width, a.width);
  int64_t at = kBlockBytes;
  const auto take = [&](int64_t floats) {
    const int64_t here = at;
    at += (floats * int64_t(sizeof(float)) + 63) / 64 * 64;
    return here;
  };
  a.scores_at = take(rows * row_floats(width));
  a.acc_at = take(rows * row_floats(a.width));
  a.block_out_at = take(rows * row_floats(a.width));
  a.row_at = take(rows * (kLanes + 2));
  a.packed_at = take(a.packs_own ? a.packed_floats : 0);
  plan.local_bytes = at;
  const FlashPhases phases = flash_phases(dtype, is_bf16);
  const int64_t pack_work = width * (a.depth + a.width) / 4;
  if (!a.packs_own) {
    const int64_t blocks = a.batches / a.group * a.key_blocks;
    plan.scratch_bytes = blocks * a.packed_floats * int64_t(sizeof(float));
    plan.add(phases.pack, blocks, pack_work);
  }
  const int64_t work = rows * a.keys * (a.depth + a.width + 16) / (SDX_VEC_BYTES / 2);
  plan.add(phases.run, a.batches * a.query_blocks, work + (a.packs_own ? pack_work : 0));
}

// Split-K over keys where there are too few heads to occupy the threads; a second phase combines
// the partial softmax results (flash decoding).
void plan_decode(AttentionArgs& a, DType dtype, Plan& plan) {
  const DecodePhases phases = decode_phases(dtype);
  const int64_t stacks = a.batches / a.group, rows = a.rows * a.group;
  a.parts = 1;
  while (stacks * a.parts < kMinItems && a.keys / (a.parts + 1) >= kMinSplitKeys) ++a.parts;
  plan.local_bytes = rows * decode_row_floats(a) * int64_t(sizeof(float));
  const int64_t work = rows * (a.keys / a.parts) * (a.depth + a.width) / 8 + 1;
  plan.add(phases.run, stacks * a.parts, work);
  if (a.parts == 1) return;
  plan.scratch_bytes = stacks * a.parts * rows * (a.width + 2) * int64_t(sizeof(float));
  plan.add(phases.combine, a.batches * a.rows, a.parts * a.width / 8);
}

void read_settings(AttentionArgs& a, const Call& call) {
  a.fully_masked =
      a.keys == 0 ? FullyMasked::zeros : FullyMasked(call.ints[1]);  // an empty sum is 0
  a.group = call.ints[2];
  a.window_left = call.ints[3], a.window_right = call.ints[4];
  a.is_bottom_right = call.ints[5] != 0;
  a.has_zero_sink = call.ints[6] != 0;
  a.scale = float(call.floats[0]), a.softcap = float(call.floats[1]), a.keep_scale = 1;
  a.has_spans = call.in[kSpans].is_given();
  a.has_sink = call.in[kSink].is_given();
  if (a.has_sink) a.sink_stride = call.in[kSink].strides[0];
}

// Dispatch between decode.cc and flash.cc.
void plan_attention(const Call& call, bool is_bf16, Plan& plan) {
  auto* args = plan.make<AttentionArgs>();
  plan.args = args;
  AttentionArgs& a = *args;
  const DType dtype = call.in[kQ].dtype;
  read_sizes(call, a);
  read_settings(a, call);
  const View whole = call.ints[0] != 0 ? heads_first(call.out[0]) : call.out[0];
  if (whole.count() == 0) {
    plan.add(decode_phases(dtype).run, 0, 1);
    return;
  }
  read_operands(call, whole, a);
  const bool has_unit_strides = (a.k.column_stride == 1 || a.depth == 1) &&
                                (a.v.column_stride == 1 || a.width == 1) &&
                                (a.q.column_stride == 1 || a.depth == 1);
  if (a.keys > 0 && !(a.rows < kMinFlashRows && has_unit_strides))
    plan_flash(a, dtype, is_bf16, plan);
  else
    plan_decode(a, dtype, plan);
}

Status attention(const Call& call, Plan& plan) {
  plan_attention(call, false, plan);
  return {};
}

Status attention_bf16(const Call& call, Plan& plan) {
  plan_attention(call, true, plan);
  return {};
}

Status attention_training(const Call& call, Plan& plan) {
  auto* args = plan.make<AttentionArgs>();
  plan.args = args;
  AttentionArgs& a = *args;
  read_training(call, a);
  const View out = read_operands(call, heads_first(call.out[0]), a);
  if (a.batches * a.rows == 0) {
    plan.add(flash_phases(DType::f32, false).run, 0, 1);
    return {};
  }
  a.has_lse = true;
  a.lse = heads_of(grouped(as_columns(call.out[1]), a.group, false), out, out.rank - 2);
  plan_flash(a, DType::f32, false, plan);
  return {};
}

constexpr Kernel kKernels[] = {
    {"attention", Accepts::any, attention},
    {"attention_bf16", Accepts::any, attention_bf16, nullptr, true},
    {"attention_gradient", Accepts::any, attention_gradient},
    {"attention_training", Accepts::any, attention_training},
    {"append", Accepts::rows, append},
    {"append_at_run", Accepts::rows, append, resolve_append},
    {"linear_attention", Accepts::contiguous, linear_attention},
    {"rotary", Accepts::rows, rotary},
    {"spans", Accepts::any, spans},
};

}  // namespace

void read_sizes(const Call& call, AttentionArgs& a) {
  const View &q = call.in[kQ], &k = call.in[kK];
  a.rows = q.dim(-2), a.depth = q.dim(-1), a.keys = k.dim(-2), a.width = call.in[kV].dim(-1);
  a.key_blocks = (a.keys + kBlockKeys - 1) / kBlockKeys;
  a.has_mask = call.in[kMask].is_given();
  a.is_bool_mask = a.has_mask && call.in[kMask].dtype == DType::boolean;
}

void read_training(const Call& call, AttentionArgs& a) {
  read_sizes(call, a);
  const int64_t heads = call.in[kQ].dim(-3), kv_heads = call.in[kK].dim(-3);
  a.group = kv_heads > 0 ? heads / kv_heads : 1;
  a.fully_masked = FullyMasked::zeros_unless_nan;
  a.window_left = -1, a.window_right = call.ints[0] != 0 ? 0 : -1;
  a.has_keep = call.in[kKeep].is_given();
  a.scale = float(call.floats[0]), a.keep_scale = float(call.floats[1]);
}

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

View heads_first(const View& view) {
  View transposed = view;
  const int row = view.rank - 3, head = view.rank - 2;
  transposed.dims[row] = view.dims[head], transposed.strides[row] = view.strides[head];
  transposed.dims[head] = view.dims[row], transposed.strides[head] = view.strides[row];
  return transposed;
}

View grouped(const View& view, int64_t group, bool is_shared) {
  View split = view;
  if (view.rank < 3 || group == 1) return split;
  const int head = view.rank - 3;
  const int64_t own = is_shared || view.dims[head] == 1 ? 1 : group;
  for (int i = view.rank; i > head; --i)
    split.dims[i] = view.dims[i - 1], split.strides[i] = view.strides[i - 1];
  split.rank = view.rank + 1;
  split.dims[head] = view.dims[head] / own, split.strides[head] = view.strides[head] * own;
  split.dims[head + 1] = own, split.strides[head + 1] = view.strides[head];
  return split;
}

View read_operands(const Call& call, const View& whole, AttentionArgs& a) {
  const View out = grouped(whole, a.group, false);
  const int lead = out.rank - 2;
  a.batches = out.count(0, lead);
  a.per_entry = lead > 0 ? out.count(1, lead) : 1;
  a.q = heads_of(grouped(call.in[kQ], a.group, false), out, lead);
  a.k = heads_of(grouped(call.in[kK], a.group, true), out, lead);
  a.v = heads_of(grouped(call.in[kV], a.group, true), out, lead);
  if (a.has_mask) a.mask = heads_of(grouped(call.in[kMask], a.group, false), out, lead);
  if (a.has_keep) a.keep = heads_of(grouped(call.in[kKeep], a.group, false), out, lead);
  a.out = heads_of(out, out, lead);
  return out;
}

void apply_mask(const AttentionArgs& a, const void* mask, float* scores, int64_t n) {
  const int64_t stride = a.mask.column_stride;
  const auto* bools = static_cast<const uint8_t*>(mask);
  const auto* added = static_cast<const float*>(mask);
  const auto bool_of = [&](int64_t i) { return bools[i * stride] ? 0 : -kInf; };
  if (stride != 0 && stride != 1) {
    for (int64_t i = 0; i < n; ++i) scores[i] += a.is_bool_mask ? bool_of(i) : added[i * stride];
  } else if (a.is_bool_mask && stride == 1) {
    vloop(n, [&](int64_t i, auto lanes) {
      const auto is_visible = mask_of<float>(load_bools<float>(bools + i, lanes));
      store(scores + i, is_visible ? load(scores + i, lanes) : splat(-kInf), lanes);
    });
  } else {
    const float all = stride == 1 ? 0 : a.is_bool_mask ? bool_of(0) : added[0];
    vloop(n, [&](int64_t i, auto lanes) {
      const f32v term = stride == 1 ? load(added + i, lanes) : splat(all);
      store(scores + i, load(scores + i, lanes) + term, lanes);
    });
  }
}

float finish_scores(const AttentionArgs& a, const void* mask, const KeyRange& visible,
                    int64_t first, float* scores, int64_t n) {
  if (a.softcap > 0) {
    const float down = 1 / a.softcap;
    vloop(n, [&](int64_t i, auto lanes) {
      store(scores + i, vtanh(load(scores + i, lanes) * down) * a.softcap, lanes);
    });
  }
  if (a.has_mask) apply_mask(a, mask, scores, n);
  hide_keys(visible, first, scores, n);
  f32v top = splat(-kInf);
  vloop(n, [&](int64_t i, auto lanes) { top = vmax(top, load(scores + i, lanes, -kInf)); });
  return fold_max(top);
}

}  // namespace sdx::SDX_ISA

SDX_FAMILY(attention, kKernels)
