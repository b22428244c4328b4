// GridSample: for a block of points, where their neighbours lie and what these weigh; then channel
// by channel their sums.
#include "kernels/fetch.h"
#include "kernels/sample/rows.h"
#include "kernels/sample/taps.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kBlock = 128;  // points
constexpr int kMaxAxes = 3;

struct GridArgs {
  SampleMode mode;
  SamplePadding padding;
  DType grid;
  int n_axes;
  SampleAxis axes[kMaxAxes];
  int64_t channels, plane, points;  // of an image
  int64_t blocks;                   // of points, likewise
  int n_taps;
};

template <class C>
struct Found {  // by tap, for all points of a block
  int32_t* at;  // in a plane of the image, or kOutside
  C* weight;
};

// Number i of the grid.
template <class C>
SDX_INLINE C coordinate(const GridArgs& a, const void* grid, int64_t i) {
  switch (a.grid) {
    case DType::f16: return number<C>(static_cast<const F16*>(grid)[i]);
    case DType::bf16: return number<C>(static_cast<const BF16*>(grid)[i]);
    case DType::f64: return C(static_cast<const double*>(grid)[i]);
    default: return C(static_cast<const float*>(grid)[i]);
  }
}

template <class C>
void find_point(const GridArgs& a, const void* grid, int64_t point, int64_t p, const Found<C>& to) {
  int n = 1;
  to.at[p] = 0, to.weight[p] = 1;
  for (int i = 0; i < a.n_axes; ++i) {
    // The innermost axis comes first in the grid.
    const C x = coordinate<C>(a, grid, point * a.n_axes + a.n_axes - 1 - i);
    AxisTaps<C> taps;
    const int m = find_taps(x, a.axes[i], a.mode, a.padding, taps);
    // Each tap but the first adds a copy of those so far; the first goes last, in place.
    for (int t = m - 1; t >= 0; --t)
      for (int k = 0; k < n; ++k) {
        const int32_t before = to.at[k * kBlock + p], index = taps.index[t];
        const bool is_outside = before == kOutside || index == kOutside;
        const int64_t slot = int64_t(t * n + k) * kBlock + p;
        to.at[slot] = is_outside ? kOutside : before * int32_t(a.axes[i].size) + index;
        to.weight[slot] = to.weight[k * kBlock + p] * taps.weight[t];
      }
    n *= m;
  }
}

template <class T, class C>
void sum_taps(const GridArgs& a, const Found<C>& found, const T* x, int64_t n, C* sums) {
  for (int64_t p = 0; p < n; ++p) sums[p] = 0;
  for (int t = 0; t < a.n_taps; ++t) {
    const int32_t* at = found.at + t * kBlock;
    const C* weight = found.weight + t * kBlock;
    for (int64_t p = 0; p < n; ++p) sums[p] += weight[p] * (at[p] < 0 ? C(0) : number<C>(x[at[p]]));
  }
}

// Item: a block of points of an image, in all channels.
template <class T, class C, bool kPicks>
Status grid_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GridArgs*>(args);
  auto* weights = reinterpret_cast<C*>(data.local);
  C* sums = weights + a.n_taps * kBlock;
  const Found<C> found{reinterpret_cast<int32_t*>(sums + kBlock), weights};
  for (int64_t item = begin; item < end; ++item) {
    const int64_t image = item / a.blocks, first = item % a.blocks * kBlock;
    const int64_t n = a.points - first < kBlock ? a.points - first : kBlock;
    for (int64_t p = 0; p < n; ++p)
      find_point(a, data.in[1], image * a.points + first + p, p, found);
    for (int64_t c = image * a.channels; c < (image + 1) * a.channels; ++c) {
      const T* x = input<T>(data, 0) + c * a.plane;
      T* y = output<T>(data) + c * a.points + first;
      if constexpr (kPicks) {
        for (int64_t p = 0; p < n; ++p) y[p] = found.at[p] < 0 ? T{} : x[found.at[p]];
      } else {
        C* to = place(y, sums);
        sum_taps(a, found, x, n, to);
        put(y, to, n);
      }
    }
  }
  return {};
}

template <class C>
PhaseFn picked(int64_t size) {
  switch (size) {
    case 1: return grid_blocks<uint8_t, C, true>;
    case 2: return grid_blocks<uint16_t, C, true>;
    case 4: return grid_blocks<uint32_t, C, true>;
    default: return grid_blocks<uint64_t, C, true>;
  }
}

}  // namespace

Status grid_sample(const Call& call, Plan& plan) {
  const View &x = call.in[0], &grid = call.in[1], &y = call.out[0];
  if (y.count() == 0) return {};
  auto* a = plan.make<GridArgs>();
  a->mode = SampleMode(call.ints[0]), a->padding = SamplePadding(call.ints[1]);
  a->grid = grid.dtype;
  a->n_axes = x.rank - 2;
  a->n_taps = 1;
  for (int i = 0; i < a->n_axes; ++i) {
    const double size = double(x.dims[i + 2]), edge = call.ints[2] != 0 ? 0 : 0.5;
    a->axes[i] = {x.dims[i + 2], -edge, size - 1 + edge};
    a->n_taps *= a->mode == kSampleNearest ? 1 : a->mode == kSampleLinear ? 2 : 4;
  }
  a->channels = x.dims[1], a->plane = x.count(2, x.rank), a->points = y.count(2, y.rank);
  if (a->plane == 0) return Status::fail("an image without pixels has nothing to sample");
  if (a->plane > INT32_MAX)
    return Status::fail("an image of %ld pixels is too large", long(a->plane));
  a->blocks = (a->points + kBlock - 1) / kBlock;
  plan.args = a;
  const bool is_double = grid.dtype == DType::f64;
  plan.local_bytes = kBlock * (a->n_taps * 12 + 8);
  const int64_t work = kBlock * (20 * a->n_axes + a->n_taps * (2 + a->channels));
  const auto add = [&](PhaseFn run) { plan.add(run, x.dims[0] * a->blocks, work); };
  if (a->mode == kSampleNearest) {
    add(is_double ? picked<double>(size_of(x.dtype)) : picked<float>(size_of(x.dtype)));
    return {};
  }
  return visit(x.dtype, Floats{}, [&]<class T>() {
    add(grid_blocks<T, Wide<T>, false>);
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
