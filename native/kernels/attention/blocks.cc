// Attention of many queries: a block of them against one packed block of keys after the other, with
// the softmax's largest score and sum carried along.
#include "kernels/attention/attention.h"
#include "kernels/gemm/pack.h"

namespace sdx::SDX_ISA {
namespace {

// Where a thread's own memory holds what.
struct Room {
  void* rows;      // of A, for products
  float* scores;   // [rows, keys of a block]
  float* sums;     // [rows, width], of all blocks so far
  float* part;     // [rows, width], of one block
  f32v* totals;    // [rows], by lane
  float* tops;     // [rows]
  float* factors;  // [rows], what a larger top makes of the sums before it
};

Room room_of(const AttentionArgs& a, const Data& data, int64_t rows) {
  const auto at = [&](int64_t offset) { return reinterpret_cast<float*>(data.local + offset); };
  float* row = at(a.row_at);
  return {data.local,
          at(a.scores_at),
          at(a.sums_at),
          at(a.part_at),
          reinterpret_cast<f32v*>(row),
          row + rows * kLanes,
          row + rows * (kLanes + 1)};
}

int64_t keys_in(const AttentionArgs& a, int64_t block) {
  const int64_t left = a.keys - block * kKeys;
  return left < kKeys ? left : kKeys;
}

void pack_block(const AttentionArgs& a, const Data& data, int64_t batch, int64_t block, float* to) {
  const int64_t first = block * kKeys, n = keys_in(a, block);
  const float* k = input<float>(data, 1) + a.k.batches.offset(batch) + first * a.k.row_stride;
  for (int64_t p = 0; p < panels_of(n); ++p, to += a.depth * kPanel)
    pack_panel(k, a.k.column_stride, a.k.row_stride, a.depth, n, p, to);
  const float* v = input<float>(data, 2) + a.v.batches.offset(batch) + first * a.v.row_stride;
  for (int64_t p = 0; p < panels_of(a.width); ++p, to += n * kPanel)
    pack_panel(v, a.v.row_stride, a.v.column_stride, n, a.width, p, to);
}

// All panels of a packed matrix, the zeros behind its last column included.
Columns whole_panels(const float* packed, int64_t n) {
  return {packed, panels_of(n) * kPanel, 0, panels_of(n)};
}

// Masks the scores of a block, and notes the tops and what they do to the sums so far.
void raise_tops(const AttentionArgs& a, const Room& room, const float* mask, int64_t rows,
                int64_t n, bool is_first) {
  for (int64_t i = 0; i < rows; ++i) {
    const float* added = a.has_mask ? mask + i * a.mask.row_stride : nullptr;
    const float top = add_mask(a, added, room.scores + i * row_floats(n), n);
    if (is_first) {
      room.tops[i] = top;
      room.totals[i] = f32v{};
      continue;
    }
    const float before = room.tops[i], now = top > before || top != top ? top : before;
    room.factors[i] = before == -kInf ? 0 : now == before ? 1 : vexp(splat(before - now))[0];
    room.tops[i] = now;
    room.totals[i] *= room.factors[i];
  }
}

void add_part(const AttentionArgs& a, const Room& room, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) {
    float* sums = room.sums + i * row_floats(a.width);
    const float* part = room.part + i * row_floats(a.width);
    const float factor = room.factors[i];
    vloop(a.width, [&](int64_t j, auto lanes) {
      store(sums + j, load(sums + j, lanes) * factor + load(part + j, lanes), lanes);
    });
  }
}

void run_block(const AttentionArgs& a, const Data& data, const Room& room, const float* packed,
               int64_t batch, int64_t row, int64_t rows, int64_t block) {
  const int64_t n = keys_in(a, block), stride = row_floats(n);
  const float* q = input<float>(data, 0) + a.q.batches.offset(batch) + row * a.q.row_stride;
  gemm_block(room.rows, rows, a.depth, whole_panels(packed, n), Target{room.scores, stride},
             Finish{a.scale},
             [&](float* to, int64_t i, int64_t count, int64_t depth, int64_t depths) {
               copy_matrix(q + i * a.q.row_stride + depth * a.q.column_stride, a.q.row_stride,
                           a.q.column_stride, count, depths, to, kStride);
             });
  const float* mask = nullptr;
  if (a.has_mask)
    mask = input<float>(data, 3) + a.mask.batches.offset(batch) + row * a.mask.row_stride +
           block * kKeys * a.mask.column_stride;
  raise_tops(a, room, mask, rows, n, block == 0);
  const float* values = packed + packed_floats(a.depth, n);
  gemm_block(room.rows, rows, n, whole_panels(values, a.width),
             Target{block == 0 ? room.sums : room.part, row_floats(a.width)}, Finish{},
             [&](float* to, int64_t first, int64_t count, int64_t depth, int64_t depths) {
               for (int64_t i = first; i < first + count; ++i, to += kStride)
                 room.totals[i] += exponents(room.scores + i * stride + depth,
                                             shift_of(room.tops[i]), to, depths);
             });
  if (block > 0) add_part(a, room, rows);
}

}  // namespace

Status pack_keys(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AttentionArgs*>(args);
  auto* to = reinterpret_cast<float*>(data.scratch);
  for (int64_t i = begin; i < end; ++i)
    pack_block(a, data, i / a.key_blocks, i % a.key_blocks, to + i * a.packed_floats);
  return {};
}

Status query_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const AttentionArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / a.query_blocks, part = item % a.query_blocks;
    const int64_t row = part_begin(a.rows, a.query_blocks, part);
    const int64_t rows = part_begin(a.rows, a.query_blocks, part + 1) - row;
    const Room room = room_of(a, data, rows);
    auto* own = reinterpret_cast<float*>(data.local + a.packed_at);
    const auto* shared = reinterpret_cast<const float*>(data.scratch);
    for (int64_t block = 0; block < a.key_blocks; ++block) {
      if (a.packs_own) pack_block(a, data, batch, block, own);
      const int64_t place = (batch * a.key_blocks + block) * a.packed_floats;
      run_block(a, data, room, a.packs_own ? own : shared + place, batch, row, rows, block);
    }
    float* out = output<float>(data) + a.out.batches.offset(batch) + row * a.out.row_stride;
    for (int64_t i = 0; i < rows; ++i)
      finish_row(a, room.sums + i * row_floats(a.width), fold_sum(room.totals[i]),
                 out + i * a.out.row_stride);
  }
  return {};
}

}  // namespace sdx::SDX_ISA
