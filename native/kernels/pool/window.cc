// Pools of windows, with the channels last: a vector holds neighbouring channels.
#include "kernels/window.h"

#include "kernels/pitch.h"
#include "kernels/pool/fold.h"
#include "kernels/pool/rows.h"

namespace sdx::SDX_ISA {
namespace {

struct PoolArgs {
  Window window;
  int64_t channels;
  int64_t pitch;             // elements between outputs
  bool counts_pads;          // average: the padding counts as elements
  int64_t limits[kSpatial];  // average: padding and input in front of which windows count
  int64_t p;
};

// Taps that meet the input, along each axis.
struct Taps {
  int64_t first[kSpatial], last[kSpatial];
};

SDX_INLINE void set_taps(const PoolArgs& a, const Pixel& pixel, int axis, Taps& taps) {
  taps.first[axis] = a.window.axis[axis].first_tap(pixel.at[axis]);
  taps.last[axis] = a.window.axis[axis].last_tap(pixel.at[axis]);
}

// How many elements the window of an output holds.
float count_of(const PoolArgs& a, const Pixel& pixel, const Taps& taps) {
  float count = 1;
  for (int i = 0; i < kSpatial; ++i) {
    const Axis& axis = a.window.axis[i];
    int64_t n = taps.last[i] - taps.first[i];
    if (a.counts_pads) {
      const int64_t room = a.limits[i] - pixel.at[i] * axis.step;
      n = room <= 0 ? 0 : (room + axis.spacing - 1) / axis.spacing;
      n = n < axis.taps ? n : axis.taps;
    }
    count *= float(n < 0 ? 0 : n);
  }
  return count;
}

// N vectors of channels of one output; `x` is where they lie in the image's first pixel.
template <int N, class Fold, class T, class Lanes>
SDX_INLINE void pool_vectors(const PoolArgs& a, const Fold& fold, const T* x, const Pixel& pixel,
                             const Taps& taps, float count, T* y, Lanes lanes) {
  constexpr int kStep = kLanesOf<T>;
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  Vec<T> found[N];
  for (int j = 0; j < N; ++j) found[j] = fold.start();
  for (int64_t z = taps.first[0]; z < taps.last[0]; ++z) {
    for (int64_t h = taps.first[1]; h < taps.last[1]; ++h) {
      const int64_t line = deep->place(pixel.at[0], z) * high->in + high->place(pixel.at[1], h);
      const T* at = x + (line * wide->in + wide->place(pixel.at[2], taps.first[2])) * a.channels;
      for (int64_t w = taps.first[2]; w < taps.last[2]; ++w, at += wide->spacing * a.channels)
        for (int j = 0; j < N; ++j) found[j] = fold.take(found[j], load(at + j * kStep, lanes));
    }
  }
  for (int j = 0; j < N; ++j) store(y + j * kStep, fold.finish(found[j], count), lanes);
}

// Item: one line of outputs.
template <class Fold>
void pool_line(const PoolArgs& a, const Fold& fold, const Data& data, int64_t line) {
  using T = typename Fold::Element;
  constexpr int64_t kWide = 4 * kLanesOf<T>;
  const int64_t outs = a.window.axis[2].out;
  Pixel pixel = pixel_of(a.window, line * outs);
  const T* x = input<T>(data, 0) + pixel.image * a.window.ins() * a.channels;
  T* y = output<T>(data) + line * outs * a.pitch;
  Taps taps;
  for (int i = 0; i < kSpatial; ++i) set_taps(a, pixel, i, taps);
  for (; pixel.at[2] < outs; ++pixel.at[2], y += a.pitch) {
    set_taps(a, pixel, 2, taps);
    const float count = count_of(a, pixel, taps);
    int64_t c = 0;
    for (; c + kWide <= a.channels; c += kWide)
      pool_vectors<4>(a, fold, x + c, pixel, taps, count, y + c, Full{});
    vloop<T>(a.channels - c, [&](int64_t i, auto lanes) {
      pool_vectors<1>(a, fold, x + c + i, pixel, taps, count, y + c + i, lanes);
    });
  }
}

template <class T>
Status max_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PoolArgs*>(args);
  for (int64_t i = begin; i < end; ++i) pool_line(a, MaxFold<T>{}, data, i);
  return {};
}

Status average_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PoolArgs*>(args);
  for (int64_t i = begin; i < end; ++i) pool_line(a, MeanFold{}, data, i);
  return {};
}

Status norm_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const PoolArgs*>(args);
  for (int64_t i = begin; i < end; ++i) pool_line(a, NormFold{a.p}, data, i);
  return {};
}

PoolArgs* add_pool(const Call& call, Plan& plan, PhaseFn run) {
  const View &x = call.in[0], &y = call.out[0];
  auto* args = plan.make<PoolArgs>();
  args->window = read_window(x, y, call.ints);
  args->channels = x.dim(-1);
  args->pitch = row_pitch(y);
  plan.args = args;
  const Window& w = args->window;
  const int64_t line = w.axis[2].out * w.taps() * args->channels * size_of(x.dtype);
  const int64_t lines =
      args->channels > 0 && w.axis[2].out > 0 ? w.batch * w.axis[0].out * w.axis[1].out : 0;
  plan.add(run, lines, line / SDX_VEC_BYTES);
  return args;
}

}  // namespace

// ints of all: the window.
Status max_pool(const Call& call, Plan& plan) {
  switch (call.in[0].dtype) {
    case DType::i8: add_pool(call, plan, max_lines<int8_t>); break;
    case DType::u8: add_pool(call, plan, max_lines<uint8_t>); break;
    default: add_pool(call, plan, max_lines<float>);
  }
  return {};
}

// Then: whether padding counts, and along each axis where it ends, from its front on.
Status average_pool_f32(const Call& call, Plan& plan) {
  PoolArgs* args = add_pool(call, plan, average_lines);
  const int n = call.in[0].rank - 2;
  const int64_t* more = call.ints + 4 * n;
  args->counts_pads = more[0] != 0;
  for (int i = 0; i < kSpatial; ++i) args->limits[i] = 1;
  for (int i = 0; i < n; ++i) args->limits[kSpatial - n + i] = more[1 + i];
  return {};
}

// Then: p.
Status lp_pool_f32(const Call& call, Plan& plan) {
  PoolArgs* args = add_pool(call, plan, norm_lines);
  args->p = call.ints[4 * (call.in[0].rank - 2)];
  return {};
}

}  // namespace sdx::SDX_ISA
