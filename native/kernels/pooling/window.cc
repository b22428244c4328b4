// MaxPool, AveragePool and LpPool over channels-last images: a vector holds neighbouring channels,
// so every tap of a window is one contiguous load and no transpose is needed. The taps that meet
// the input are a range along each axis; padding is never read.
#include "kernels/pooling/counts.h"
#include "kernels/pooling/kernels.h"
#include "kernels/pooling/reduction.h"
#include "kernels/row_stride.h"

namespace sdx::SDX_ISA {
namespace {

struct PoolArgs {
  Window window;
  int64_t channels;
  int64_t pitch;  // elements between output pixels
  Counted counted;
  int64_t p;
};

// The range of taps that meet the input, along each axis.
struct TapRange {
  int64_t first[kSpatial], last[kSpatial];
};

SDX_INLINE void set_taps(const PoolArgs& a, const Pixel& pixel, int axis, TapRange& taps) {
  taps.first[axis] = a.window.axis[axis].first_tap(pixel.at[axis]);
  taps.last[axis] = a.window.axis[axis].last_tap(pixel.at[axis]);
}

float window_count(const PoolArgs& a, const Pixel& pixel) {
  float count = 1;
  for (int i = 0; i < kSpatial; ++i) count *= float(a.counted.along(a.window, i, pixel.at[i]));
  return count;
}

// N vectors of channels of one output pixel; `x` points to these channels in the image's first
// pixel.
template <int N, class Reduction, class T, class Lanes>
SDX_INLINE void pool_vectors(const PoolArgs& a, const Reduction& reduction, const T* x,
                             const Pixel& pixel, const TapRange& taps, float count, T* y,
                             Lanes lanes) {
  constexpr int kStep = kLanesOf<T>;
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  Vec<T> totals[N];
  for (int j = 0; j < N; ++j) totals[j] = reduction.start();
  for (int64_t z = taps.first[0]; z < taps.last[0]; ++z) {
    for (int64_t h = taps.first[1]; h < taps.last[1]; ++h) {
      const int64_t line =
          deep->input_index(pixel.at[0], z) * high->in + high->input_index(pixel.at[1], h);
      const T* at =
          x + (line * wide->in + wide->input_index(pixel.at[2], taps.first[2])) * a.channels;
      for (int64_t w = taps.first[2]; w < taps.last[2]; ++w, at += wide->dilation * a.channels)
        for (int j = 0; j < N; ++j)
          totals[j] = reduction.step(totals[j], load(at + j * kStep, lanes));
    }
  }
  for (int j = 0; j < N; ++j) store(y + j * kStep, reduction.finish(totals[j], count), lanes);
}

// Item: one line of output pixels. Four vectors of channels at a time hide the latency of max or
// add, and share the address arithmetic of a tap.
template <class Reduction>
void pool_line(const PoolArgs& a, const Reduction& reduction, const Data& data, int64_t line) {
  using T = typename Reduction::Element;
  constexpr int64_t kWide = 4 * kLanesOf<T>;
  const int64_t outs = a.window.axis[2].out;
  Pixel pixel = pixel_of(a.window, line * outs);
  const T* x = input<T>(data, 0) + pixel.image * a.window.ins() * a.channels;
  T* y = output<T>(data) + line * outs * a.pitch;
  TapRange taps;
  for (int i = 0; i < kSpatial; ++i) set_taps(a, pixel, i, taps);
  for (; pixel.at[2] < outs; ++pixel.at[2], y += a.pitch) {
    set_taps(a, pixel, 2, taps);
    const float count = window_count(a, pixel);
    int64_t c = 0;
    for (; c + kWide <= a.channels; c += kWide)
      pool_vectors<4>(a, reduction, x + c, pixel, taps, count, y + c, Full{});
    vloop<T>(a.channels - c, [&](int64_t i, auto lanes) {
      pool_vectors<1>(a, reduction, x + c + i, pixel, taps, count, y + c + i, lanes);
    });
  }
}

template <class T>
Status max_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PoolArgs*>(args);
  for (int64_t i = begin; i < end; ++i) pool_line(a, MaxReduction<T>{}, data, i);
  return {};
}

Status average_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PoolArgs*>(args);
  for (int64_t i = begin; i < end; ++i) pool_line(a, MeanReduction{}, data, i);
  return {};
}

Status norm_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PoolArgs*>(args);
  for (int64_t i = begin; i < end; ++i) pool_line(a, NormReduction{a.p}, data, i);
  return {};
}

PoolArgs* add_pool(const Call& call, Plan& plan, PhaseFn run) {
  const View &x = call.in[0], &y = call.out[0];
  auto* args = plan.make<PoolArgs>();
  args->window = read_window(x, y, call.ints);
  args->channels = x.dim(-1);
  args->pitch = row_stride(y);
  plan.args = args;
  const Window& w = args->window;
  const int64_t line = w.axis[2].out * w.taps() * args->channels * size_of(x.dtype);
  const int64_t lines =
      args->channels > 0 && w.axis[2].out > 0 ? w.batch * w.axis[0].out * w.axis[1].out : 0;
  plan.add(run, lines, line / SDX_VEC_BYTES);
  return args;
}

}  // namespace

// ints of all three: the window, as read_window has it.
Status max_pool(const Call& call, Plan& plan) {
  switch (call.in[0].dtype) {
    case DType::i8: add_pool(call, plan, max_lines<int8_t>); break;
    case DType::u8: add_pool(call, plan, max_lines<uint8_t>); break;
    default: add_pool(call, plan, max_lines<float>);
  }
  return {};
}

// ints, then: as read_counted has them.
Status average_pool_f32(const Call& call, Plan& plan) {
  PoolArgs* args = add_pool(call, plan, average_lines);
  const int n = call.in[0].rank - 2;
  args->counted = read_counted(call.ints + 4 * n, n);
  return {};
}

// ints, then: p.
Status lp_pool_f32(const Call& call, Plan& plan) {
  PoolArgs* args = add_pool(call, plan, norm_lines);
  args->p = call.ints[4 * (call.in[0].rank - 2)];
  return {};
}

}  // namespace sdx::SDX_ISA
