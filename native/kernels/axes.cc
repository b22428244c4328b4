// Canonical axes: sorting, merging, and the view along one axis.
#include "kernels/axes.h"

namespace sdx::SDX_ISA {
namespace {

int64_t magnitude(int64_t step) { return step < 0 ? -step : step; }

}  // namespace

// Insertion sort: there are at most kMaxRank axes.
void Axes::sort() {
  for (int i = 1; i < n; ++i)
    for (int j = i; j > 0 && magnitude(step[j - 1]) < magnitude(step[j]); --j) {
      const int64_t held[] = {size[j], step[j], out[j]};
      size[j] = size[j - 1], step[j] = step[j - 1], out[j] = out[j - 1];
      size[j - 1] = held[0], step[j - 1] = held[1], out[j - 1] = held[2];
    }
}

void Axes::merge() {
  int last = 0;
  for (int i = 1; i < n; ++i) {
    if (step[last] == step[i] * size[i] && out[last] == out[i] * size[i]) {
      size[last] *= size[i];
    } else {
      ++last;
      size[last] = size[i];
    }
    step[last] = step[i], out[last] = out[i];
  }
  if (n > 0) n = last + 1;
}

// The innermost merged axis after `axis` becomes the columns; everything else is outer.
AxisView view_along(const View& x, const View& y, int axis) {
  AxisView view;
  if (x.rank == 0) return view;
  view.n = x.dims[axis], view.step = x.strides[axis], view.out_step = y.strides[axis];
  Axes inner;
  for (int i = 0; i < x.rank; ++i)
    if (i != axis) (i < axis ? view.outer : inner).add(x.dims[i], x.strides[i], y.strides[i]);
  inner.merge();
  if (inner.n > 0) {
    --inner.n;
    view.columns = inner.size[inner.n], view.column_step = inner.step[inner.n];
  }
  for (int i = 0; i < inner.n; ++i) view.outer.add(inner.size[i], inner.step[i], inner.out[i]);
  view.outer.merge();
  view.n_outer = view.outer.count();
  return view;
}

}  // namespace sdx::SDX_ISA
