// MaxPool of channels-first (NCHW) images with the index of each maximum, which its gradient needs:
// indices count the elements of the whole input, and the first of equal elements wins.
#include "kernels/plane_window.h"
#include "kernels/pooling/kernels.h"
#include "kernels/pooling/reduction.h"

namespace sdx::SDX_ISA {
namespace {

struct IndexArgs {
  Window window;
};

struct Best {
  float value = kLowest<float>;
  int64_t index = -1;  // none yet
};

// The first element of a window always wins, even -inf; NaN is larger than everything.
SDX_INLINE void take(Best& best, float value, int64_t index) {
  const bool is_better = !(value <= best.value) && best.value == best.value;
  if (is_better || best.index < 0) best = {value, index};
}

// The maximum of one window.
SDX_INLINE Best window_max(const Window& w, const float* plane, const Pixel& p) {
  const Axis *deep = w.axis, *high = deep + 1, *wide = deep + 2;
  const int64_t first = wide->first_tap(p.at[2]), last = wide->last_tap(p.at[2]);
  const int64_t left = wide->input_index(p.at[2], first);
  const int64_t top = high->first_tap(p.at[1]), bottom = high->last_tap(p.at[1]);
  Best best;
  for (int64_t z = deep->first_tap(p.at[0]); z < deep->last_tap(p.at[0]); ++z)
    for (int64_t y = top; y < bottom; ++y) {
      const int64_t line = deep->input_index(p.at[0], z) * high->in + high->input_index(p.at[1], y);
      int64_t index = line * wide->in + left;
      for (int64_t x = first; x < last; ++x, index += wide->dilation)
        take(best, plane[index], index);
    }
  return best;
}

// Items: planes, that is one channel of one image.
Status max_planes(const void* args, const Data& data, int64_t begin, int64_t end) {
  const Window& w = static_cast<const IndexArgs*>(args)->window;
  const int64_t ins = w.ins(), outs = w.outs();
  for (int64_t plane = begin; plane < end; ++plane) {
    const float* x = input<float>(data, 0) + plane * ins;
    float* y = output<float>(data, 0) + plane * outs;
    int64_t* indices = output<int64_t>(data, 1) + plane * outs;
    Pixel p = pixel_of(w, 0);
    for (int64_t i = 0; i < outs; ++i, advance(w, p)) {
      const Best best = window_max(w, x, p);
      y[i] = best.value;
      indices[i] = best.index < 0 ? 0 : plane * ins + best.index;  // 0 for a window of padding
    }
  }
  return {};
}

}  // namespace

// ints: the window, as read_window has it.
Status max_pool_indices_f32(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* args = plan.make<IndexArgs>();
  args->window = read_plane_window(x, y, call.ints);
  plan.args = args;
  const int64_t planes = args->window.outs() > 0 ? x.dims[0] * x.dims[1] : 0;
  plan.add(max_planes, planes, args->window.outs() * (args->window.taps() + 4));
  return {};
}

}  // namespace sdx::SDX_ISA
