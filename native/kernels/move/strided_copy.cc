// Strided copies: contiguous units by memcpy, or a cache-blocked transpose. Axes are collapsed
// first, so that a permutation of many axes usually ends as one of the two.
#include "kernels/move/strided_copy.h"

#include "kernels/move/copy_bytes.h"
#include "kernels/move/untyped.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kChunk = 32 << 10;    // bytes of a long unit that one item copies
constexpr int64_t kLongestTile = 1024;  // elements of a tile's longer side
constexpr int64_t kMinTile = 16;        // elements from which a transpose is worth its set-up

// Drops axes of size 1 and merges neighbours that are contiguous on both sides.
void collapse(StridedCopy& m) {
  int rank = 0;
  for (int i = 0; i < m.rank; ++i) {
    if (m.dims[i] == 1) continue;
    const int last = rank - 1;
    if (rank > 0 && m.from[last] == m.from[i] * m.dims[i] && m.to[last] == m.to[i] * m.dims[i]) {
      m.dims[last] *= m.dims[i];
      m.from[last] = m.from[i];
      m.to[last] = m.to[i];
    } else {
      m.dims[rank] = m.dims[i];
      m.from[rank] = m.from[i];
      m.to[rank++] = m.to[i];
    }
  }
  m.rank = rank;
}

void drop_axis(StridedCopy& m, int axis) {
  for (int i = axis; i + 1 < m.rank; ++i) {
    m.dims[i] = m.dims[i + 1];
    m.from[i] = m.from[i + 1];
    m.to[i] = m.to[i + 1];
  }
  --m.rank;
}

bool is_word(int64_t bytes) {
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16;
}

// Elements per side of a square tile: 16 KiB or less on either side, so source and target stay in
// L1.
int64_t tile_edge(int64_t unit) { return unit == 1 ? 128 : unit <= 4 ? 64 : 32; }

// The number of tiles along one side. Where the other side is shorter than a tile, tiles grow along
// this one, so that they keep about edge^2 elements.
int64_t tiles_of(int64_t length, int64_t other, int64_t edge) {
  const int64_t longer = other < edge ? edge * edge / other : edge;
  const int64_t most = longer < kLongestTile ? longer : kLongestTile;
  return (length + most - 1) / most;
}

// The first element of tile i. Tiles divide a side evenly: a short last one would not fill the
// register blocks.
SDX_INLINE int64_t tile_begin(int64_t length, int64_t tiles, int64_t i) {
  return i == 0 ? 0 : i == tiles ? length : length * i / tiles;
}

// Rounds a tile's first element up to a cache-line boundary, so that neighbouring tiles, which may
// run on different threads, do not share lines. Possible only if all rows are aligned alike (the
// row stride is a multiple of a line).
SDX_INLINE int64_t aligned_begin(const std::byte* side, int64_t stride, int64_t unit,
                                 int64_t first) {
  constexpr int64_t kLine = 64;
  if (first == 0 || unit < 4 || stride % kLine != 0) return first;
  const int64_t over = int64_t(reinterpret_cast<uintptr_t>(side + first * unit) % kLine);
  return first + (over == 0 ? 0 : (kLine - over) / unit);
}

// Detects a transpose: removes the target's dense (last) axis and the source's dense axis from the
// odometer and makes them the rows and columns of tiles.
void find_transpose(StridedCopy& m) {
  const int last = m.rank - 1;
  if (m.rank < 2 || !is_word(m.unit) || m.to[last] != m.unit) return;
  int dense = -1;
  for (int i = 0; i < last; ++i)
    if (m.from[i] == m.unit && (dense < 0 || m.dims[i] > m.dims[dense])) dense = i;
  if (dense < 0 || m.dims[dense] * m.dims[last] < kMinTile) return;
  m.column = m.dims[dense], m.column_stride = m.to[dense];
  m.row = m.dims[last], m.row_stride = m.from[last];
  drop_axis(m, last);
  drop_axis(m, dense);
  const int64_t edge = tile_edge(m.unit);
  m.column_tiles = tiles_of(m.column, m.row, edge);
  m.row_tiles = tiles_of(m.row, m.column, edge);
}

constexpr int64_t kMaxSquare = 16;  // rows of the largest square that fits the register file
// Row strides that are a multiple of this map rows to few cache sets. Square blocks read a whole
// vector of every row, so that a line is used up before it is evicted; tall blocks read 16 bytes of
// each and would load it again.
constexpr int64_t kAliasing = 512;

// Register blocks of kHigh columns and kWide rows; the last of a row or column is shifted back to
// end at the edge and recomputes part of its neighbour.
template <class T, int kBytes, bool kSquare>
void transpose_blocks(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
                      int64_t columns, int64_t rows) {
  constexpr int64_t kSize = sizeof(T), kWide = kBytes / kSize;
  constexpr int64_t kHigh = kSquare ? kWide : kLaneBytes / kSize;
  for (int64_t i = 0; i < columns; i += kHigh) {
    const int64_t c = i + kHigh <= columns ? i : columns - kHigh;
    for (int64_t j = 0; j < rows; j += kWide) {
      const int64_t r = j + kWide <= rows ? j : rows - kWide;
      const std::byte* source = from + r * from_stride + c * kSize;
      std::byte* target = to + c * to_stride + r * kSize;
      if constexpr (kSquare)
        transpose_square<T, kBytes>(source, from_stride, target, to_stride);
      else
        transpose_block<T, kBytes>(source, from_stride, target, to_stride);
    }
  }
}

// Two to four rows interleaved: planar images (NCHW) becoming pixels (NHWC).
template <class T, int kRows>
void interleave_rows(const std::byte* from, int64_t from_stride, std::byte* to, int64_t columns) {
  const Unaligned<T>* rows[kRows];
  for (int r = 0; r < kRows; ++r)
    rows[r] = reinterpret_cast<const Unaligned<T>*>(from + r * from_stride);
  auto* __restrict y = reinterpret_cast<Unaligned<T>*>(to);
  for (int64_t c = 0; c < columns; ++c)
    for (int r = 0; r < kRows; ++r) y[c * kRows + r] = rows[r][c];
}

// to[c][r] = from[r][c], with dense source rows and dense target rows. Tries the largest register
// block that fits, then interleaving, then strided loops along the longer side.
template <class T>
void transpose_tile(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride,
                    int64_t columns, int64_t rows) {
  constexpr int64_t kHigh = kLaneBytes / int(sizeof(T)), kSize = sizeof(T);
  if constexpr (kHigh > 1) {
    constexpr int64_t kWide = SDX_VEC_BYTES / kSize;
    if constexpr (kWide <= kMaxSquare)
      if (from_stride % kAliasing == 0 && columns >= kWide && rows >= kWide)
        return transpose_blocks<T, SDX_VEC_BYTES, true>(from, from_stride, to, to_stride, columns,
                                                        rows);
    if (columns >= kHigh && rows >= kWide)
      return transpose_blocks<T, SDX_VEC_BYTES, false>(from, from_stride, to, to_stride, columns,
                                                       rows);
    if (columns >= kHigh && rows >= kHigh)
      return transpose_blocks<T, kLaneBytes, false>(from, from_stride, to, to_stride, columns,
                                                    rows);
  }
  if (rows <= 4 && to_stride == rows * kSize) {
    if (rows == 2) return interleave_rows<T, 2>(from, from_stride, to, columns);
    if (rows == 3) return interleave_rows<T, 3>(from, from_stride, to, columns);
    if (rows == 4) return interleave_rows<T, 4>(from, from_stride, to, columns);
  }
  if (rows < columns) {
    for (int64_t r = 0; r < rows; ++r)
      copy_elements<T>(from + r * from_stride, kSize, to + r * kSize, to_stride, columns);
  } else {
    for (int64_t c = 0; c < columns; ++c)
      copy_elements<T>(from + c * kSize, from_stride, to + c * to_stride, kSize, rows);
  }
}

using TileFn = void (*)(const std::byte*, int64_t, std::byte*, int64_t, int64_t, int64_t);

TileFn tile_fn(int64_t unit) {
  switch (unit) {
    case 1: return transpose_tile<uint8_t>;
    case 2: return transpose_tile<uint16_t>;
    case 4: return transpose_tile<uint32_t>;
    case 8: return transpose_tile<uint64_t>;
    default: return transpose_tile<Bytes16>;
  }
}

// The odometer over the remaining axes: coordinates, and the addresses that belong to them.
struct Odometer {
  const StridedCopy& m;
  const std::byte* from;
  std::byte* to;
  int64_t at[kCopyRank];

  Odometer(const StridedCopy& strided, const void* source, void* target, int64_t index)
      : m(strided),
        from(static_cast<const std::byte*>(source) + strided.from_offset),
        to(static_cast<std::byte*>(target) + strided.to_offset) {
    for (int i = m.rank - 1; i >= 0; --i) {
      at[i] = index % m.dims[i];
      index /= m.dims[i];
      from += at[i] * m.from[i];
      to += at[i] * m.to[i];
    }
  }

  // Advances by n along the last axis, which has at least n elements left, and carries.
  void advance(int64_t n) {
    int i = m.rank - 1;
    if (i < 0) return;
    at[i] += n;
    from += n * m.from[i];
    to += n * m.to[i];
    for (; i > 0 && at[i] == m.dims[i]; --i) {
      from += m.from[i - 1] - m.dims[i] * m.from[i];
      to += m.to[i - 1] - m.dims[i] * m.to[i];
      at[i] = 0;
      ++at[i - 1];
    }
  }
};

// Items are tiles: all tiles of one odometer position, then those of the next.
void run_tiles(const StridedCopy& m, const void* from, void* to, int64_t begin, int64_t end) {
  const TileFn tile = tile_fn(m.unit);
  const int64_t per_position = m.column_tiles * m.row_tiles;
  Odometer odometer(m, from, to, begin / per_position);
  int64_t c = begin % per_position / m.row_tiles, r = begin % m.row_tiles;
  for (int64_t item = begin; item < end; ++item) {
    const auto column = [&](int64_t i) {
      const int64_t first = tile_begin(m.column, m.column_tiles, i);
      return i == m.column_tiles ? first
                                 : aligned_begin(odometer.from, m.row_stride, m.unit, first);
    };
    const auto row = [&](int64_t i) {
      const int64_t first = tile_begin(m.row, m.row_tiles, i);
      return i == m.row_tiles ? first : aligned_begin(odometer.to, m.column_stride, m.unit, first);
    };
    const int64_t c0 = column(c), c1 = column(c + 1), r0 = row(r), r1 = row(r + 1);
    tile(odometer.from + r0 * m.row_stride + c0 * m.unit, m.row_stride,
         odometer.to + c0 * m.column_stride + r0 * m.unit, m.column_stride, c1 - c0, r1 - r0);
    if (++r < m.row_tiles) continue;
    r = 0;
    if (++c < m.column_tiles) continue;
    c = 0;
    odometer.advance(1);
  }
}

// Units longer than 2 * kChunk: items are chunks, so that few units still feed all threads. Chunks
// of one unit are copied by one call: from some megabytes on, the C library stores past the caches.
void run_chunks(const StridedCopy& m, const void* from, void* to, int64_t begin, int64_t end) {
  Odometer odometer(m, from, to, begin / m.n_chunks);
  int64_t chunk = begin % m.n_chunks;
  while (begin < end) {
    const int64_t left = m.n_chunks - chunk, n = left < end - begin ? left : end - begin;
    const int64_t bytes = m.unit - chunk * kChunk;
    memcpy(odometer.to + chunk * kChunk, odometer.from + chunk * kChunk,
           size_t(bytes < n * kChunk ? bytes : n * kChunk));
    begin += n;
    chunk = 0;
    if (n == left) odometer.advance(1);
  }
}

// n units from the odometer's position on; the last axis is handed to `copy` as one strided run.
template <class Copy>
void run_units(const StridedCopy& m, Odometer odometer, int64_t n, Copy copy) {
  if (m.rank == 0) return copy(odometer.from, 0, odometer.to, 0, n);
  const int last = m.rank - 1;
  while (n > 0) {
    const int64_t left = m.dims[last] - odometer.at[last], step = left < n ? left : n;
    copy(odometer.from, m.from[last], odometer.to, m.to[last], step);
    odometer.advance(step);
    n -= step;
  }
}

}  // namespace

int64_t plan_copy(StridedCopy& m) {
  int64_t positions = 1;
  for (int i = 0; i < m.rank; ++i) positions *= m.dims[i];
  if (positions == 0) return 0;
  collapse(m);
  if (m.rank > 0 && m.from[m.rank - 1] == m.unit && m.to[m.rank - 1] == m.unit)
    m.unit *= m.dims[--m.rank];
  find_transpose(m);
  positions = 1;
  for (int i = 0; i < m.rank; ++i) positions *= m.dims[i];
  if (m.column_tiles > 0) return positions * m.column_tiles * m.row_tiles;
  m.n_chunks = m.unit > 2 * kChunk ? (m.unit + kChunk - 1) / kChunk : 1;
  return positions * m.n_chunks;
}

int64_t copy_work(const StridedCopy& m) {
  if (m.column_tiles > 0)
    return m.unit * (m.column / m.column_tiles + 1) * (m.row / m.row_tiles + 1) / 8;
  return (m.n_chunks > 1 ? kChunk : m.unit) / 16;
}

void run_copy(const StridedCopy& m, const void* from, void* to, int64_t begin, int64_t end) {
  if (m.column_tiles > 0) return run_tiles(m, from, to, begin, end);
  if (m.n_chunks > 1) return run_chunks(m, from, to, begin, end);
  const Odometer odometer(m, from, to, begin);
  const int64_t n = end - begin;
  switch (m.unit) {
    case 1: return run_units(m, odometer, n, copy_elements<uint8_t>);
    case 2: return run_units(m, odometer, n, copy_elements<uint16_t>);
    case 4: return run_units(m, odometer, n, copy_elements<uint32_t>);
    case 8: return run_units(m, odometer, n, copy_elements<uint64_t>);
    case 16: return run_units(m, odometer, n, copy_elements<Bytes16>);
    default:
      return run_units(m, odometer, n,
                       [&](const std::byte* f, int64_t fs, std::byte* t, int64_t ts,
                           int64_t count) { copy_runs(f, fs, t, ts, count, m.unit); });
  }
}

void pack_copy(const View& from, StridedCopy& strided) {
  strided.unit = size_of(from.dtype);
  int64_t step = strided.unit * from.count();
  for (int i = 0; i < from.rank; ++i) {
    step = from.dims[i] == 0 ? 0 : step / from.dims[i];
    strided.axis(from.dims[i], from.strides[i] * strided.unit, step);
  }
}

}  // namespace sdx::SDX_ISA
