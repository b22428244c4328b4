// AffineGrid: evenly spaced points of an image or volume in [-1, 1], mapped by one affine matrix
// per batch entry.
#include "kernels/elements.h"
#include "kernels/sample/kernels.h"

namespace sdx::SDX_ISA {
namespace {

struct AffineArgs {
  int n;  // axes
  int64_t dims[3];
  int64_t points;
  bool is_aligned;
};

// Coordinate i of `count` evenly spaced ones: from -1 to 1 (align_corners), or the centres of
// pixels.
template <class C>
C even_point(const AffineArgs& a, int64_t i, int64_t count) {
  const double step = double(i);
  if (a.is_aligned) return C(step * (2 / double(count > 1 ? count - 1 : 1)) - 1);
  return C((2 * step + 1) / double(count) - 1);
}

// Item: one point of one batch entry.
template <class T>
Status map_points(const void* args, const Data& data, int64_t begin, int64_t end) {
  using C = Wide<T>;
  const auto& a = *static_cast<const AffineArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const T* theta = input<T>(data, 0) + item / a.points * a.n * (a.n + 1);
    C base[3];
    int64_t rest = item % a.points;
    for (int i = 0; i < a.n; ++i) {  // the innermost axis comes first
      const int64_t count = a.dims[a.n - 1 - i];
      base[i] = even_point<C>(a, rest % count, count);
      rest /= count;
    }
    for (int i = 0; i < a.n; ++i) {
      C sum = number<C>(theta[i * (a.n + 1) + a.n]);
      for (int k = 0; k < a.n; ++k) sum += base[k] * number<C>(theta[i * (a.n + 1) + k]);
      output<T>(data)[item * a.n + i] = element<T>(sum);
    }
  }
  return {};
}

}  // namespace

Status affine_grid(const Call& call, Plan& plan) {
  const View& y = call.out[0];
  auto* a = plan.make<AffineArgs>();
  a->n = y.rank - 2;
  a->points = y.count(1, y.rank - 1);
  a->is_aligned = call.ints[0] != 0;
  for (int i = 0; i < a->n; ++i) a->dims[i] = y.dims[1 + i];
  plan.args = a;
  return visit(y.dtype, Floats{}, [&]<class T>() {
    plan.add(map_points<T>, y.dims[0] * a->points, 20);
    return Status{};
  });
}

Status affine_grid_sizes(const Call& call, const Data& data, View* out) {
  const int n = out->rank - 2;
  if (call.in[1].count() != n + 2)
    return Status::fail("size has %ld numbers, and theta does not map %ld axes",
                        long(call.in[1].count()), long(call.in[1].count() - 2));
  const auto* sizes = input<int64_t>(data, 1);
  out->dims[0] = call.in[0].dims[0];
  for (int i = 0; i < n; ++i) {
    if (sizes[2 + i] < 0)
      return Status::fail("size has the negative number %ld", long(sizes[2 + i]));
    out->dims[1 + i] = sizes[2 + i];
  }
  out->dims[n + 1] = n;
  return {};
}

}  // namespace sdx::SDX_ISA
