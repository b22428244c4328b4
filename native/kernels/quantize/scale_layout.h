// How scales and zero points are laid out over a tensor (per tensor, per axis, blockwise), seen
// from the loops: rows of contiguous elements that share one scale, or have one scale per element.
#pragma once

#include "kernels/kernel.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {

constexpr int64_t kChunk = 1024;  // elements of an item at most: 4 KiB of scales on the stack

enum class Granularity : uint8_t {
  per_tensor,      // per tensor
  per_axis,        // per axis that is not the last: one for each row after it
  per_last_axis,   // per last axis: each element of a row has its own
  per_block,       // blocks along the last axis
  per_inner_block  // blocks along another axis: each element of a row has its own
};

struct ScaleLayout {
  Granularity kind;
  int64_t n_rows, n;  // rows of at most n elements
  int64_t axis_len, inner, block, n_blocks;
  int64_t n_chunks;  // of a row
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
  const int64_t row = item / r.n_chunks, from = item % r.n_chunks * kChunk;
  int64_t begin = row * r.n, n = r.n, scale = 0;
  switch (r.kind) {
    case Granularity::per_tensor: break;
    case Granularity::per_axis: scale = row % r.axis_len; break;
    case Granularity::per_last_axis: scale = from; break;
    case Granularity::per_block: {
      const int64_t along = row % r.n_blocks * r.block;
      begin = row / r.n_blocks * r.axis_len + along;
      if (n > r.axis_len - along) n = r.axis_len - along;
      scale = row;
      break;
    }
    case Granularity::per_inner_block:
      scale = (row / r.axis_len * r.n_blocks + row % r.axis_len / r.block) * r.n + from;
      break;
  }
  n -= from;
  return {begin + from, n < 0 ? 0 : n < kChunk ? n : kChunk, scale};
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
      r->kind = r->inner == 1 ? Granularity::per_block : Granularity::per_inner_block;
      r->n = r->inner == 1 ? r->block : r->inner;
    }
    r->n_rows = r->kind == Granularity::per_block ? outer * r->n_blocks
                : count == 0                      ? 0
                                                  : count / r->n;
  }
  r->n_chunks = (r->n + kChunk - 1) / kChunk;
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
