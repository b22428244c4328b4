// Packing of 8-bit weights into the panels of tile_int8.h, with the sums of their columns.
#pragma once

#include "kernels/quantize/tile_int8.h"
#include "simd/bytes.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA::int8 {

// Strides of the source: the weight of (line, tap, channel) in column n. A convolution's rows of
// weights are window lines of taps x channels, each padded to whole groups; a matrix has one line
// and one tap.
struct Weights {
  int64_t lines, taps, channels;
  int64_t line_stride, tap_stride, channel_stride, column_stride, pack_stride;
  uint8_t flip;  // 0x80 for unsigned weights, which become signed
};

// The sums of a panel's columns, in registers while it is packed.
struct ColumnSums {
  i32v at[kPanel / kLanes] = {};
};

// Interleaves four rows of a panel, `stride` bytes apart, into one group.
SDX_INLINE void pack_group(const uint8_t* from, int64_t stride, uint8_t flip, uint8_t* to,
                           ColumnSums& sums) {
  for (int v = 0; v < kPanel / kLanes; ++v) {
    const i32v columns = interleave_rows(from + v * kLanes, stride) ^ int32_t(flip * 0x01010101u);
    store(to + v * SDX_VEC_BYTES, columns);
    sums.at[v] = dot4(sums.at[v], splat(int32_t(0x01010101)), columns);
  }
}

// Channels [low, high), a multiple of kGroup, of rows `unit` bytes apart.
SDX_INLINE void pack_groups(const Weights& w, int64_t low, int64_t high, const uint8_t* from,
                            int64_t unit, uint8_t* to, int32_t* column_sums) {
  ColumnSums sums;
  for (int64_t line = 0; line < w.lines; ++line)
    for (int64_t tap = 0; tap < w.taps; ++tap) {
      const uint8_t* row = from + (line * w.line_stride + tap * w.tap_stride) * unit;
      uint8_t* at = to + ((line * w.taps + tap) * w.channels + low) * kPanel;
      for (int64_t c = low; c < high; c += kGroup, at += kGroup * kPanel)
        pack_group(row + (c - low) * w.channel_stride * unit, w.channel_stride * unit, w.flip, at,
                   sums);
    }
  for (int v = 0; v < kPanel / kLanes; ++v) {
    int32_t* at = column_sums + v * kLanes;
    store(at, load(at) + sums.at[v]);
  }
}

// Weights whose columns are contiguous, transposed into rows of a panel: at most kMax of them, 16
// KiB, in squares of 16 x 16 bytes that are transposed in registers.
struct RowTile {
  static constexpr int64_t kMax = 512, kSquare = 16;
  uint8_t at[kMax * kPanel];

  // n bytes of each column; columns beyond the last are filled with `empty`.
  SDX_INLINE void load_columns(const uint8_t* from, int64_t stride, int64_t columns, int64_t n,
                               uint8_t empty) {
    const int64_t whole_rows = n / kSquare * kSquare, across = columns / kSquare * kSquare;
    for (int64_t j = 0; j < across; j += kSquare)
      for (int64_t i = 0; i < whole_rows; i += kSquare)
        transpose_square<uint8_t, kSquare>(
            reinterpret_cast<const std::byte*>(from + j * stride + i), stride,
            reinterpret_cast<std::byte*>(at + i * kPanel + j), kPanel);
    for (int64_t j = 0; j < kPanel; ++j)
      for (int64_t i = j < across ? whole_rows : 0; i < n; ++i)
        at[i * kPanel + j] = j < columns ? from[j * stride + i] : empty;
  }
};

// One element at a time: the fallback for channels that are not a multiple of kGroup.
SDX_INLINE void pack_elements(const Weights& w, const uint8_t* from, int64_t columns, uint8_t* to,
                              int32_t* column_sums) {
  for (int64_t j = 0; j < columns; ++j, from += w.column_stride) {
    int64_t k = 0;
    for (int64_t line = 0; line < w.lines; ++line, k = (k + kGroup - 1) / kGroup * kGroup)
      for (int64_t tap = 0; tap < w.taps; ++tap)
        for (int64_t c = 0; c < w.channels; ++c, ++k) {
          const int64_t from_top = line * w.line_stride + tap * w.tap_stride;
          const uint8_t v = from[from_top + c * w.channel_stride] ^ w.flip;
          to[(k / kGroup * kPanel + j) * kGroup + k % kGroup] = v;
          column_sums[j] += int8_t(v);
        }
  }
}

// Packs one panel, by the fastest of three ways: rows are contiguous; columns are contiguous and
// dense enough to transpose; or element by element.
SDX_INLINE void pack_panel(const Weights& w, const PackedShape& shape, const uint8_t* from,
                           int64_t panel, uint8_t* to) {
  const int64_t columns = shape.n - panel * kPanel < kPanel ? shape.n - panel * kPanel : kPanel;
  uint8_t* at = to + panel * shape.panel_bytes();
  auto* column_sums = reinterpret_cast<int32_t*>(to + shape.column_sums_at()) + panel * kPanel;
  memset(column_sums, 0, kPanel * sizeof(int32_t));
  from += panel * kPanel * w.column_stride;
  const bool is_whole = w.channels % kGroup == 0;
  if (is_whole && w.column_stride == 1 && columns == kPanel)
    return pack_groups(w, 0, w.channels, from, 1, at, column_sums);
  const int64_t span = (w.lines - 1) * w.line_stride + (w.taps - 1) * w.tap_stride;
  if (!is_whole || span >= w.channel_stride || w.channel_stride * kGroup > RowTile::kMax) {
    memset(at, 0, size_t(shape.panel_bytes()));
    return pack_elements(w, from, columns, at, column_sums);
  }
  RowTile tile;
  const int64_t step = RowTile::kMax / w.channel_stride / kGroup * kGroup;
  for (int64_t low = 0; low < w.channels; low += step) {
    const int64_t high = low + step < w.channels ? low + step : w.channels;
    const int64_t n = (high - low - 1) * w.channel_stride + span + 1;
    tile.load_columns(from + low * w.channel_stride, w.column_stride, columns, n, w.flip);
    pack_groups(w, low, high, tile.at, kPanel, at, column_sums);
  }
}

}  // namespace sdx::SDX_ISA::int8
