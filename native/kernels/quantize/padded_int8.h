// Copies of channels-last images with their padding, whose windows are then all inside.
#pragma once

#include "kernels/quantize/gemm_int8.h"
#include "kernels/window.h"

namespace sdx::SDX_ISA::int8 {

// The extent of all windows along an axis, padding included.
SDX_INLINE int64_t reach_of(const Axis& axis) {
  return (axis.out - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1;
}
SDX_INLINE bool stays_inside(const Axis& axis) {
  return axis.begin >= 0 && axis.begin + reach_of(axis) <= axis.in;
}

// Copies line `at` of all padded lines of images [batch, high, wide, channels] to `to`.
SDX_INLINE void copy_padded_line(const Window& w, int64_t channels, const Data& data, int64_t at,
                                 uint8_t* to) {
  const Axis &high = w.axis[1], &wide = w.axis[2];
  const int64_t height = reach_of(high), c = channels;
  const int64_t first = wide.begin < 0 ? -wide.begin : 0;
  const int64_t padded_width = reach_of(wide), remaining = wide.in - wide.begin;
  const int64_t last = remaining < padded_width ? remaining : padded_width;
  const int64_t line = at % height + high.begin;
  if (line < 0 || line >= high.in || first >= last) {
    memset(to, padding(data), size_t(padded_width * c));
    return;
  }
  const uint8_t* from =
      input<uint8_t>(data, kX) + ((at / height * high.in + line) * wide.in + wide.begin) * c;
  memset(to, padding(data), size_t(first * c));
  copy_bytes(to + first * c, from + first * c, (last - first) * c);
  memset(to + last * c, padding(data), size_t((padded_width - last) * c));
}

}  // namespace sdx::SDX_ISA::int8
