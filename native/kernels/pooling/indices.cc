// MaxPool of channels-last (NHWC) images with the index of each maximum, which its gradient needs.
// Indices count the elements of the whole input with the channels first, as ONNX defines them; the
// first of equal elements wins. Vectors hold neighbouring channels.
#include "kernels/pooling/kernels.h"
#include "kernels/pooling/reduction.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

struct IndexArgs {
  Window window;
  int64_t channels;
};

// The taps of a window that meet the input: their number along each axis, and the first pixel.
struct Taps {
  int64_t n[kSpatial], first = 0;
};

Taps taps_of(const Window& w, const Pixel& p) {
  Taps taps;
  for (int i = 0; i < kSpatial; ++i) {
    const int64_t first = w.axis[i].first_tap(p.at[i]);
    taps.n[i] = w.axis[i].last_tap(p.at[i]) - first;
    taps.first = taps.first * w.axis[i].in + w.axis[i].input_index(p.at[i], first);
  }
  return taps;
}

// The maxima of N vectors of channels and their pixels in the image; -inf and 0 if no tap meets the
// input.
template <int N, class Lanes>
SDX_INLINE void window_max(const IndexArgs& a, const Taps& taps, const float* x, Lanes lanes,
                           f32v (&best)[N], i32v (&at)[N]) {
  const Axis *deep = a.window.axis, *high = deep + 1, *wide = deep + 2;
  bool is_first = true;
  for (int j = 0; j < N; ++j) best[j] = splat(kLowest<float>), at[j] = i32v{};
  for (int64_t z = 0; z < taps.n[0]; ++z)
    for (int64_t h = 0; h < taps.n[1]; ++h) {
      const int64_t line = z * deep->dilation * high->in + h * high->dilation;
      int64_t pixel = taps.first + line * wide->in;
      for (int64_t w = 0; w < taps.n[2]; ++w, pixel += wide->dilation) {
        const float* from = x + pixel * a.channels;
        for (int j = 0; j < N; ++j) {
          // The first element always wins, even -inf; NaN is larger than everything.
          const f32v value = load(from + j * kLanes, lanes);
          const i32v is_better = is_first ? ~i32v{} : ~(value <= best[j]) & (best[j] == best[j]);
          best[j] = is_better ? value : best[j];
          at[j] = is_better ? splat(int32_t(pixel)) : at[j];
        }
        is_first = false;
      }
    }
}

// Pixels of one vector of channels, to indices: `first` is that of the first channel's pixel 0.
template <class Lanes>
SDX_INLINE void store_indices(i32v at, int64_t first, int64_t ins, int64_t* to, Lanes lanes) {
  constexpr bool is_full = __is_same(Lanes, Full);
  int64_t indices[kLanes];
  for (int i = 0; i < kLanes; ++i) indices[i] = first + i * ins + at[i];
  int n = kLanes;
  if constexpr (!is_full) n = lanes.n;
  memcpy(to, indices, size_t(n) * sizeof(int64_t));
}

template <int N, class Lanes>
SDX_INLINE void pool_vectors(const IndexArgs& a, const Taps& taps, const float* x, int64_t first,
                             float* y, int64_t* indices, Lanes lanes) {
  f32v best[N];
  i32v at[N];
  window_max<N>(a, taps, x, lanes, best, at);
  const int64_t ins = a.window.ins();
  const bool is_empty = taps.n[0] <= 0 || taps.n[1] <= 0 || taps.n[2] <= 0;
  for (int j = 0; j < N; ++j) {
    store(y + j * kLanes, best[j], lanes);
    // A window of padding alone has index 0.
    store_indices(at[j], is_empty ? 0 : first + j * kLanes * ins, is_empty ? 0 : ins,
                  indices + j * kLanes, lanes);
  }
}

// Items: lines of output pixels.
Status max_lines(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& a = *static_cast<const IndexArgs*>(args);
  constexpr int64_t kWide = 4 * kLanes;
  const int64_t outs = a.window.axis[2].out, ins = a.window.ins();
  for (int64_t i = begin * outs; i < end * outs; ++i) {
    const Pixel p = pixel_of(a.window, i);
    const Taps taps = taps_of(a.window, p);
    const float* x = input<float>(data, 0) + p.image * ins * a.channels;
    float* y = output<float>(data, 0) + i * a.channels;
    int64_t* indices = output<int64_t>(data, 1) + i * a.channels;
    const int64_t plane = p.image * a.channels;
    int64_t c = 0;
    for (; c + kWide <= a.channels; c += kWide)
      pool_vectors<4>(a, taps, x + c, (plane + c) * ins, y + c, indices + c, Full{});
    vloop(a.channels - c, [&](int64_t j, auto lanes) {
      pool_vectors<1>(a, taps, x + c + j, (plane + c + j) * ins, y + c + j, indices + c + j, lanes);
    });
  }
  return {};
}

}  // namespace

// ints: the window, as read_window has it.
Status max_pool_indices_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* args = plan.make<IndexArgs>();
  args->window = read_window(x, y, call.ints);
  args->channels = x.dim(-1);
  plan.args = args;
  const Window& w = args->window;
  if (w.ins() > INT32_MAX) return Status::fail("MaxPool of images with more than 2^31 pixels");
  const int64_t lines =
      args->channels > 0 && w.axis[2].out > 0 ? w.batch * w.axis[0].out * w.axis[1].out : 0;
  plan.add(max_lines, lines, w.axis[2].out * (w.taps() + 2) * (args->channels / kLanes + 1));
  return {};
}

}  // namespace sdx::SDX_ISA
