// Sliding windows of convolutions and pooling over images with the channels last (NHWC), [batch,
// *spatial, channels]: one to three spatial axes, padded with axes of size 1 in front to three.
#pragma once

#include "base/view.h"
#include "simd/vec.h"

namespace sdx::SDX_ISA {

constexpr int kSpatial = 3;

// Tap k of output o reads input o * stride + begin + k * dilation, if that is inside; begin is
// minus the padding.
struct Axis {
  int64_t in = 1, out = 1, taps = 1;
  int64_t stride = 1, begin = 0, dilation = 1;

  // The first tap that reads an input at or after 0, and one past the last that reads below `in`:
  // the taps in between need no bounds check.
  SDX_INLINE int64_t first_tap(int64_t o) const {
    const int64_t at = o * stride + begin;
    return at >= 0 ? 0 : (-at + dilation - 1) / dilation;
  }
  SDX_INLINE int64_t last_tap(int64_t o) const {
    const int64_t left = in - (o * stride + begin);
    const int64_t inside = left <= 0 ? 0 : (left - 1) / dilation + 1;
    return inside < taps ? inside : taps;
  }
  SDX_INLINE int64_t input_index(int64_t o, int64_t k) const {
    return o * stride + begin + k * dilation;
  }
};

struct Window {
  Axis axis[kSpatial];
  int64_t batch = 0;

  SDX_INLINE int64_t taps() const { return axis[0].taps * axis[1].taps * axis[2].taps; }
  SDX_INLINE int64_t ins() const { return axis[0].in * axis[1].in * axis[2].in; }
  SDX_INLINE int64_t outs() const { return axis[0].out * axis[1].out * axis[2].out; }
};

// The window of a convolution or pooling; `ints` has one number per spatial axis of each of kernel,
// strides, dilations and padding before.
SDX_INLINE Window read_window(const View& x, const View& y, const int64_t* ints) {
  Window w;
  const int n = x.rank - 2;
  w.batch = x.dims[0];
  for (int i = 0; i < n; ++i) {
    Axis& axis = w.axis[kSpatial - n + i];
    axis.in = x.dims[1 + i];
    axis.out = y.dims[1 + i];
    axis.taps = ints[i];
    axis.stride = ints[n + i];
    axis.dilation = ints[2 * n + i];
    axis.begin = -ints[3 * n + i];
  }
  return w;
}

// Coordinates of an output.
struct Pixel {
  int64_t image, at[kSpatial];
};

SDX_INLINE Pixel pixel_of(const Window& w, int64_t row) {
  Pixel p;
  for (int i = kSpatial - 1; i >= 0; --i) {
    p.at[i] = row % w.axis[i].out;
    row /= w.axis[i].out;
  }
  p.image = row;
  return p;
}

// The next output in row-major order.
SDX_INLINE void advance(const Window& w, Pixel& p) {
  for (int i = kSpatial - 1; i >= 0; --i) {
    if (++p.at[i] < w.axis[i].out) return;
    p.at[i] = 0;
  }
  ++p.image;
}

}  // namespace sdx::SDX_ISA
