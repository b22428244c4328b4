// Sliding windows over images with the channels first (NCHW): planes of contiguous pixels.
#pragma once

#include "kernels/window.h"

namespace sdx::SDX_ISA {

// The window of images [batch, channels, *spatial]; `ints` as read_window has it.
SDX_INLINE Window read_plane_window(const View& x, const View& y, const int64_t* ints) {
  Window w;
  const int n = x.rank - 2;
  w.batch = x.dims[0];
  for (int i = 0; i < n; ++i) {
    Axis& axis = w.axis[kSpatial - n + i];
    axis.in = x.dims[2 + i];
    axis.out = y.dims[2 + i];
    axis.taps = ints[i];
    axis.stride = ints[n + i];
    axis.dilation = ints[2 * n + i];
    axis.begin = -ints[3 * n + i];
  }
  return w;
}

}  // namespace sdx::SDX_ISA
