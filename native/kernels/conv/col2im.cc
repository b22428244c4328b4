// Col2Im: adds the columns of sliding windows to the pixels of an image that they cover; the
// adjoint of im2col. Images here have the channels first, as ONNX defines the op.
#include "kernels/conv/kernels.h"
#include "kernels/elements.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

// Outputs [begin, end) along an axis whose tap k reads inside the image.
struct Outputs {
  int64_t begin, end;
};

Outputs outputs_inside(const Axis& axis, int64_t tap) {
  const int64_t first = axis.begin + tap * axis.dilation;
  const int64_t before = first >= 0 ? 0 : (-first + axis.stride - 1) / axis.stride;
  const int64_t left = axis.in - first;
  const int64_t end = left <= 0 ? 0 : (left - 1) / axis.stride + 1;
  return {before, end < axis.out ? end : axis.out};
}

// y[i * stride] += x[i]. The pointers never alias: a column is not an image.
template <class T>
SDX_INLINE void add_line(const T* __restrict x, T* __restrict y, int64_t n, int64_t stride) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) y[i] = T(y[i] + x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i * stride] = T(y[i * stride] + x[i]);
  }
}

// Adds the column of one tap to the image, line by line.
template <class T>
void add_tap(const Window& w, const int64_t (&tap)[kSpatial], const T* x, T* y) {
  const Axis *deep = w.axis, *high = deep + 1, *wide = deep + 2;
  const Outputs z = outputs_inside(*deep, tap[0]), h = outputs_inside(*high, tap[1]),
                o = outputs_inside(*wide, tap[2]);
  if (o.begin >= o.end) return;
  for (int64_t i = z.begin; i < z.end; ++i)
    for (int64_t j = h.begin; j < h.end; ++j) {
      const int64_t line = deep->input_index(i, tap[0]) * high->in + high->input_index(j, tap[1]);
      add_line(x + (i * high->out + j) * wide->out + o.begin,
               y + line * wide->in + wide->input_index(o.begin, tap[2]), o.end - o.begin,
               wide->stride);
    }
}

// Items: planes (one channel of one image). A plane is written by one item only, so sums need no
// atomics and have a fixed order: that of the taps.
template <class T>
Status add_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& w = *static_cast<const Window*>(args);
  const int64_t ins = w.ins(), outs = w.outs(), taps = w.taps();
  for (int64_t plane = begin; plane < end; ++plane) {
    T* y = output<T>(data) + plane * ins;
    for (int64_t i = 0; i < ins; ++i) y[i] = T(0);
    for (int64_t t = 0; t < taps; ++t) {
      const int64_t tap[kSpatial] = {t / (w.axis[1].taps * w.axis[2].taps),
                                     t / w.axis[2].taps % w.axis[1].taps, t % w.axis[2].taps};
      add_tap(w, tap, input<T>(data, 0) + (plane * taps + t) * outs, y);
    }
  }
  return {};
}

}  // namespace

// ints: kernel, strides, dilations, padding before, and outputs, for each spatial axis.
Status col2im(const Call& call, Plan& plan) {
  const View &x = call.in[0], &y = call.out[0];
  auto* w = plan.make<Window>();
  const int n = y.rank - 2;
  for (int i = 0; i < n; ++i) {
    const int64_t* ints = call.ints + i;
    w->axis[kSpatial - n + i] = {y.dims[2 + i], ints[4 * n],  ints[0],
                                 ints[n],       -ints[3 * n], ints[2 * n]};
  }
  plan.args = w;
  return visit(x.dtype, Types<float, double, int32_t, int64_t>{}, [&]<class T>() {
    plan.add(add_columns<T>, y.dims[0] * y.dims[1], w->taps() * w->outs() / 4);
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
