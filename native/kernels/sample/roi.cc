// RoiAlign: bins of a region of interest hold the mean or max of bilinear samples. MaxRoiPool: bins
// hold the max of all elements.
//
// Means are separable: the weight that an input row has in a bin is the sum over the bin's samples,
// so the mean is a row filter followed by a column filter, each with few nonzero weights, computed
// once per region and shared by all channels.
#include "kernels/kernel.h"
#include "kernels/sample/kernels.h"
#include "simd/reduction.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kMaxSamples = 1 << 20;  // along one axis: refuses absurd regions of the data

struct RoiArgs {
  int64_t images, channels, height, width;
  int64_t bins[2];  // vertical and horizontal
  bool is_aligned, takes_max;
  int64_t ratio;
  float scale;
};

// The samples of a region along one axis.
struct Samples {
  float start = 0, step = 0;
  int64_t n = 0;  // in a bin
  int64_t size = 0;

  // Sample `s` of a bin: its lower neighbour and both linear weights. As in ONNX, a sample up to
  // one pixel outside clamps to the edge, and one further away weighs nothing.
  SDX_INLINE int64_t at(int64_t bin, int64_t s, float& near, float& far) const {
    const float inner = (float(s) + 0.5f) * step / float(n);
    float coordinate = start + float(bin) * step + inner;
    near = far = 0;
    if (!(coordinate >= -1 && coordinate <= float(size))) return 0;
    const float last = float(size - 1);
    coordinate = coordinate < 0 ? 0 : coordinate > last ? last : coordinate;
    int64_t low = int64_t(coordinate);
    if (low > size - 2) low = size > 1 ? size - 2 : 0;
    far = coordinate - float(low), near = 1 - far;
    return low;
  }
  SDX_INLINE int64_t above(int64_t low) const { return low + 1 < size ? low + 1 : low; }
};

Status find_samples(const RoiArgs& a, const float* roi, int axis, Samples& samples) {
  const float shift = a.is_aligned ? 0.5f : 0;
  const float start = roi[1 - axis] * a.scale - shift, end = roi[3 - axis] * a.scale - shift;
  float length = end - start;
  if (!a.is_aligned) length = length > 1 ? length : 1;
  const float step = length / float(a.bins[axis]);
  const double n = a.ratio > 0 ? double(a.ratio) : __builtin_ceil(double(step));
  if (!(n * double(a.bins[axis]) <= double(kMaxSamples)))
    return Status::fail("a region of %g elements needs %g samples in each of %ld bins",
                        double(length), n, long(a.bins[axis]));
  samples = {start, step, n > 0 ? int64_t(n) : 0, axis == 0 ? a.height : a.width};
  return {};
}

// The filter of one axis: the weight of each element in the mean of each bin, and the range of
// elements with nonzero weights.
struct BinFilter {
  float* weights;       // [bins, size]
  int64_t* spans;       // by bin: [first, last) element
  int64_t first, last;  // of all bins

  void fill(const Samples& s, int64_t bins) {
    memset(weights, 0, size_t(bins * s.size) * sizeof(float));
    first = s.size, last = 0;
    for (int64_t bin = 0; bin < bins; ++bin) {
      int64_t begin = s.size, end = 0;
      for (int64_t i = 0; i < s.n && s.size > 0; ++i) {
        float near, far;
        const int64_t low = s.at(bin, i, near, far), high = s.above(low);
        weights[bin * s.size + low] += near / float(s.n);
        weights[bin * s.size + high] += far / float(s.n);
        begin = low < begin ? low : begin, end = high + 1 > end ? high + 1 : end;
      }
      spans[2 * bin] = begin < end ? begin : end, spans[2 * bin + 1] = end;
      first = begin < first ? begin : first, last = end > last ? end : last;
    }
    if (first > last) first = last;
  }
};

// The means of all bins of one channel: the vertical filter into `row`, then the horizontal one.
void mean_bins(const RoiArgs& a, const BinFilter& down, const BinFilter& across, const float* x,
               float* row, float* y) {
  const int64_t n = across.last - across.first;
  for (int64_t i = 0; i < a.bins[0]; ++i) {
    const float *weights = down.weights + i * a.height, *from = x + across.first;
    vloop(n, [&](int64_t j, auto lanes) {
      f32v sum{};
      for (int64_t k = down.spans[2 * i]; k < down.spans[2 * i + 1]; ++k)
        if (weights[k] != 0) sum += load(from + k * a.width + j, lanes) * weights[k];
      store(row + j, sum, lanes);
    });
    for (int64_t j = 0; j < a.bins[1]; ++j) {
      const int64_t begin = across.spans[2 * j], end = across.spans[2 * j + 1];
      const float* bin_weights = across.weights + j * a.width + begin;
      const float* mixed = row + begin - across.first;
      f32v sum{};
      vloop(end - begin, [&](int64_t k, auto lanes) {
        sum += load(mixed + k, lanes) * load(bin_weights + k, lanes);
      });
      y[i * a.bins[1] + j] = fold(sum, [](auto p, auto q) { return p + q; });
    }
  }
}

// The max of one bin in all channels, which share the samples' positions. As in ONNX it is the max
// of the four weighted neighbours, not of the interpolated samples.
void max_bin(const RoiArgs& a, const Samples& down, const Samples& across, const float* x,
             int64_t bin, float* y) {
  const int64_t plane = a.height * a.width, bins = a.bins[0] * a.bins[1];
  const bool is_empty = down.n == 0 || across.n == 0 || plane == 0;
  for (int64_t c = 0; c < a.channels; ++c) y[c * bins] = is_empty ? 0 : -kInf;
  for (int64_t s = 0; s < down.n && !is_empty; ++s) {
    float wy[2], wx[2];
    const int64_t top = down.at(bin / a.bins[1], s, wy[0], wy[1]);
    const int64_t rows[2] = {top * a.width, down.above(top) * a.width};
    for (int64_t t = 0; t < across.n; ++t) {
      const int64_t left = across.at(bin % a.bins[1], t, wx[0], wx[1]);
      const int64_t columns[2] = {left, across.above(left)};
      for (int64_t c = 0; c < a.channels; ++c) {
        float best = y[c * bins];
        for (int k = 0; k < 4; ++k) {
          const float v = x[c * plane + rows[k / 2] + columns[k % 2]] * (wy[k / 2] * wx[k % 2]);
          best = v > best || v != v ? v : best;
        }
        y[c * bins] = best;
      }
    }
  }
}

// The samples of all bins along one axis, which all channels share.
struct SampleTable {
  static constexpr int64_t kCapacity = 512;  // samples
  int32_t near[kCapacity], far[kCapacity];   // offsets of both neighbours
  float near_weight[kCapacity], far_weight[kCapacity];

  // False if there are too many.
  bool fill(const Samples& samples, int64_t bins, int64_t stride) {
    if (samples.n * bins > kCapacity || samples.size * stride > INT32_MAX) return false;
    for (int64_t k = 0; k < samples.n * bins; ++k) {
      const int64_t low = samples.at(k / samples.n, k % samples.n, near_weight[k], far_weight[k]);
      near[k] = int32_t(low * stride), far[k] = int32_t(samples.above(low) * stride);
    }
    return true;
  }
};

// Max bins of one channel, as max_bin, by tables: for each row of samples the weighted maximum of
// every column of samples, then that of each bin's columns.
void max_channel(const RoiArgs& a, const SampleTable& down, int64_t n_down,
                 const SampleTable& across, int64_t n_across, const float* x, float* y) {
  const int64_t columns = n_across * a.bins[1];
  float tops[SampleTable::kCapacity];
  for (int64_t i = 0; i < a.bins[0]; ++i, y += a.bins[1]) {
    for (int64_t k = 0; k < columns; ++k) tops[k] = -kInf;
    for (int64_t s = i * n_down; s < (i + 1) * n_down; ++s) {
      const float *near = x + down.near[s], *far = x + down.far[s];
      const float wn = down.near_weight[s], wf = down.far_weight[s];
      for (int64_t k = 0; k < columns; ++k) {
        const float left = across.near_weight[k], right = across.far_weight[k];
        const float v[] = {near[across.near[k]] * (wn * left), near[across.far[k]] * (wn * right),
                           far[across.near[k]] * (wf * left), far[across.far[k]] * (wf * right)};
        float top = tops[k];
        for (float e : v) top = e > top || e != e ? e : top;
        tops[k] = top;
      }
    }
    for (int64_t j = 0; j < a.bins[1]; ++j) {
      float top = -kInf;
      for (int64_t k = j * n_across; k < (j + 1) * n_across; ++k)
        top = tops[k] > top || tops[k] != tops[k] ? tops[k] : top;
      y[j] = top;
    }
  }
}

// RoiAlign; item: one region.
Status align_regions(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const RoiArgs*>(args);
  const int64_t plane = a.height * a.width, bins = a.bins[0] * a.bins[1];
  auto* spans = reinterpret_cast<int64_t*>(data.local);
  auto* weights = reinterpret_cast<float*>(spans + 2 * (a.bins[0] + a.bins[1]));
  BinFilter down{weights, spans, 0, 0};
  BinFilter across{weights + a.bins[0] * a.height, spans + 2 * a.bins[0], 0, 0};
  float* row = across.weights + a.bins[1] * a.width;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t image = input<int64_t>(data, 2)[r];
    if (image < 0 || image >= a.images)
      return Status::fail("region %ld names image %ld, and the batch has %ld", long(r), long(image),
                          long(a.images));
    Samples tall, wide;
    for (int axis = 0; axis < 2; ++axis) {
      Status status = find_samples(a, input<float>(data, 1) + 4 * r, axis, axis == 0 ? tall : wide);
      if (!status.ok()) return status;
    }
    if (!a.takes_max) down.fill(tall, a.bins[0]), across.fill(wide, a.bins[1]);
    const float* x = input<float>(data, 0) + image * a.channels * plane;
    float* y = output<float>(data) + r * a.channels * bins;
    SampleTable rows, columns;
    if (a.takes_max && tall.n > 0 && wide.n > 0 && plane > 0 &&
        rows.fill(tall, a.bins[0], a.width) && columns.fill(wide, a.bins[1], 1))
      for (int64_t c = 0; c < a.channels; ++c)
        max_channel(a, rows, tall.n, columns, wide.n, x + c * plane, y + c * bins);
    else if (a.takes_max)
      for (int64_t i = 0; i < bins; ++i) max_bin(a, tall, wide, x, i, y + i);
    else
      for (int64_t c = 0; c < a.channels; ++c)
        mean_bins(a, down, across, x + c * plane, row, y + c * bins);
  }
  return {};
}

struct Span {
  int64_t low, high;
};

// The elements of bin i of a region [start, end] along one axis, clipped to the image.
Span bin_span(int64_t start, int64_t end, int64_t bins, int64_t i, int64_t size) {
  const float each = float(end - start + 1 > 1 ? end - start + 1 : 1) / float(bins);
  const auto inside = [&](int64_t k) { return k < 0 ? 0 : k > size ? size : k; };
  return {inside(int64_t(__builtin_floorf(float(i) * each)) + start),
          inside(int64_t(__builtin_ceilf(float(i + 1) * each)) + start)};
}

// The maximum of n numbers; NaN propagates.
float top_of_run(const float* x, int64_t n) {
  constexpr int64_t kShort = 8;  // numbers below which folding a vector costs more
  if (n >= kShort) {
    f32v tops = splat(-kInf);
    vloop(n, [&](int64_t k, auto lanes) { tops = vmax(tops, load(x + k, lanes, -kInf)); });
    return fold(tops, [](auto p, auto q) { return vmax(p, q); });
  }
  float top = -kInf;
  for (int64_t k = 0; k < n; ++k) {
    const float larger = top > x[k] ? top : x[k];
    top = top != top ? top : larger;
  }
  return top;
}

// The bins of one channel: the maximum of the rows of a row of bins, in vectors, then of its
// columns.
void pool_channel(const RoiArgs& a, const Span* down, const Span* along, const float* x, float* row,
                  float* y) {
  const int64_t across = a.bins[1], first = along[0].low, last = along[across - 1].high;
  for (int64_t i = 0; i < a.bins[0]; ++i, y += across) {
    const Span rows = down[i];
    vloop(last - first, [&](int64_t j, auto lanes) {
      f32v top = splat(-kInf);
      for (int64_t k = rows.low; k < rows.high; ++k)
        top = vmax(top, load(x + k * a.width + first + j, lanes));
      store(row + j, top, lanes);
    });
    for (int64_t j = 0; j < across; ++j) {
      const Span columns = along[j];
      const bool is_empty = rows.high <= rows.low || columns.high <= columns.low;
      y[j] = is_empty ? 0 : top_of_run(row + columns.low - first, columns.high - columns.low);
    }
  }
}

// MaxRoiPool; item: one region.
Status pool_regions(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const RoiArgs*>(args);
  const int64_t plane = a.height * a.width, bins = a.bins[0] * a.bins[1];
  for (int64_t r = begin; r < end; ++r) {
    const float* roi = input<float>(data, 1) + 5 * r;
    int64_t corners[4];
    for (int i = 0; i < 4; ++i) {
      const float corner = __builtin_roundf(roi[1 + i] * a.scale);
      if (!(__builtin_fabsf(corner) < 1e12f))
        return Status::fail("region %ld is not finite", long(r));
      corners[i] = int64_t(corner);
    }
    if (!(roi[0] > -1 && roi[0] < float(a.images)))
      return Status::fail("region %ld names image %g, and the batch has %ld", long(r),
                          double(roi[0]), long(a.images));
    const float* x = input<float>(data, 0) + int64_t(roi[0]) * a.channels * plane;
    float* y = output<float>(data) + r * a.channels * bins;
    auto* down = reinterpret_cast<Span*>(data.local);
    Span* along = down + a.bins[0];
    for (int64_t i = 0; i < a.bins[0]; ++i)
      down[i] = bin_span(corners[1], corners[3], a.bins[0], i, a.height);
    for (int64_t i = 0; i < a.bins[1]; ++i)
      along[i] = bin_span(corners[0], corners[2], a.bins[1], i, a.width);
    auto* row = reinterpret_cast<float*>(along + a.bins[1]);
    for (int64_t c = 0; c < a.channels; ++c)
      pool_channel(a, down, along, x + c * plane, row, y + c * bins);
  }
  return {};
}

RoiArgs* make_args(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* a = plan.make<RoiArgs>();
  *a = {x.dims[0], x.dims[1], x.dims[2], x.dims[3], {y.dims[2], y.dims[3]}, false, false, 0, 1};
  a->scale = float(call.floats[0]);
  plan.args = a;
  return a;
}

}  // namespace

Status roi_align(const Call& call, Plan& plan) {
  RoiArgs* a = make_args(call, plan);
  a->is_aligned = call.ints[0] != 0, a->takes_max = call.ints[1] != 0, a->ratio = call.ints[2];
  plan.local_bytes = (a->bins[0] * a->height + (a->bins[1] + 1) * a->width) * 4;
  plan.local_bytes += 16 * (a->bins[0] + a->bins[1]);
  plan.add(align_regions, call.out[0].dims[0], 20 * call.out[0].count(1, 4));
  return {};
}

Status max_roi_pool(const Call& call, Plan& plan) {
  const RoiArgs* a = make_args(call, plan);
  plan.local_bytes =
      a->width * int64_t(sizeof(float)) + (a->bins[0] + a->bins[1]) * int64_t(sizeof(Span));
  plan.add(pool_regions, call.out[0].dims[0], 20 * call.out[0].count(1, 4));
  return {};
}

}  // namespace sdx::SDX_ISA
