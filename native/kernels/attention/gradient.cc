// The gradient of attention by flash attention (Dao et al.): softmax weights are recomputed, a
// block of queries and keys at a time, from the logsumexp of each row, so that no score matrix is
// kept. For a block, with P the softmax weights and D dropout's mask times its factor:
//
//   S = scale Q K^T, P = e^(S - lse), dP = D * (dY V^T), dS = scale P * (dP - rowsum(dY * Y))
//   dV += (D * P)^T dY,   dK += dS^T Q,   dQ += dS K
//
// An item is one head of keys and values, or one split of its keys: it keeps dK and dV of a block
// of keys in local memory while the queries of all its heads pass. dK and dV are accumulated as
// their transposes, dV^T += dY^T P: then P and dS are right operands, which tiles read in the
// panels in which S and dP were written, and nothing of the size of a score block is transposed.
//
//   attention_gradient  q, k, v, mask?, none, none, keep?, dy, y, lse
//     outputs  dq, dk, dv, each [batch, rows, heads, width], the layout of dy and y
//     ints     whether it is causal; floats: scale, factor of what dropout keeps
#include "kernels/attention/attention.h"
#include "kernels/attention/kernels.h"
#include "kernels/matmul/pack.h"

namespace sdx::SDX_ISA {
namespace {

enum GradientOperand : int { kDy = kKeep + 1, kY, kLse };

constexpr int64_t kGradientKeys = 256;          // keys of a block; at most kDepth: one pass for dQ
constexpr int64_t kMinKeys = 64;                // keys worth a block of their own
constexpr int64_t kMinItems = 8;                // enough to balance the load of threads
constexpr int64_t kScoreFloats = 24 * 1024;     // of S and of dP: 192 KB of L2 together
constexpr int64_t kMinRows = 2 * kTileRows;     // minimum of a query block
constexpr int64_t kCausalRows = 4 * kTileRows;  // small blocks compute fewer invisible scores

struct GradientArgs {
  AttentionArgs a;  // its `out` is dq
  Heads dy, y, lse, dk, dv;
  int64_t block_keys;    // a multiple of kPanel
  int64_t splits;        // parts of the keys of a head, each with a dq of its own
  int64_t query_blocks;  // of a head
  int64_t scores_at, grads_at, dk_at, dv_at, k_at, v_at, k_rows_at, row_at;  // in local memory
};

// Views of local memory.
struct Workspace {
  void* rows;            // rows of A of the GEMM
  float* weights;        // panels [panels of keys][rows][32]: S, then D * P
  float* grads;          // likewise: dP, then dS
  float *dk, *dv;        // [depth or width, keys], transposed accumulators
  float *k, *v;          // panels of K^T and V^T
  float* k_rows;         // panels of K
  float *shift, *delta;  // by row: logsumexp, rowsum(dY * Y)
};

Workspace workspace_of(const GradientArgs& g, const Data& data) {
  const auto at = [&](int64_t offset) { return reinterpret_cast<float*>(data.local + offset); };
  return {data.local, at(g.scores_at), at(g.grads_at),  at(g.dk_at),  at(g.dv_at),
          at(g.k_at), at(g.v_at),      at(g.k_rows_at), at(g.row_at), at(g.row_at) + kBlockRows};
}

int64_t accumulator_stride(const GradientArgs& g) { return row_floats(g.block_keys); }

// A block of keys of one head, and a block of rows of one query head that attends to its first n
// keys.
struct Block {
  int64_t batch, row, rows;  // of the queries
  int64_t key, keys, n;      // first key, keys of the block, keys that some row attends to
};

const float* matrix(const Data& data, int operand, const Heads& heads, int64_t batch, int64_t row) {
  return input<float>(data, operand) + heads.batches.offset(batch) + row * heads.row_stride;
}

void pack_keys(const GradientArgs& g, const Data& data, const Workspace& ws, const Block& at) {
  const AttentionArgs& a = g.a;
  const float* k = matrix(data, kK, a.k, at.batch, at.key);
  const float* v = matrix(data, kV, a.v, at.batch, at.key);
  for (int64_t p = 0; p < panels_of(at.keys); ++p) {
    pack_panel(k, a.k.column_stride, a.k.row_stride, a.depth, at.keys, p,
               ws.k + p * a.depth * kPanel);
    pack_panel(v, a.v.column_stride, a.v.row_stride, a.width, at.keys, p,
               ws.v + p * a.width * kPanel);
  }
  for (int64_t p = 0; p < panels_of(a.depth); ++p)
    pack_panel(k, a.k.row_stride, a.k.column_stride, at.keys, a.depth, p,
               ws.k_rows + p * at.keys * kPanel);
}

// Rows times packed columns, written as panels [panel][m][32]: the right operand of another GEMM.
void multiply_to_panels(void* local, const float* rows, const Heads& heads, int64_t m, int64_t k,
                        const float* packed, int64_t n, float alpha, float* to) {
  auto* block = static_cast<float*>(local);
  const int64_t passes = passes_of(k), capacity = kBlockRows / m;
  for (int64_t first = 0, last; first < passes; first = last) {
    last = first + capacity < passes ? first + capacity : passes;
    for (int64_t p = first; p < last; ++p) {
      const int64_t depth = part_begin(k, passes, p);
      copy_matrix(rows + depth * heads.column_stride, heads.row_stride, heads.column_stride, m,
                  part_begin(k, passes, p + 1) - depth, block + (p - first) * m * kStride, kStride);
    }
    for (int64_t p = 0; p < panels_of(n); ++p)
      gemm_passes(m, k, first, last, block, Columns{packed, n, p, p + 1},
                  Target{to + p * m * kPanel, kPanel}, TileEpilogue{alpha});
  }
}

// Row statistics of a block of queries.
void read_rows(const GradientArgs& g, const Data& data, const Workspace& ws, const Block& at) {
  const float* dy = matrix(data, kDy, g.dy, at.batch, at.row);
  const float* y = matrix(data, kY, g.y, at.batch, at.row);
  const float* lse = matrix(data, kLse, g.lse, at.batch, at.row);
  const bool is_dense = g.dy.column_stride == 1 && g.y.column_stride == 1;
  for (int64_t i = 0; i < at.rows; ++i, dy += g.dy.row_stride, y += g.y.row_stride) {
    ws.shift[i] = shift_of(lse[i * g.lse.row_stride]);
    f32v sums{};
    float rest = 0;
    if (is_dense)
      vloop(g.a.width,
            [&](int64_t j, auto lanes) { sums += load(dy + j, lanes) * load(y + j, lanes); });
    else
      for (int64_t j = 0; j < g.a.width; ++j)
        rest += dy[j * g.dy.column_stride] * y[j * g.y.column_stride];
    ws.delta[i] = fold_sum(sums) + rest;
  }
}

// Bools of a row of dropout's mask, contiguous: copied to `buffer` if they are not.
const uint8_t* contiguous(const uint8_t* keep, int64_t stride, int64_t n, uint8_t* buffer) {
  if (keep == nullptr || stride == 1) return keep;
  for (int64_t i = 0; i < n; ++i) buffer[i] = keep[i * stride];
  return buffer;
}

// S and dP of a row in one panel become D * P and dS.
template <bool has_keep>
SDX_INLINE void differentiate(const AttentionArgs& a, const uint8_t* keep, float shift, float delta,
                              int64_t n, float* weights, float* grads) {
  vloop(n, [&](int64_t j, auto lanes) {
    const f32v p = vexp_softmax(load(weights + j, lanes, -kInf) - shift);
    f32v dp = load(grads + j, lanes), kept = p;
    if constexpr (has_keep) {
      const auto is_kept = mask_of<float>(load_bools<float>(keep + j, lanes));
      dp = is_kept ? dp * a.keep_scale : f32v{};
      kept = is_kept ? p * a.keep_scale : f32v{};
    }
    store(weights + j, kept, lanes);
    store(grads + j, p * (dp - delta) * a.scale, lanes);
  });
}

void differentiate_block(const GradientArgs& g, const Data& data, const Workspace& ws,
                         const Block& at) {
  const AttentionArgs& a = g.a;
  const QueryPosition position = position_of(a, data, at.batch);
  uint8_t buffer[kPanel];
  for (int64_t i = 0; i < at.rows; ++i) {
    const KeyRange visible = visible_keys(a, position, at.row + i);
    const auto* mask =
        static_cast<const std::byte*>(mask_at(a, data, at.batch, at.row + i, at.key));
    const int64_t mask_bytes =
        kPanel * a.mask.column_stride * int64_t(a.is_bool_mask ? sizeof(uint8_t) : sizeof(float));
    const uint8_t* keep = keep_at(a, data, at.batch, at.row + i, at.key);
    for (int64_t first = 0; first < at.n; first += kPanel) {
      const int64_t n = at.n - first < kPanel ? at.n - first : kPanel;
      float* weights = ws.weights + first * at.rows + i * kPanel;
      float* grads = ws.grads + first * at.rows + i * kPanel;
      if (a.has_mask) apply_mask(a, mask + first / kPanel * mask_bytes, weights, n);
      hide_keys(visible, at.key + first, weights, n);
      if (a.has_keep) {
        const int64_t stride = a.keep.column_stride;
        differentiate<true>(a, contiguous(keep + first * stride, stride, n, buffer), ws.shift[i],
                            ws.delta[i], n, weights, grads);
      } else {
        differentiate<false>(a, nullptr, ws.shift[i], ws.delta[i], n, weights, grads);
      }
    }
  }
}

// acc^T += rows^T * panels: the gradient of keys or values, transposed.
void add_transposed(const GradientArgs& g, const Workspace& ws, const float* rows,
                    const Heads& heads, int64_t m, const float* panels, const Block& at,
                    bool is_first, float* acc) {
  const int64_t stride = accumulator_stride(g);
  TileEpilogue finish;
  if (!is_first) finish.start = acc, finish.start_stride = stride;
  gemm_block(ws.rows, m, at.rows, Columns{panels, at.n, 0, panels_of(at.n)}, Target{acc, stride},
             finish, [&](float* to, int64_t row, int64_t count, int64_t depth, int64_t depths) {
               copy_matrix(rows + row * heads.column_stride + depth * heads.row_stride,
                           heads.column_stride, heads.row_stride, count, depths, to, kStride);
             });
}

// dQ += dS K.
void add_to_queries(const GradientArgs& g, const Workspace& ws, const Block& at, bool is_first,
                    const Target& dq) {
  TileEpilogue finish;
  if (!is_first) finish.start = dq.c, finish.start_stride = dq.ldc;
  gemm_block(ws.rows, at.rows, at.n,
             Columns{ws.k_rows, g.a.depth, 0, panels_of(g.a.depth), at.keys}, dq, finish,
             [&](float* to, int64_t row, int64_t count, int64_t depth, int64_t depths) {
               for (int64_t j = depth, n; j < depth + depths; j += n) {
                 const int64_t in_panel = j % kPanel, left = depth + depths - j;
                 n = left < kPanel - in_panel ? left : kPanel - in_panel;
                 const float* from = ws.grads + (j - in_panel) * at.rows + in_panel;
                 for (int64_t i = 0; i < count; ++i)
                   memcpy(to + i * kStride + j - depth, from + (row + i) * kPanel,
                          size_t(n) * sizeof(float));
               }
             });
}

// The rows of dq of one query head: in the output, or in the scratch memory of a split.
Target queries_target(const GradientArgs& g, const Data& data, int64_t split, int64_t batch,
                      int64_t row) {
  const AttentionArgs& a = g.a;
  if (g.splits == 1)
    return {output<float>(data) + a.out.batches.offset(batch) + row * a.out.row_stride,
            a.out.row_stride};
  auto* partial = reinterpret_cast<float*>(data.scratch);
  return {partial + ((split * a.batches + batch) * a.rows + row) * a.depth, a.depth};
}

void run_block(const GradientArgs& g, const Data& data, const Workspace& ws, const Block& at,
               bool is_first_query, bool is_first_key, const Target& dq) {
  const AttentionArgs& a = g.a;
  const float* q = matrix(data, kQ, a.q, at.batch, at.row);
  const float* dy = matrix(data, kDy, g.dy, at.batch, at.row);
  read_rows(g, data, ws, at);
  multiply_to_panels(ws.rows, q, a.q, at.rows, a.depth, ws.k, at.n, a.scale, ws.weights);
  multiply_to_panels(ws.rows, dy, g.dy, at.rows, a.width, ws.v, at.n, 1, ws.grads);
  differentiate_block(g, data, ws, at);
  add_transposed(g, ws, dy, g.dy, a.width, ws.weights, at, is_first_query, ws.dv);
  add_transposed(g, ws, q, a.q, a.depth, ws.grads, at, is_first_query, ws.dk);
  add_to_queries(g, ws, at, is_first_key, dq);
}

// Writes dK or dV of a block: keys that no query attends to have no gradient.
void write_keys(const GradientArgs& g, const float* acc, int64_t n, int64_t seen, int64_t width,
                float* to, int64_t stride) {
  copy_matrix(acc, 1, accumulator_stride(g), seen, width, to, stride);
  for (int64_t i = seen; i < n; ++i) memset(to + i * stride, 0, size_t(width) * sizeof(float));
}

// All queries of the heads that share a head of keys, against one block of its keys. Queries run
// from the last to the first, since with a causal mask the last ones attend to the most keys.
void run_keys(const GradientArgs& g, const Data& data, int64_t kv_batch, int64_t split,
              int64_t block, bool is_first_key) {
  const AttentionArgs& a = g.a;
  const Workspace ws = workspace_of(g, data);
  Block at{};
  at.key = block * g.block_keys;
  at.keys = a.keys - at.key < g.block_keys ? a.keys - at.key : g.block_keys;
  at.batch = kv_batch * a.group;
  pack_keys(g, data, ws, at);
  int64_t seen = 0;
  for (int64_t i = a.group * g.query_blocks; i-- > 0;) {
    const int64_t part = i / a.group;
    at.batch = kv_batch * a.group + i % a.group;
    at.row = part_begin(a.rows, g.query_blocks, part);
    at.rows = part_begin(a.rows, g.query_blocks, part + 1) - at.row;
    const KeyRange visible = visible_to_any(a, position_of(a, data, at.batch), at.row, at.rows);
    const int64_t n = visible.end - at.key;
    at.n = n < 0 ? 0 : n < at.keys ? n : at.keys;
    const Target dq = queries_target(g, data, split, at.batch, at.row);
    if (at.n > 0) {
      run_block(g, data, ws, at, seen == 0, is_first_key, dq);
      seen = seen > at.n ? seen : at.n;
    } else if (is_first_key) {
      for (int64_t r = 0; r < at.rows; ++r)
        memset(dq.c + r * dq.ldc, 0, size_t(a.depth) * sizeof(float));
    }
  }
  write_keys(g, ws.dk, at.keys, seen, a.depth,
             output<float>(data, 1) + g.dk.batches.offset(kv_batch) + at.key * g.dk.row_stride,
             g.dk.row_stride);
  write_keys(g, ws.dv, at.keys, seen, a.width,
             output<float>(data, 2) + g.dv.batches.offset(kv_batch) + at.key * g.dv.row_stride,
             g.dv.row_stride);
}

// Items: splits of the keys of each head.
Status run_heads(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& g = *static_cast<const GradientArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t split = item % g.splits;
    const int64_t first = part_begin(g.a.key_blocks, g.splits, split);
    const int64_t last = part_begin(g.a.key_blocks, g.splits, split + 1);
    for (int64_t block = first; block < last; ++block)
      run_keys(g, data, item / g.splits, split, block, block == first);
  }
  return {};
}

// Items: rows of dq, summed over the splits in their order.
Status sum_splits(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& g = *static_cast<const GradientArgs*>(args);
  const AttentionArgs& a = g.a;
  const auto* partial = reinterpret_cast<const float*>(data.scratch);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / a.rows, row = item % a.rows;
    float* dq = output<float>(data) + a.out.batches.offset(batch) + row * a.out.row_stride;
    vloop(a.depth, [&](int64_t j, auto lanes) {
      f32v sum{};
      for (int64_t s = 0; s < g.splits; ++s)
        sum += load(partial + (s * a.batches * a.rows + item) * a.depth + j, lanes);
      store(dq + j, sum, lanes);
    });
  }
  return {};
}

// Sizes of the blocks. They depend on the sizes of the call alone, as results must.
void plan_blocks(GradientArgs& g) {
  AttentionArgs& a = g.a;
  const int64_t kv_batches = a.batches / a.group;
  int64_t blocks = (a.keys + kGradientKeys - 1) / kGradientKeys;
  blocks = blocks < 1 ? 1 : blocks;
  while (kv_batches * blocks < kMinItems && a.keys / (blocks + 1) >= kMinKeys) ++blocks;
  g.block_keys = panels_of((a.keys + blocks - 1) / blocks) * kPanel;
  g.block_keys = g.block_keys < kPanel ? kPanel : g.block_keys;
  blocks = (a.keys + g.block_keys - 1) / g.block_keys;
  a.key_blocks = blocks < 1 ? 1 : blocks;
  g.splits = 1;
  while (kv_batches * g.splits < kMinItems && g.splits < a.key_blocks) ++g.splits;
  int64_t most = kScoreFloats / g.block_keys;
  most = most > kBlockRows ? kBlockRows : most;
  if (a.window_right >= 0) {
    const int64_t part = a.rows / 4 < kCausalRows ? a.rows / 4 : kCausalRows;
    most = part < kMinRows ? kMinRows : part;
  }
  g.query_blocks = (a.rows + most - 1) / most;
}

void plan_memory(GradientArgs& g, Plan& plan) {
  const AttentionArgs& a = g.a;
  const int64_t rows = g.query_blocks > 0 ? (a.rows + g.query_blocks - 1) / g.query_blocks : 0;
  int64_t at = kBlockBytes;
  const auto take = [&](int64_t floats) {
    const int64_t here = at;
    at += (floats * int64_t(sizeof(float)) + 63) / 64 * 64;
    return here;
  };
  g.scores_at = take(rows * g.block_keys);
  g.grads_at = take(rows * g.block_keys);
  g.dk_at = take(a.depth * accumulator_stride(g));
  g.dv_at = take(a.width * accumulator_stride(g));
  g.k_at = take(a.depth * g.block_keys);
  g.v_at = take(a.width * g.block_keys);
  g.k_rows_at = take(packed_floats(g.block_keys, a.depth));
  g.row_at = take(2 * kBlockRows);
  plan.local_bytes = at;
}

}  // namespace

Status attention_gradient(const Call& call, Plan& plan) {
  auto* args = plan.make<GradientArgs>();
  plan.args = args;
  GradientArgs& g = *args;
  AttentionArgs& a = g.a;
  read_training(call, a);
  const View dk = heads_first(call.out[1]), dv = heads_first(call.out[2]);
  const View out = read_operands(call, heads_first(call.out[0]), a);
  const int lead = out.rank - 2;
  const auto heads = [&](const View& view) {
    return heads_of(grouped(view, a.group, false), out, lead);
  };
  g.dy = heads(heads_first(call.in[kDy]));
  g.y = heads(heads_first(call.in[kY]));
  g.lse = heads(as_columns(call.in[kLse]));
  g.dk = heads_of(dk, dk, dk.rank - 2);
  g.dv = heads_of(dv, dv, dv.rank - 2);
  plan_blocks(g);
  plan_memory(g, plan);
  const int64_t kv_batches = dk.count(0, dk.rank - 2);
  const int64_t work = a.rows * a.group * (a.keys / g.splits + 1) *
                       (3 * a.depth + 2 * a.width + 32) / (SDX_VEC_BYTES / 2);
  plan.add(run_heads, kv_batches * g.splits, work);
  if (g.splits > 1) {
    plan.scratch_bytes = g.splits * a.batches * a.rows * a.depth * int64_t(sizeof(float));
    plan.add(sum_splits, a.batches * a.rows, g.splits * a.depth / 8);
  }
  return {};
}

}  // namespace sdx::SDX_ISA
