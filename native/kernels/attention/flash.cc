// Flash attention for many query rows: a block of queries against one packed block of keys after
// the other. Scores q k^T are a GEMM into local memory; the online softmax keeps a running maximum
// and denominator per row and rescales the accumulators when the maximum rises; the weighted sum of
// values is a second GEMM, whose rows of A are exponentiated while they are copied. Blocks that no
// row of the block attends to (causal or sliding window) are skipped.
#include "kernels/attention/attention.h"
#include "kernels/matmul/pack.h"

namespace sdx::SDX_ISA {
namespace {

// Views of local memory.
struct Workspace {
  void* rows;          // rows of A of the GEMM
  float* scores;       // [rows, keys of a block]
  float* acc;          // [rows, width], accumulators over all blocks so far
  float* block_out;    // [rows, width], result of one block
  f32v* denominators;  // [rows], running sums of exponentials by lane
  float* maxima;       // [rows], running maxima
  float* rescale;      // [rows], e^(old maximum - new maximum)
};

Workspace workspace_of(const AttentionArgs& a, const Data& data, int64_t rows) {
  const auto at = [&](int64_t offset) { return reinterpret_cast<float*>(data.local + offset); };
  float* row = at(a.row_at);
  return {data.local,
          at(a.scores_at),
          at(a.acc_at),
          at(a.block_out_at),
          reinterpret_cast<f32v*>(row),
          row + rows * kLanes,
          row + rows * (kLanes + 1)};
}

int64_t keys_in(const AttentionArgs& a, int64_t block) {
  const int64_t left = a.keys - block * kBlockKeys;
  return left < kBlockKeys ? left : kBlockKeys;
}

// Packs a block: keys transposed into panels [depth][32 keys], then values into panels [keys][32].
// Values after the entry's last key are packed as zeros where they share a bf16 pair with it: their
// weight is 0, but 0 * garbage may be NaN.
template <class T, class U>
void pack_block(const AttentionArgs& a, const Data& data, int64_t batch, int64_t block, U* to) {
  const int64_t first = block * kBlockKeys, n = keys_in(a, block);
  const int64_t left = position_of(a, data, batch).end - first;
  const int64_t valid = kValuesPer<U> == 1 || left > n ? n : left < 0 ? 0 : left;
  const T* k = input<T>(data, kK) + a.k.batches.offset(batch) + first * a.k.row_stride;
  for (int64_t p = 0; p < panels_of(n); ++p, to += depth_of<U>(a.depth) * kPanel)
    pack_panel(k, a.k.column_stride, a.k.row_stride, a.depth, n, p, to);
  const T* v = input<T>(data, kV) + a.v.batches.offset(batch) + first * a.v.row_stride;
  for (int64_t p = 0; p < panels_of(a.width); ++p, to += depth_of<U>(n) * kPanel)
    pack_panel(v, a.v.row_stride, a.v.column_stride, valid, a.width, p, to);
}

// The query rows of one head that an item computes.
struct Queries {
  int64_t batch, row, rows;
  QueryPosition position;
};

// The part of a key block that some row attends to, from the beginning of a panel on.
struct Window {
  int64_t first, n;  // relative to the block
};

Window window_of(const KeyRange& visible, int64_t block, int64_t keys) {
  const int64_t begin = block * kBlockKeys,
                last = visible.end - begin < keys ? visible.end - begin : keys;
  const int64_t first = visible.begin > begin ? (visible.begin - begin) / kPanel * kPanel : 0;
  return {first, last - first};
}

// Online softmax, first half: finishes the scores of a block, updates the maxima, and computes the
// factors that accumulators and denominators of earlier blocks are rescaled by.
void update_maxima(const AttentionArgs& a, const Data& data, const Workspace& ws, const Queries& at,
                   int64_t first, int64_t n, bool is_first) {
  for (int64_t i = 0; i < at.rows; ++i) {
    const void* mask = mask_at(a, data, at.batch, at.row + i, first);
    const KeyRange visible = visible_keys(a, at.position, at.row + i);
    const float top = finish_scores(a, mask, visible, first, ws.scores + i * row_floats(n), n);
    if (is_first) {
      ws.maxima[i] = top;
      ws.denominators[i] = f32v{};
      continue;
    }
    const float before = ws.maxima[i], now = top > before || top != top ? top : before;
    ws.rescale[i] = before == -kInf ? 0 : now == before ? 1 : vexp(splat(before - now))[0];
    ws.maxima[i] = now;
    ws.denominators[i] *= ws.rescale[i];
  }
}

// acc = acc * rescale + block_out.
void add_block_output(const AttentionArgs& a, const Workspace& ws, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    float* acc = ws.acc + i * row_floats(a.width);
    const float* block_out = ws.block_out + i * row_floats(a.width);
    const float factor = ws.rescale[i];
    vloop(a.width, [&](int64_t j, auto lanes) {
      store(acc + j, load(acc + j, lanes) * factor + load(block_out + j, lanes), lanes);
    });
  }
}

// Rows of q as the A side of the score GEMM, floats or bf16 pairs.
template <class T>
SDX_INLINE void copy_queries(const AttentionArgs& a, const T* q, int64_t rows, int64_t depth,
                             int64_t depths, float* to) {
  copy_matrix(q + depth * a.q.column_stride, a.q.row_stride, a.q.column_stride, rows, depths, to,
              kStride);
}
template <class T>
SDX_INLINE void copy_queries(const AttentionArgs& a, const T* q, int64_t rows, int64_t depth,
                             int64_t depths, Bf16Pair* to) {
  const int64_t left = a.depth - 2 * depth;
  copy_rows_to_pairs(q + 2 * depth * a.q.column_stride, a.q.row_stride, a.q.column_stride, rows,
                     left < 2 * depths ? left : 2 * depths, to);
}

// Softmax weights of a row from `depth` on as the A side of the value GEMM; n scores in all.
// Returns their sum by lane.
SDX_INLINE f32v fill_weights(const float* scores, float shift, int64_t, int64_t depth,
                             int64_t depths, float* to) {
  return exponentiate(scores + depth, shift, to, depths);
}
SDX_INLINE f32v fill_weights(const float* scores, float shift, int64_t n, int64_t depth,
                             int64_t depths, Bf16Pair* to) {
  float wide[2 * kDepth];
  const int64_t left = n - 2 * depth, count = left < 2 * depths ? left : 2 * depths;
  const f32v total = exponentiate(scores + 2 * depth, shift, wide, count);
  copy_pairs(wide, count, to);
  return total;
}

// Dropout: sets the weights that it does not keep to 0.
SDX_INLINE void drop_weights(const uint8_t* keep, int64_t stride, float* weights, int64_t n) {
  if (stride != 1) {
    for (int64_t i = 0; i < n; ++i)
      if (keep[i * stride] == 0) weights[i] = 0;
    return;
  }
  vloop(n, [&](int64_t i, auto lanes) {
    const auto is_kept = mask_of<float>(load_bools<float>(keep + i, lanes));
    store(weights + i, is_kept ? load(weights + i, lanes) : f32v{}, lanes);
  });
}

// One block of keys: scores, online softmax, weighted values.
template <class T, class U>
void run_block(const AttentionArgs& a, const Data& data, const Workspace& ws, const U* packed,
               const Queries& at, const Window& window, int64_t block, bool is_first) {
  const int64_t n = window.n, keys = keys_in(a, block), stride = row_floats(n);
  const int64_t panel = window.first / kPanel, panels = panels_of(n);
  const T* q = input<T>(data, kQ) + a.q.batches.offset(at.batch) + at.row * a.q.row_stride;
  gemm_block(ws.rows, at.rows, depth_of<U>(a.depth),
             ColumnsOf<U>{packed, (panel + panels) * kPanel, panel, panel + panels},
             Target{ws.scores, stride}, TileEpilogue{a.scale},
             [&](U* to, int64_t i, int64_t count, int64_t depth, int64_t depths) {
               copy_queries(a, q + i * a.q.row_stride, count, depth, depths, to);
             });
  const int64_t first_key = block * kBlockKeys + window.first;
  update_maxima(a, data, ws, at, first_key, n, is_first);
  const U* values =
      packed + packed_floats(depth_of<U>(a.depth), keys) + window.first / kValuesPer<U> * kPanel;
  const int64_t value_panels = panels_of(a.width);
  gemm_block(ws.rows, at.rows, depth_of<U>(n),
             ColumnsOf<U>{values, value_panels * kPanel, 0, value_panels, depth_of<U>(keys)},
             Target{is_first ? ws.acc : ws.block_out, row_floats(a.width)}, TileEpilogue{},
             [&](U* to, int64_t first, int64_t count, int64_t depth, int64_t depths) {
               for (int64_t i = first; i < first + count; ++i, to += kStride) {
                 ws.denominators[i] += fill_weights(ws.scores + i * stride, shift_of(ws.maxima[i]),
                                                    n, depth, depths, to);
                 if constexpr (__is_same(U, float))
                   if (a.has_keep)
                     drop_weights(keep_at(a, data, at.batch, at.row + i, first_key + depth),
                                  a.keep.column_stride, to, depths);
               }
             });
  if (!is_first) add_block_output(a, ws, at.rows);
}

// State of fully masked rows.
void clear(const AttentionArgs& a, const Workspace& ws, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    memset(ws.acc + i * row_floats(a.width), 0, size_t(a.width) * sizeof(float));
    ws.maxima[i] = -kInf;
    ws.denominators[i] = f32v{};
  }
}

// log(sum(e^score)) of a row; -inf if it is fully masked.
SDX_INLINE float logsumexp(float top, float total) {
  return total == 0 ? -kInf : top + vlog(splat(total))[0];
}

// Adds the sink, divides by the denominators, writes the output rows.
template <class T>
void finish(const AttentionArgs& a, const Data& data, const Workspace& ws, const Queries& at) {
  T* out = output<T>(data) + a.out.batches.offset(at.batch) + at.row * a.out.row_stride;
  const float sink = sink_of(a, data, at.batch);
  for (int64_t i = 0; i < at.rows; ++i) {
    float* acc = ws.acc + i * row_floats(a.width);
    float total = fold_sum(ws.denominators[i]);
    const float factor = add_sink(sink, ws.maxima[i], total);
    if (factor != 1)
      vloop(a.width,
            [&](int64_t j, auto lanes) { store(acc + j, load(acc + j, lanes) * factor, lanes); });
    finish_row(a, acc, total, out + i * a.out.row_stride);
    if (a.has_lse)
      output<float>(data, 1)[a.lse.batches.offset(at.batch) + (at.row + i) * a.lse.row_stride] =
          logsumexp(ws.maxima[i], total);
  }
}

// Items: blocks of keys of each kv head, packed into scratch memory unless no query attends to
// them.
template <class T, class U>
Status pack_keys(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AttentionArgs*>(args);
  auto* to = reinterpret_cast<U*>(data.scratch);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t batch = i / a.key_blocks * a.group, block = i % a.key_blocks;
    const KeyRange visible = visible_to_any(a, position_of(a, data, batch), 0, a.rows);
    if (visible.begin >= (block + 1) * kBlockKeys || visible.end <= block * kBlockKeys) continue;
    pack_block<T>(a, data, batch, block, to + i * a.packed_floats);
  }
  return {};
}

// Items: blocks of query rows of each head.
template <class T, class U>
Status query_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AttentionArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / a.query_blocks, part = item % a.query_blocks;
    const int64_t row = part_begin(a.rows, a.query_blocks, part);
    const int64_t rows = part_begin(a.rows, a.query_blocks, part + 1) - row;
    const Queries at{batch, row, rows, position_of(a, data, batch)};
    const KeyRange visible = visible_to_any(a, at.position, row, rows);
    const Workspace ws = workspace_of(a, data, rows);
    auto* own = reinterpret_cast<U*>(data.local + a.packed_at);
    const auto* shared = reinterpret_cast<const U*>(data.scratch);
    const int64_t first = visible.begin / kBlockKeys,
                  last = (visible.end + kBlockKeys - 1) / kBlockKeys;
    if (visible.begin == visible.end) clear(a, ws, rows);
    for (int64_t block = first; block < last && visible.begin < visible.end; ++block) {
      if (a.packs_own) pack_block<T>(a, data, batch, block, own);
      const int64_t offset = (batch / a.group * a.key_blocks + block) * a.packed_floats;
      const U* packed = a.packs_own ? own : shared + offset;
      run_block<T>(a, data, ws, packed, at, window_of(visible, block, keys_in(a, block)), block,
                   block == first);
    }
    finish<T>(a, data, ws, at);
  }
  return {};
}

template <class U>
FlashPhases phases_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return {pack_keys<F16, U>, query_blocks<F16, U>};
    case DType::bf16: return {pack_keys<BF16, U>, query_blocks<BF16, U>};
    default: return {pack_keys<float, U>, query_blocks<float, U>};
  }
}

}  // namespace

FlashPhases flash_phases(DType dtype, bool is_bf16) {
  return is_bf16 ? phases_of<Bf16Pair>(dtype) : phases_of<float>(dtype);
}

}  // namespace sdx::SDX_ISA
