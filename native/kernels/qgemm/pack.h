// Packing of 8-bit weights.
#pragma once

#include "kernels/qgemm/tile.h"

namespace sdx::SDX_ISA::q8 {

// Where the element of a line, tap and channel and of column n of a pack lies. Lines are filled up
// to whole groups.
struct Weights {
  int64_t lines, taps, channels;
  int64_t line_stride, tap_stride, channel_stride, column_stride, pack_stride;
  uint8_t flip;  // turns unsigned weights into signed ones
};

SDX_INLINE void pack_panel(const Weights& w, const PackedShape& shape, const uint8_t* from,
                           int64_t panel, uint8_t* to) {
  const int64_t columns = shape.n - panel * kPanel < kPanel ? shape.n - panel * kPanel : kPanel;
  uint8_t* at = to + panel * shape.panel_bytes();
  auto* sums = reinterpret_cast<int32_t*>(to + shape.sums_at()) + panel * kPanel;
  memset(at, 0, size_t(shape.panel_bytes()));
  memset(sums, 0, kPanel * sizeof(int32_t));
  for (int64_t j = 0; j < columns; ++j) {
    const uint8_t* column = from + (panel * kPanel + j) * w.column_stride;
    int64_t k = 0;
    int32_t sum = 0;
    for (int64_t line = 0; line < w.lines; ++line, k = (k + kGroup - 1) / kGroup * kGroup)
      for (int64_t tap = 0; tap < w.taps; ++tap)
        for (int64_t c = 0; c < w.channels; ++c, ++k) {
          const int64_t from_top = line * w.line_stride + tap * w.tap_stride;
          const uint8_t v = column[from_top + c * w.channel_stride] ^ w.flip;
          at[(k / kGroup * kPanel + j) * kGroup + k % kGroup] = v;
          sum += int8_t(v);
        }
    sums[j] = sum;
  }
}

}  // namespace sdx::SDX_ISA::q8
