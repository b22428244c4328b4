// Col2Im: adds the columns of sliding windows to the pixels of an image that they cover; the
// adjoint of im2col. Images here have the channels first, as ONNX defines the op.
#include "kernels/conv/kernels.h"
#include "kernels/elements.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA {
namespace {

// Items: planes (one channel of one image). A plane is written by one item only, so sums need no
// atomics and have a fixed order.
template <class T>
Status add_columns(const void* args, const Data& data, int64_t begin, int64_t end) {
  const auto& w = *static_cast<const Window*>(args);
  const int64_t ins = w.ins(), outs = w.outs(), taps = w.taps();
  for (int64_t plane = begin; plane < end; ++plane) {
    T* y = output<T>(data) + plane * ins;
    for (int64_t i = 0; i < ins; ++i) y[i] = T(0);
    for (int64_t t = 0; t < taps; ++t) {
      const T* x = input<T>(data, 0) + (plane * taps + t) * outs;
      const int64_t tap[kSpatial] = {t / (w.axis[1].taps * w.axis[2].taps),
                                     t / w.axis[2].taps % w.axis[1].taps, t % w.axis[2].taps};
      for (int64_t o = 0; o < outs; ++o) {
        const Pixel p = pixel_of(w, o);
        int64_t at = 0;
        bool is_inside = true;
        for (int i = 0; i < kSpatial; ++i) {
          const int64_t place = w.axis[i].input_index(p.at[i], tap[i]);
          is_inside &= place >= 0 && place < w.axis[i].in;
          at = at * w.axis[i].in + place;
        }
        if (is_inside) y[at] = T(y[at] + x[o]);
      }
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
    plan.add(add_columns<T>, y.dims[0] * y.dims[1], 4 * w->taps() * w->outs());
    return Status{};
  });
}

}  // namespace sdx::SDX_ISA
