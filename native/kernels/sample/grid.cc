// GridSample in nearest, (bi/tri)linear and (bi/tri)cubic mode. The taps of a block of points are
// computed once, and then applied to every channel: coordinates cost more than the sums.
#include "kernels/sample/kernels.h"
#include "kernels/sample/points.h"

namespace sdx::SDX_ISA {
namespace {

struct GridArgs {
  Interleaved images;  // where taps cost more than the copy
  SampleMode mode;
  SamplePadding padding;
  DType grid;
  int n_axes;
  SampleAxis axes[kMaxAxes];
  int64_t channels, plane, points;  // of an image
  int64_t blocks;                   // of points, likewise
  int n_taps;
};

// Element i of the grid, in the arithmetic type.
template <class C>
SDX_INLINE C coordinate(const GridArgs& a, const void* grid, int64_t i) {
  switch (a.grid) {
    case DType::f16: return number<C>(static_cast<const F16*>(grid)[i]);
    case DType::bf16: return number<C>(static_cast<const BF16*>(grid)[i]);
    case DType::f64: return C(static_cast<const double*>(grid)[i]);
    default: return C(static_cast<const float*>(grid)[i]);
  }
}

// The interpolation taps of grid points [first, first + n).
template <class C>
void locate_points(const GridArgs& a, const void* grid, int64_t first, int64_t n,
                   const PointTaps<C>& taps_of) {
  C coordinates[kBlock];
  BlockTaps<C> taps;
  int count = taps_of.begin(n);
  for (int i = 0; i < a.n_axes; ++i) {
    const int which = a.n_axes - 1 - i;  // the innermost axis comes first in the grid
    const int64_t at = first * a.n_axes + which;
    for (int64_t p = 0; p < n; ++p)
      coordinates[p] =
          pixel_coordinate(coordinate<C>(a, grid, at + p * a.n_axes), a.axes[i], a.mode);
    const int m = block_taps(coordinates, n, a.axes[i], a.mode, a.padding, taps);
    count = taps_of.add(n, count, taps, m, a.axes[i].size);
  }
}

// Item: a block of points of an image, in all channels. kPicks: nearest mode, which copies elements
// of any type by their size.
template <class T, class C, bool kNearest>
Status grid_blocks(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const GridArgs*>(args);
  C* sums = reinterpret_cast<C*>(data.local);
  const PointTaps<C> taps_of = point_taps_in<C>(data.local, a.n_taps);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t image = item / a.blocks, first = item % a.blocks * kBlock;
    const int64_t n = a.points - first < kBlock ? a.points - first : kBlock;
    locate_points(a, data.in[1], image * a.points + first, n, taps_of);
    if constexpr (std::is_same_v<T, float> && !kNearest)
      if (a.images.units > 0) {
        const TapTable table = table_of(taps_of, a.n_taps, n, a.plane);
        float* y = output<float>(data) + image * a.channels * a.points + first;
        for (int64_t g = 0; g < a.images.groups; ++g)
          sum_group(table, a.images.pixels(data, image, g), a.images.live_channels(g), nullptr,
                    y + g * kGroup * a.points, a.points);
        continue;
      }
    for (int64_t c = image * a.channels; c < (image + 1) * a.channels; ++c) {
      const T* x = input<T>(data, 0) + c * a.plane;
      T* y = output<T>(data) + c * a.points + first;
      if constexpr (kNearest) {
        for (int64_t p = 0; p < n; ++p) y[p] = taps_of.at[p] < 0 ? T{} : x[taps_of.at[p]];
      } else {
        C* to = result_buffer(y, sums);
        sum_taps(taps_of, a.n_taps, x, n, to);
        write_elements(y, to, n);
      }
    }
  }
  return {};
}

template <class C>
PhaseFn nearest_blocks(int64_t size) {
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
  plan.local_bytes = block_bytes(a->n_taps);
  const int64_t work = kBlock * (20 * a->n_axes + a->n_taps * (2 + a->channels));
  const auto add = [&](PhaseFn run) { plan.add(run, x.dims[0] * a->blocks, work); };
  if (a->mode == kSampleNearest) {
    add(is_double ? nearest_blocks<double>(size_of(x.dtype))
                  : nearest_blocks<float>(size_of(x.dtype)));
    return {};
  }
  if (x.dtype == DType::f32 && !is_double && Interleaved::pays(a->channels) &&
      a->points * a->n_taps >= a->plane)
    add_interleaved(x.dims[0], a->channels, a->plane, a->images, plan);
  return visit(x.dtype, Floats{}, [&]<class T>() {
    add(grid_blocks<T, Wide<T>, false>);
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
