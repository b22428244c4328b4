// AffineGrid: evenly spaced points of an image or volume in [-1, 1], mapped by one affine matrix
// per batch entry.
#include "kernels/elements.h"
#include "kernels/sample/kernels.h"

namespace sdx::SDX_ISA {
namespace {

struct AffineArgs {
  int n;  // axes
  int64_t dims[3];
  int64_t lines, width;  // of a batch entry; points of a line
  bool is_aligned;
  const double* inner;  // the coordinates of a line's points
};

// Coordinate i of `count` evenly spaced ones: from -1 to 1 (align_corners), or the centres of
// pixels.
double even_point(const AffineArgs& a, int64_t i, int64_t count) {
  const double step = double(i);
  if (a.is_aligned) return step * (2 / double(count > 1 ? count - 1 : 1)) - 1;
  return (2 * step + 1) / double(count) - 1;
}

// Item: one line of points, along the innermost axis, of one batch entry.
template <class T, int N>
Status map_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  using C = Wide<T>;
  const auto& a = *static_cast<const AffineArgs*>(args);
  for (int64_t item = begin; item < end; ++item) {
    const T* theta = input<T>(data, 0) + item / a.lines * N * (N + 1);
    C base[N], factors[N][N + 1];
    for (int i = 0; i < N; ++i)
      for (int k = 0; k <= N; ++k) factors[i][k] = number<C>(theta[i * (N + 1) + k]);
    int64_t rest = item % a.lines;
    for (int i = 1; i < N; ++i) {  // the innermost axis comes first
      const int64_t count = a.dims[N - 1 - i];
      base[i] = C(even_point(a, rest % count, count));
      rest /= count;
    }
    T* y = output<T>(data) + item * a.width * N;
    for (int64_t j = 0; j < a.width; ++j) {
      base[0] = C(a.inner[j]);
      for (int i = 0; i < N; ++i) {
        C sum = factors[i][N];
        for (int k = 0; k < N; ++k) sum += base[k] * factors[i][k];
        y[j * N + i] = element<T>(sum);
      }
    }
  }
  return {};
}

}  // namespace

Status affine_grid(const Call& call, Plan& plan) {
  const View& y = call.out[0];
  auto* a = plan.make<AffineArgs>();
  a->n = y.rank - 2;
  a->lines = y.count(1, a->n), a->width = y.dims[a->n];
  a->is_aligned = call.ints[0] != 0;
  for (int i = 0; i < a->n; ++i) a->dims[i] = y.dims[1 + i];
  auto* inner = plan.table<double>(size_t(a->width));
  if (inner == nullptr) return no_table();
  for (int64_t j = 0; j < a->width; ++j) inner[j] = even_point(*a, j, a->width);
  a->inner = inner;
  plan.args = a;
  return visit(y.dtype, Floats{}, [&]<class T>() {
    const PhaseFn run = a->n == 2 ? map_lines<T, 2> : map_lines<T, 3>;
    plan.add(run, a->width > 0 ? y.dims[0] * a->lines : 0, 20 + 4 * a->width);
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
