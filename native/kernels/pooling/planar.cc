// MaxPool, AveragePool and LpPool over planar images, [batch, channels, *spatial], for models whose
// images are in this layout before and after: transposes to channels-last and back would move more
// bytes. A window is separable: rows of the image are reduced to one, in vectors, and then along
// it. A stride is removed in between: each remainder of the column by the stride has a row of its
// own, so the taps of neighbouring outputs are neighbours.
#include "kernels/pooling/counts.h"
#include "kernels/pooling/kernels.h"
#include "kernels/pooling/reduction.h"

namespace sdx::SDX_ISA {
namespace {

struct PlanarArgs {
  Window window;  // of each plane; `batch` counts planes
  Counted counted;
  const float* counts;  // of AveragePool, by output column
  int64_t p;
  int64_t padded;  // columns of the input that a row of outputs spans, with padding
  int64_t phase;   // elements of each remainder of columns
};

// The taps of an output that read inside of the input.
struct Taps {
  int64_t first, last;
};

// As Axis has them; the division is slow, and dilations are rare.
SDX_INLINE Taps taps_of(const Axis& axis, int64_t out) {
  if (axis.dilation != 1) return {axis.first_tap(out), axis.last_tap(out)};
  const int64_t at = out * axis.stride + axis.begin, left = axis.in - at;
  const int64_t inside = left < 0 ? 0 : left;
  return {at < 0 ? -at : 0, inside < axis.taps ? inside : axis.taps};
}

// Reduces the rows of the windows of one row of outputs to `row`, whose first element is the first
// column of the first window.
template <class Reduction, class T>
void reduce_rows(const PlanarArgs& a, const Reduction& reduction, const T* plane,
                 const Pixel& pixel, T* row) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t begin = wide->begin < 0 ? -wide->begin : 0;
  const int64_t end = wide->in - wide->begin < a.padded ? wide->in - wide->begin : a.padded;
  const auto fill = [&](int64_t from, int64_t to) {
    vloop<T>(to - from,
             [&](int64_t i, auto lanes) { store(row + from + i, reduction.start(), lanes); });
  };
  if (begin >= end) return fill(0, a.padded);
  fill(0, begin), fill(end, a.padded);
  const Taps z = taps_of(*deep, pixel.at[0]), h = taps_of(*high, pixel.at[1]);
  const int64_t line =
      deep->input_index(pixel.at[0], z.first) * high->in + high->input_index(pixel.at[1], h.first);
  const int64_t step = high->dilation * wide->in, deep_step = deep->dilation * high->in * wide->in;
  plane += begin + wide->begin + line * wide->in;
  vloop<T>(end - begin, [&](int64_t i, auto lanes) {
    Vec<T> total = reduction.start();
    const T* from = plane + i;
    for (int64_t j = z.first; j < z.last; ++j, from += deep_step) {
      const T* x = from;
      for (int64_t k = h.first; k < h.last; ++k, x += step)
        total = reduction.step(total, load(x, lanes));
    }
    store(row + begin + i, total, lanes);
  });
}

// Every stride-th element of a row, from each remainder on.
template <class T>
void split_phases(const PlanarArgs& a, int64_t stride, const T* row, T* phases) {
  for (int64_t first = 0; first < stride; ++first, phases += a.phase) {
    const int64_t n = (a.padded - first + stride - 1) / stride;
    if (stride == 2)
      for (int64_t i = 0; i < n; ++i) phases[i] = row[first + 2 * i];
    else
      for (int64_t i = 0; i < n; ++i) phases[i] = row[first + stride * i];
  }
}

// One row of outputs.
template <class Reduction>
void pool_row(const PlanarArgs& a, const Reduction& reduction, const Data& data, int64_t item,
              const Pixel& pixel) {
  using T = typename Reduction::Element;
  const Axis& wide = a.window.axis[2];
  T *row = reinterpret_cast<T*>(data.local), *phases = row;
  reduce_rows(a, reduction, input<T>(data, 0) + pixel.image * a.window.ins(), pixel, row);
  if (wide.stride > 1) split_phases(a, wide.stride, row, phases = row + a.padded);
  float lines = 1;
  for (int i = 0; i < 2 && a.counts; ++i) lines *= float(a.counted.along(a.window, i, pixel.at[i]));
  T* y = output<T>(data) + item * wide.out;
  vloop<T>(wide.out, [&](int64_t i, auto lanes) {
    Vec<T> total = load(phases + i, lanes);
    for (int64_t k = 1; k < wide.taps; ++k) {
      const int64_t at = k * wide.dilation;
      const T* tap =
          wide.stride == 1 ? phases + at : phases + at % wide.stride * a.phase + at / wide.stride;
      total = reduction.join(total, load(tap + i, lanes));
    }
    if constexpr (std::is_same_v<T, float>) {
      const f32v count = a.counts ? load(a.counts + i, lanes, 1.0f) * lines : splat(1.0f);
      store(y + i, reduction.finish(total, count), lanes);
    } else {
      store(y + i, total, lanes);
    }
  });
}

// Items: rows of outputs.
template <class Reduction>
Status pool_rows(const PlanarArgs& a, const Reduction& reduction, const Data& data, int64_t begin,
                 int64_t end) {
  Pixel pixel = pixel_of(a.window, begin * a.window.axis[2].out);
  for (int64_t item = begin; item < end; ++item) {
    pool_row(a, reduction, data, item, pixel);
    if (++pixel.at[1] < a.window.axis[1].out) continue;
    pixel.at[1] = 0;
    if (++pixel.at[0] < a.window.axis[0].out) continue;
    pixel.at[0] = 0, ++pixel.image;
  }
  return {};
}

template <class T>
Status max_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PlanarArgs*>(args);
  return pool_rows(a, MaxReduction<T>{}, data, begin, end);
}

Status average_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PlanarArgs*>(args);
  return pool_rows(a, MeanReduction{}, data, begin, end);
}

Status norm_rows(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PlanarArgs*>(args);
  return pool_rows(a, NormReduction{a.p}, data, begin, end);
}

PlanarArgs* add_planar(const Call& call, Plan& plan, PhaseFn run) {
  View x = call.in[0], y = call.out[0];
  auto* args = plan.make<PlanarArgs>();
  const int64_t planes = x.dims[0] * x.dims[1];
  for (int i = 1; i < x.rank; ++i) {  // as channels-last images of one channel
    x.dims[i] = i + 1 < x.rank ? x.dims[i + 1] : 1;
    y.dims[i] = i + 1 < y.rank ? y.dims[i + 1] : 1;
  }
  args->window = read_window(x, y, call.ints);
  args->window.batch = planes;
  const Window& w = args->window;
  const Axis& wide = w.axis[2];
  args->padded = (wide.out - 1) * wide.stride + (wide.taps - 1) * wide.dilation + 1;
  args->phase = (args->padded + wide.stride - 1) / wide.stride;
  plan.args = args;
  const int64_t size = size_of(x.dtype);
  const int64_t local = args->padded + (wide.stride > 1 ? wide.stride * args->phase : 0);
  plan.local_bytes = local > 0 ? local * size : 0;
  const int64_t rows = wide.out > 0 ? planes * w.axis[0].out * w.axis[1].out : 0;
  const int64_t loads = args->padded * w.axis[0].taps * w.axis[1].taps + wide.out * wide.taps;
  plan.add(run, rows, 20 + loads * size / SDX_VEC_BYTES);
  return args;
}

}  // namespace

// ints of all three: the window, as read_window has it.
Status planar_max_pool(const Call& call, Plan& plan) {
  switch (call.in[0].dtype) {
    case DType::i8: add_planar(call, plan, max_rows<int8_t>); break;
    case DType::u8: add_planar(call, plan, max_rows<uint8_t>); break;
    default: add_planar(call, plan, max_rows<float>);
  }
  return {};
}

// ints, then: as read_counted has them.
Status planar_average_pool(const Call& call, Plan& plan) {
  PlanarArgs* args = add_planar(call, plan, average_rows);
  const int n = call.in[0].rank - 2;
  args->counted = read_counted(call.ints + 4 * n, n);
  const int64_t columns = args->window.axis[2].out;
  float* counts = plan.table<float>(size_t(columns));
  if (counts == nullptr) return no_table();
  for (int64_t j = 0; j < columns; ++j) counts[j] = float(args->counted.along(args->window, 2, j));
  args->counts = counts;
  return {};
}

// ints, then: p.
Status planar_lp_pool(const Call& call, Plan& plan) {
  PlanarArgs* args = add_planar(call, plan, norm_rows);
  args->p = call.ints[4 * (call.in[0].rank - 2)];
  return {};
}

}  // namespace sdx::SDX_ISA
