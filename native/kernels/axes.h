// Axes of a strided tensor in canonical form: axes that are contiguous with each other are merged.
#pragma once

#include "base/inline.h"
#include "base/view.h"

namespace sdx::SDX_ISA {

struct Axes {
  int n = 0;
  int64_t size[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};  // stride in the input
  int64_t out[kMaxRank] = {};     // stride in the output

  SDX_INLINE void add(int64_t axis_len, int64_t in_stride, int64_t to_stride) {
    if (axis_len == 1) return;
    size[n] = axis_len, stride[n] = in_stride, out[n] = to_stride;
    ++n;
  }
  SDX_INLINE int64_t count() const { return count(n); }
  SDX_INLINE int64_t count(int first) const {
    int64_t total = 1;
    for (int i = 0; i < first; ++i) total *= size[i];
    return total;
  }
  SDX_INLINE int64_t last_size() const { return n ? size[n - 1] : 1; }
  SDX_INLINE int64_t last_stride() const { return n ? stride[n - 1] : 1; }
  SDX_INLINE int64_t last_out() const { return n ? out[n - 1] : 1; }

  // Orders axes by decreasing input stride, so that the last one is the densest.
  void sort();
  // Merges neighbouring axes that have a single stride in both tensors.
  void merge();
};

// Offsets of an element in input and output.
struct Offsets {
  int64_t in = 0, out = 0;
};

// Offsets of element `index` of the first `n` axes, in row-major order.
SDX_INLINE Offsets offsets_of(const Axes& axes, int n, int64_t index) {
  Offsets offsets;
#pragma GCC unroll 1
  for (int i = n - 1; i > 0; --i) {
    const int64_t at = index % axes.size[i];
    index /= axes.size[i];
    offsets.in += at * axes.stride[i], offsets.out += at * axes.out[i];
  }
  if (n > 0) offsets.in += index * axes.stride[0], offsets.out += index * axes.out[0];
  return offsets;
}

// A tensor seen along one axis: [outer..., n, columns], where `columns` is the densest axis after
// it. Kernels along an axis (softmax, normalization, cumulative sums) take n as the loop, and
// columns as vector lanes where there are any.
struct AxisView {
  Axes outer;  // all other axes
  int64_t n_outer = 1;
  int64_t n = 1, stride = 1, out_stride = 1;  // the axis, with its strides
  int64_t columns = 1, column_stride = 1;     // contiguous in the output
};

AxisView view_along(const View& x, const View& y, int axis);

}  // namespace sdx::SDX_ISA
