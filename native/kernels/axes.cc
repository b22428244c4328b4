#include "kernels/axes.h"

namespace sdx::SDX_ISA {
namespace {

int64_t magnitude(int64_t step) { return step < 0 ? -step : step; }

}  // namespace

void Axes::sort() {
  for (int i = 1; i < n; ++i)
    for (int j = i; j > 0 && magnitude(step[j - 1]) < magnitude(step[j]); --j) {
      const int64_t held[] = {size[j], step[j], out[j]};
      size[j] = size[j - 1], step[j] = step[j - 1], out[j] = out[j - 1];
      size[j - 1] = held[0], step[j - 1] = held[1], out[j - 1] = held[2];
    }
}

void Axes::merge() {
  int kept = 0;
  for (int i = 1; i < n; ++i) {
    if (step[kept] == step[i] * size[i] && out[kept] == out[i] * size[i]) {
      size[kept] *= size[i];
    } else {
      ++kept;
      size[kept] = size[i];
    }
    step[kept] = step[i], out[kept] = out[i];
  }
  if (n > 0) n = kept + 1;
}

AxisView view_along(const View& x, const View& y, int axis) {
  AxisView made;
  if (x.rank == 0) return made;
  made.n = x.dims[axis], made.step = x.strides[axis], made.out_step = y.strides[axis];
  Axes inner;
  for (int i = 0; i < x.rank; ++i)
    if (i != axis) (i < axis ? made.outer : inner).add(x.dims[i], x.strides[i], y.strides[i]);
  inner.merge();
  if (inner.n > 0) {
    --inner.n;
    made.columns = inner.size[inner.n], made.column_step = inner.step[inner.n];
  }
  for (int i = 0; i < inner.n; ++i) made.outer.add(inner.size[i], inner.step[i], inner.out[i]);
  made.outer.merge();
  made.n_outer = made.outer.count();
  return made;
}

}  // namespace sdx::SDX_ISA
