// The divisor of AveragePool, along one axis.
#pragma once

#include "kernels/window.h"

namespace sdx::SDX_ISA {

// Which elements of a window AveragePool divides by: those inside the input, or with
// count_include_pad those inside the padded input, which ends at `limits`. Elements that ceil_mode
// adds beyond the padding never count.
struct Counted {
  bool has_pads = false;
  int64_t limits[kSpatial] = {1, 1, 1};

  SDX_INLINE int64_t along(const Window& window, int i, int64_t out) const {
    const Axis& axis = window.axis[i];
    int64_t n = axis.last_tap(out) - axis.first_tap(out);
    if (has_pads) {
      const int64_t remaining = limits[i] - out * axis.stride;
      n = remaining <= 0 ? 0 : (remaining + axis.dilation - 1) / axis.dilation;
      n = n < axis.taps ? n : axis.taps;
    }
    return n < 0 ? 0 : n;
  }
};

// ints: has_pads, and a limit for each of n spatial axes.
SDX_INLINE Counted read_counted(const int64_t* ints, int n) {
  Counted counted;
  counted.has_pads = ints[0] != 0;
  for (int i = 0; i < n; ++i) counted.limits[kSpatial - n + i] = ints[1 + i];
  return counted;
}

}  // namespace sdx::SDX_ISA
