// Axes of a strided tensor in their simplest form: those that lie end to end are one.
#pragma once

#include "base/inline.h"
#include "base/view.h"

namespace sdx::SDX_ISA {

struct Axes {
  int n = 0;
  int64_t size[kMaxRank] = {};
  int64_t step[kMaxRank] = {};  // in the input
  int64_t out[kMaxRank] = {};   // in the output

  SDX_INLINE void add(int64_t axis_len, int64_t stride, int64_t out_stride) {
    if (axis_len == 1) return;
    size[n] = axis_len, step[n] = stride, out[n] = out_stride;
    ++n;
  }
  SDX_INLINE int64_t count() const { return count(n); }
  SDX_INLINE int64_t count(int first) const {
    int64_t total = 1;
    for (int i = 0; i < first; ++i) total *= size[i];
    return total;
  }
  SDX_INLINE int64_t last_size() const { return n ? size[n - 1] : 1; }
  SDX_INLINE int64_t last_step() const { return n ? step[n - 1] : 1; }
  SDX_INLINE int64_t last_out() const { return n ? out[n - 1] : 1; }

  // Large strides of the input first, so that the last axis is the densest.
  void sort();
  // Neighbours that both tensors hold end to end become one axis.
  void merge();
};

struct Offsets {
  int64_t in = 0, out = 0;
};

// Where element `index` of the first `n` axes lies, counted in row-major order.
SDX_INLINE Offsets offsets_of(const Axes& axes, int n, int64_t index) {
  Offsets place;
#pragma GCC unroll 1
  for (int i = n - 1; i > 0; --i) {
    const int64_t at = index % axes.size[i];
    index /= axes.size[i];
    place.in += at * axes.step[i], place.out += at * axes.out[i];
  }
  if (n > 0) place.in += index * axes.step[0], place.out += index * axes.out[0];
  return place;
}

// A tensor around one axis: [outer..., n, columns], where `columns` is what lies densest behind it.
struct AxisView {
  Axes outer;  // all other axes, in no order that matters
  int64_t n_outer = 1;
  int64_t n = 1, step = 1, out_step = 1;  // the axis; outputs are contiguous
  int64_t columns = 1, column_step = 1;   // side by side in the output
};

AxisView view_along(const View& x, const View& y, int axis);

}  // namespace sdx::SDX_ISA
