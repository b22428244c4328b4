// How scales lie over a tensor: as rows of elements with one scale for all, or one for each.
#pragma once

#include "kernels/kernel.h"
#include "simd/narrow.h"

namespace sdx::SDX_ISA {

constexpr int64_t kChunk = 1024;  // elements that one item of a phase takes, at most

enum class Scales : uint8_t {
  one,           // for the whole tensor
  of_axis,       // one for each row behind an axis
  of_last,       // the axis is the last: each element of a row has its own
  of_block,      // blocks along the last axis
  of_deep_block  // blocks along another: each element of a row has its own
};

struct ScaleRows {
  Scales kind;
  int64_t n_rows, n;  // rows of at most n elements
  int64_t axis_len, inner, block, n_blocks;
  int64_t n_chunks;  // parts of a row
  DType x, y, scale;
  bool has_zero;
};

// Part of a row: elements [begin, begin + n), and where its scales begin.
struct Piece {
  int64_t begin, n, scale;
};

SDX_INLINE bool is_each(Scales kind) {
  return kind == Scales::of_last || kind == Scales::of_deep_block;
}

SDX_INLINE Piece piece_of(const ScaleRows& r, int64_t item) {
  const int64_t row = item / r.n_chunks, from = item % r.n_chunks * kChunk;
  int64_t begin = row * r.n, n = r.n, scale = 0;
  switch (r.kind) {
    case Scales::one: break;
    case Scales::of_axis: scale = row % r.axis_len; break;
    case Scales::of_last: scale = from; break;
    case Scales::of_block: {
      const int64_t along = row % r.n_blocks * r.block;
      begin = row / r.n_blocks * r.axis_len + along;
      if (n > r.axis_len - along) n = r.axis_len - along;
      scale = row;
      break;
    }
    case Scales::of_deep_block:
      scale = (row / r.axis_len * r.n_blocks + row % r.axis_len / r.block) * r.n + from;
      break;
  }
  n -= from;
  return {begin + from, n < 0 ? 0 : n < kChunk ? n : kChunk, scale};
}

// Operands: x, scale, zero point. ints: axis, block size.
SDX_INLINE ScaleRows* scale_rows(const Call& call, Plan& plan) {
  auto* r = plan.make<ScaleRows>();
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
      r->kind = r->inner == 1 ? Scales::of_last : Scales::of_axis;
      r->n = r->inner == 1 ? r->axis_len : r->inner;
    } else {
      r->n_blocks = (r->axis_len + r->block - 1) / r->block;
      r->kind = r->inner == 1 ? Scales::of_block : Scales::of_deep_block;
      r->n = r->inner == 1 ? r->block : r->inner;
    }
    r->n_rows = r->kind == Scales::of_block ? outer * r->n_blocks : count == 0 ? 0 : count / r->n;
  }
  r->n_chunks = (r->n + kChunk - 1) / kChunk;
  if (r->n_chunks == 0) r->n_chunks = 1;
  plan.args = r;
  return r;
}

// n scales as float.
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
