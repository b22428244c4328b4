// How scales and zero points are laid out over a tensor (per tensor, per axis, blockwise), seen
// from the loops: rows of contiguous elements that share one scale, or have one scale per element.
#pragma once

#include "kernels/kernel.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {

// Elements of an item at most: with many scales, of which 4 KiB are on the stack, or with one.
constexpr int64_t kChunk = 1024, kLongChunk = 16384;

enum class Granularity : uint8_t {
  per_tensor,       // per tensor
  per_axis,         // per axis that is not the last: one for each row after it
  per_last_axis,    // per last axis: each element of a row has its own
  per_block,        // blocks along the last axis
  per_short_block,  // the same, where a chunk has several
  per_inner_block   // blocks along another axis: each element of a row has its own
};

struct ScaleLayout {
  Granularity kind;
  int64_t n_rows, n;  // rows of at most n elements
  int64_t axis_len, inner, block, n_blocks;
  int64_t n_chunks, chunk;  // of a row, and the elements of each but the last
  DType x, y, scale;
  bool has_zero;
};

// Part of a row: elements [begin, begin + n), and the offset of its first scale.
struct RowChunk {
  int64_t begin, n, scale;
};

SDX_INLINE bool has_scale_per_element(Granularity kind) {
  return kind == Granularity::per_last_axis || kind == Granularity::per_inner_block;
}

// The chunk of an item. The last block of an axis may be shorter than the others.
SDX_INLINE RowChunk chunk_of(const ScaleLayout& r, int64_t item) {
  const int64_t row = r.n_chunks == 1 ? item : item / r.n_chunks;
  const int64_t from = (item - row * r.n_chunks) * r.chunk;
  int64_t begin = row * r.n, n = r.n, scale = 0;
  switch (r.kind) {
    case Granularity::per_tensor: break;
    case Granularity::per_axis: scale = row < r.axis_len ? row : row % r.axis_len; break;
    case Granularity::per_last_axis: scale = from; break;
    case Granularity::per_block: {
      const int64_t along = row % r.n_blocks * r.block;
      begin = row / r.n_blocks * r.axis_len + along;
      if (n > r.axis_len - along) n = r.axis_len - along;
      scale = row;
      break;
    }
    case Granularity::per_short_block: scale = row * r.n_blocks + from / r.block; break;
    case Granularity::per_inner_block:
      scale = (row / r.axis_len * r.n_blocks + row % r.axis_len / r.block) * r.n + from;
      break;
  }
  n -= from;
  return {begin + from, n < 0 ? 0 : n < r.chunk ? n : r.chunk, scale};
}

// Neighbouring elements of a chunk that share a scale.
SDX_INLINE int64_t run_length(const ScaleLayout& r, const RowChunk& p) {
  return r.kind == Granularity::per_short_block ? r.block : p.n < 1 ? 1 : p.n;
}

// Operands: x, scale, zero point. ints: axis, block size.
SDX_INLINE ScaleLayout* scale_layout(const Call& call, Plan& plan) {
  auto* r = plan.make<ScaleLayout>();
  const View& x = call.in[0];
  const int64_t count = x.count();
  r->x = x.dtype, r->y = call.out[0].dtype, r->scale = call.in[1].dtype;
  r->has_zero = call.in[2].is_given();
  r->n_rows = 1, r->n = count, r->axis_len = r->inner = r->block = r->n_blocks = 1;
  if (call.in[1].count() != 1) {
    const int axis = int(call.ints[0]);
    r->axis_len = x.dims[axis], r->inner = x.count(axis + 1, x.rank), r->block = call.ints[1];
    const int64_t outer = x.count(0, axis);
    if (r->block == 0) {
      r->kind = r->inner == 1 ? Granularity::per_last_axis : Granularity::per_axis;
      r->n = r->inner == 1 ? r->axis_len : r->inner;
    } else {
      r->n_blocks = (r->axis_len + r->block - 1) / r->block;
      const bool is_short = r->block <= kChunk / 2;
      r->kind = r->inner > 1 ? Granularity::per_inner_block
                : is_short   ? Granularity::per_short_block
                             : Granularity::per_block;
      r->n = r->inner > 1 ? r->inner : is_short ? r->axis_len : r->block;
    }
    r->n_rows = r->kind == Granularity::per_block ? outer * r->n_blocks
                : count == 0                      ? 0
                                                  : count / r->n;
  }
  r->chunk = r->kind == Granularity::per_short_block ? kChunk / r->block * r->block
             : has_scale_per_element(r->kind)        ? kChunk
                                                     : kLongChunk;
  r->n_chunks = (r->n + r->chunk - 1) / r->chunk;
  if (r->n_chunks == 0) r->n_chunks = 1;
  plan.args = r;
  return r;
}

// n scales, converted to float.
SDX_INLINE void read_scales(const void* from, DType dtype, int64_t at, int64_t n, float* to) {
  vloop(n, [&](int64_t i, auto lanes) {
    const f32v v = dtype == DType::f32 ? load(static_cast<const float*>(from) + at + i, lanes)
                   : dtype == DType::f16
                       ? load_float(static_cast<const F16*>(from) + at + i, lanes)
                       : load_float(static_cast<const BF16*>(from) + at + i, lanes);
    store(to + i, v, lanes);
  });
}

}  // namespace sdx::SDX_ISA
