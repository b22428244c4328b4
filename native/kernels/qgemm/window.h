// A window that moves over the spatial axes of a channels-last tensor.
#pragma once

#include "kernels/kernel.h"

namespace sdx::SDX_ISA {

constexpr int kMaxSpatial = 4;

struct Window {
  int rank;
  int64_t kernel[kMaxSpatial], strides[kMaxSpatial], dilations[kMaxSpatial], front[kMaxSpatial];
  int64_t ins[kMaxSpatial], outs[kMaxSpatial];
  int64_t n_lines;  // taps, those along the last axis taken as one
  int64_t n_ins, n_outs;

  SDX_INLINE void locate(int64_t row, int64_t* out) const {
    for (int d = rank - 1; d >= 0; --d) {
      out[d] = row % outs[d];
      row /= outs[d];
    }
  }
  SDX_INLINE void advance(int64_t* out) const {
    for (int d = rank - 1; d >= 0 && ++out[d] == outs[d]; --d) out[d] = 0;
  }
  SDX_INLINE bool is_pointwise() const {
    for (int d = 0; d < rank; ++d)
      if (kernel[d] != 1 || strides[d] != 1 || front[d] != 0 || ins[d] != outs[d]) return false;
    return true;
  }
};

// ints: how to pad (0 as said, 1 so that sizes stay and the rest goes behind, 2 in front), then for
// each spatial axis kernel, stride, dilation and padding in front.
SDX_INLINE Window make_window(const View& x, const View& y, const int64_t* ints) {
  Window w{};
  w.rank = x.rank - 2;
  w.n_lines = w.n_ins = w.n_outs = 1;
  for (int d = 0; d < w.rank; ++d) {
    const int64_t* v = ints + 1 + 4 * d;
    w.kernel[d] = v[0], w.strides[d] = v[1], w.dilations[d] = v[2], w.front[d] = v[3];
    w.ins[d] = x.dims[1 + d], w.outs[d] = y.dims[1 + d];
    w.n_ins *= w.ins[d], w.n_outs *= w.outs[d];
    if (d < w.rank - 1) w.n_lines *= w.kernel[d];
    if (ints[0] != 0) {
      const int64_t span = (w.outs[d] - 1) * v[1] + (v[0] - 1) * v[2] + 1 - w.ins[d];
      const int64_t total = span < 0 ? 0 : span;
      w.front[d] = ints[0] == 1 ? total / 2 : total - total / 2;
    }
  }
  return w;
}

}  // namespace sdx::SDX_ISA
