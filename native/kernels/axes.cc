// Canonical axes: sorting, merging, and the view along one axis.
#include "kernels/axes.h"

namespace sdx::SDX_ISA {
namespace {

int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

}  // namespace

// Insertion sort: there are at most kMaxRank axes.
void Axes::sort() {
  for (int i = 1; i < n; ++i)
    for (int j = i; j > 0 && magnitude(stride[j - 1]) < magnitude(stride[j]); --j) {
      const int64_t moved[] = {size[j], stride[j], out[j]};
      size[j] = size[j - 1], stride[j] = stride[j - 1], out[j] = out[j - 1];
      size[j - 1] = moved[0], stride[j - 1] = moved[1], out[j - 1] = moved[2];
    }
}

void Axes::merge() {
  int last = 0;
  for (int i = 1; i < n; ++i) {
    if (stride[last] == stride[i] * size[i] && out[last] == out[i] * size[i]) {
      size[last] *= size[i];
    } else {
      ++last;
      size[last] = size[i];
    }
    stride[last] = stride[i], out[last] = out[i];
  }
  if (n > 0) n = last + 1;
}

// The innermost merged axis after `axis` becomes the columns; everything else is outer.
AxisView view_along(const View& x, const View& y, int axis) {
  AxisView view;
  if (x.rank == 0) return view;
  view.n = x.dims[axis], view.stride = x.strides[axis], view.out_stride = y.strides[axis];
  Axes inner;
  for (int i = 0; i < x.rank; ++i)
    if (i != axis) (i < axis ? view.outer : inner).add(x.dims[i], x.strides[i], y.strides[i]);
  inner.merge();
  if (inner.n > 0) {
    --inner.n;
    view.columns = inner.size[inner.n], view.column_stride = inner.stride[inner.n];
  }
  for (int i = 0; i < inner.n; ++i) view.outer.add(inner.size[i], inner.stride[i], inner.out[i]);
  view.outer.merge();
  view.n_outer = view.outer.count();
  return view;
}

}  // namespace sdx::SDX_ISA
