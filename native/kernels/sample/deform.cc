// The im2col of DeformConv: every tap of every output reads the image at its own offset, by
// bilinear (or trilinear) interpolation with zeros outside; a matrix product with the weights
// follows.
#include "kernels/sample/kernels.h"
#include "kernels/sample/points.h"

namespace sdx::SDX_ISA {
namespace {

struct DeformArgs {
  Interleaved images;  // where a group has enough channels
  int n_axes;
  int64_t out[kMaxAxes], taps[kMaxAxes], step[kMaxAxes], spacing[kMaxAxes], pads[kMaxAxes];
  SampleAxis axes[kMaxAxes];
  int64_t groups, channels;  // offset groups; channels of each
  int64_t n_taps, plane, outs, blocks;
  bool has_mask;
};

// The interpolation taps of outputs [first, first + n) of one kernel tap; `offset` points to the
// offsets along the first axis. Output coordinates advance by counters, without a division per
// point.
void locate_points(const DeformArgs& a, const float* offset, int64_t tap, int64_t first, int64_t n,
                   const PointTaps<float>& points) {
  float coordinates[kBlock];
  BlockTaps<float> taps;
  int count = points.begin(n);
  int64_t inner = a.outs, inner_taps = a.n_taps;
  for (int i = 0; i < a.n_axes; ++i) {
    inner /= a.out[i], inner_taps /= a.taps[i];
    const int64_t shift = tap / inner_taps % a.taps[i] * a.spacing[i] - a.pads[i];
    int64_t out = first / inner % a.out[i], left = inner - first % inner;
    for (int64_t p = 0; p < n; ++p, --left) {
      if (left == 0) left = inner, out = out + 1 < a.out[i] ? out + 1 : 0;
      coordinates[p] = offset[i * a.outs + first + p] + float(out * a.step[i] + shift);
    }
    const int m = block_taps(coordinates, n, a.axes[i], kSampleLinear, kZeros, taps);
    count = points.add(n, count, taps, m, a.axes[i].size);
  }
}

// Item: (image, offset group, kernel tap, block of outputs). Its channels share the interpolation.
Status read_taps(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const DeformArgs*>(args);
  const int n_near = 1 << a.n_axes;
  const PointTaps<float> points = point_taps_in<float>(data.local, n_near);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % a.blocks * kBlock, which = item / a.blocks;
    const int64_t tap = which % a.n_taps, group = which / a.n_taps;  // of all images
    const int64_t n = a.outs - first < kBlock ? a.outs - first : kBlock;
    locate_points(a, input<float>(data, 1) + which * a.n_axes * a.outs, tap, first, n, points);
    const float* mask = a.has_mask ? input<float>(data, 2) + which * a.outs + first : nullptr;
    float* out = output<float>(data) + (group * a.channels * a.n_taps + tap) * a.outs + first;
    if (a.images.units > 0) {
      const TapTable table = table_of(points, n_near, n, a.plane);
      for (int64_t g = 0; g < a.images.groups; ++g)
        sum_group(table, a.images.pixels(data, group, g), a.images.live_channels(g), mask,
                  out + g * kGroup * a.n_taps * a.outs, a.n_taps * a.outs);
      continue;
    }
    for (int64_t c = group * a.channels; c < (group + 1) * a.channels; ++c) {
      float* y = output<float>(data) + (c * a.n_taps + tap) * a.outs + first;
      sum_taps(points, n_near, input<float>(data, 0) + c * a.plane, n, y);
      if (mask != nullptr)
        for (int64_t p = 0; p < n; ++p) y[p] *= mask[p];
    }
  }
  return {};
}

}  // namespace

Status deform_columns(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  if (y.count() == 0) return {};
  auto* a = plan.make<DeformArgs>();
  const int n = a->n_axes = x.rank - 2;
  a->n_taps = 1;
  for (int i = 0; i < n; ++i) {
    a->out[i] = y.dims[2 + i];
    a->taps[i] = call.ints[i], a->step[i] = call.ints[n + i], a->spacing[i] = call.ints[2 * n + i];
    a->pads[i] = call.ints[3 * n + i];
    a->axes[i] = {x.dims[2 + i], 0, double(x.dims[2 + i] - 1)};
    a->n_taps *= a->taps[i];
  }
  a->groups = call.ints[4 * n];
  a->channels = x.dims[1] / a->groups;
  a->plane = x.count(2, x.rank), a->outs = y.count(2, y.rank);
  if (a->plane > INT32_MAX)
    return Status::fail("an image of %ld pixels is too large", long(a->plane));
  a->blocks = (a->outs + kBlock - 1) / kBlock;
  a->has_mask = call.in[2].is_given();
  plan.args = a;
  plan.local_bytes = block_bytes(1 << n);
  if (Interleaved::pays(a->channels))
    add_interleaved(x.dims[0] * a->groups, a->channels, a->plane, a->images, plan);
  plan.add(read_taps, x.dims[0] * a->groups * a->n_taps * a->blocks,
           kBlock * (30 * n + (3 << n) * a->channels / 2));
  return {};
}

}  // namespace sdx::SDX_ISA
