// Copies between tensors of any strides, a run of bytes or a tile of a transpose at a time.
#include "kernels/move/strided.h"

#include "kernels/move/runs.h"
#include "kernels/move/words.h"
#include "simd/transpose.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int64_t kChunk = 32 << 10;    // bytes of a long unit that one item copies
constexpr int64_t kLongestTile = 1024;  // elements of its longer side
constexpr int64_t kLeastTile = 16;      // elements that make a transpose worth its tiles

// Axes of one element go, and neighbours that are one axis on both sides become one.
void collapse(Move& m) {
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

void drop_axis(Move& m, int axis) {
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

int64_t tile_edge(int64_t unit) { return unit == 1 ? 128 : unit <= 4 ? 64 : 32; }

// Tiles of one side: longer ones where the other side is short, so that all have their share.
int64_t tiles_of(int64_t length, int64_t other, int64_t edge) {
  const int64_t longer = other < edge ? edge * edge / other : edge;
  const int64_t most = longer < kLongestTile ? longer : kLongestTile;
  return (length + most - 1) / most;
}

// Where tile i of a side begins. Tiles are alike, so that none is too small for whole blocks.
SDX_INLINE int64_t tile_begin(int64_t length, int64_t tiles, int64_t i) {
  return i == 0 ? 0 : i == tiles ? length : length * i / tiles;
}

// Where a tile that would begin at element `first` of `side` does, so that its lines are whole in
// memory, if those of the other rows are as well.
SDX_INLINE int64_t aligned_begin(const std::byte* side, int64_t step, int64_t unit, int64_t first) {
  constexpr int64_t kLine = 64;
  if (first == 0 || unit < 4 || step % kLine != 0) return first;
  const int64_t over = int64_t(reinterpret_cast<uintptr_t>(side + first * unit) % kLine);
  return first + (over == 0 ? 0 : (kLine - over) / unit);
}

// Takes the last axis and the source's dense one out of the odometer, if there are two to swap.
void find_transpose(Move& m) {
  const int last = m.rank - 1;
  if (m.rank < 2 || !is_word(m.unit) || m.to[last] != m.unit) return;
  int dense = -1;
  for (int i = 0; i < last; ++i)
    if (m.from[i] == m.unit && (dense < 0 || m.dims[i] > m.dims[dense])) dense = i;
  if (dense < 0 || m.dims[dense] * m.dims[last] < kLeastTile) return;
  m.column = m.dims[dense], m.column_step = m.to[dense];
  m.row = m.dims[last], m.row_step = m.from[last];
  drop_axis(m, last);
  drop_axis(m, dense);
  const int64_t edge = tile_edge(m.unit);
  m.column_tiles = tiles_of(m.column, m.row, edge);
  m.row_tiles = tiles_of(m.row, m.column, edge);
}

constexpr int64_t kMostSquare = 16;  // rows of a square that registers hold
constexpr int64_t kAliasing = 512;   // bytes between rows that crowd into a few sets of the cache

// Blocks of kHigh columns and kWide rows; the last of a row or column lies flush with the end and
// repeats some of its neighbour.
template <class T, int kBytes, bool kSquare>
void transpose_blocks(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
                      int64_t columns, int64_t rows) {
  constexpr int64_t kSize = sizeof(T), kWide = kBytes / kSize;
  constexpr int64_t kHigh = kSquare ? kWide : kLaneBytes / kSize;
  for (int64_t i = 0; i < columns; i += kHigh) {
    const int64_t c = i + kHigh <= columns ? i : columns - kHigh;
    for (int64_t j = 0; j < rows; j += kWide) {
      const int64_t r = j + kWide <= rows ? j : rows - kWide;
      const std::byte* source = from + r * from_step + c * kSize;
      std::byte* target = to + c * to_step + r * kSize;
      if constexpr (kSquare)
        transpose_square<T, kBytes>(source, from_step, target, to_step);
      else
        transpose_block<T, kBytes>(source, from_step, target, to_step);
    }
  }
}

// A few rows whose elements alternate in the result: planes of an image becoming pixels.
template <class T, int kRows>
void interleave_rows(const std::byte* from, int64_t from_step, std::byte* to, int64_t columns) {
  const Loose<T>* rows[kRows];
  for (int r = 0; r < kRows; ++r) rows[r] = reinterpret_cast<const Loose<T>*>(from + r * from_step);
  auto* __restrict y = reinterpret_cast<Loose<T>*>(to);
  for (int64_t c = 0; c < columns; ++c)
    for (int r = 0; r < kRows; ++r) y[c * kRows + r] = rows[r][c];
}

// to[c][r] = from[r][c], where rows of the source and columns of the result are dense.
template <class T>
void transpose_tile(const std::byte* from, int64_t from_step, std::byte* to, int64_t to_step,
                    int64_t columns, int64_t rows) {
  constexpr int64_t kHigh = kLaneBytes / int(sizeof(T)), kSize = sizeof(T);
  if constexpr (kHigh > 1) {
    constexpr int64_t kWide = SDX_VEC_BYTES / kSize;
    if constexpr (kWide <= kMostSquare)
      if (from_step % kAliasing == 0 && columns >= kWide && rows >= kWide)
        return transpose_blocks<T, SDX_VEC_BYTES, true>(from, from_step, to, to_step, columns,
                                                        rows);
    if (columns >= kHigh && rows >= kWide)
      return transpose_blocks<T, SDX_VEC_BYTES, false>(from, from_step, to, to_step, columns, rows);
    if (columns >= kHigh && rows >= kHigh)
      return transpose_blocks<T, kLaneBytes, false>(from, from_step, to, to_step, columns, rows);
  }
  if (rows <= 4 && to_step == rows * kSize) {
    if (rows == 2) return interleave_rows<T, 2>(from, from_step, to, columns);
    if (rows == 3) return interleave_rows<T, 3>(from, from_step, to, columns);
    if (rows == 4) return interleave_rows<T, 4>(from, from_step, to, columns);
  }
  if (rows < columns) {
    for (int64_t r = 0; r < rows; ++r)
      copy_words<T>(from + r * from_step, kSize, to + r * kSize, to_step, columns);
  } else {
    for (int64_t c = 0; c < columns; ++c)
      copy_words<T>(from + c * kSize, from_step, to + c * to_step, kSize, rows);
  }
}

using TileFn = void (*)(const std::byte*, int64_t, std::byte*, int64_t, int64_t, int64_t);

TileFn tile_fn(int64_t unit) {
  switch (unit) {
    case 1: return transpose_tile<uint8_t>;
    case 2: return transpose_tile<uint16_t>;
    case 4: return transpose_tile<uint32_t>;
    case 8: return transpose_tile<uint64_t>;
    default: return transpose_tile<Word16>;
  }
}

// Where a walk over the axes stands.
struct Walk {
  const Move& m;
  const std::byte* from;
  std::byte* to;
  int64_t at[kMoveRank];

  Walk(const Move& move, const void* source, void* target, int64_t index)
      : m(move),
        from(static_cast<const std::byte*>(source) + move.from_offset),
        to(static_cast<std::byte*>(target) + move.to_offset) {
    for (int i = m.rank - 1; i >= 0; --i) {
      at[i] = index % m.dims[i];
      index /= m.dims[i];
      from += at[i] * m.from[i];
      to += at[i] * m.to[i];
    }
  }

  // Goes n places on along the last axis, which has as many left.
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

void run_tiles(const Move& m, const void* from, void* to, int64_t begin, int64_t end) {
  const TileFn tile = tile_fn(m.unit);
  const int64_t per_place = m.column_tiles * m.row_tiles;
  Walk walk(m, from, to, begin / per_place);
  int64_t c = begin % per_place / m.row_tiles, r = begin % m.row_tiles;
  for (int64_t item = begin; item < end; ++item) {
    const auto column = [&](int64_t i) {
      const int64_t first = tile_begin(m.column, m.column_tiles, i);
      return i == m.column_tiles ? first : aligned_begin(walk.from, m.row_step, m.unit, first);
    };
    const auto row = [&](int64_t i) {
      const int64_t first = tile_begin(m.row, m.row_tiles, i);
      return i == m.row_tiles ? first : aligned_begin(walk.to, m.column_step, m.unit, first);
    };
    const int64_t c0 = column(c), c1 = column(c + 1), r0 = row(r), r1 = row(r + 1);
    tile(walk.from + r0 * m.row_step + c0 * m.unit, m.row_step,
         walk.to + c0 * m.column_step + r0 * m.unit, m.column_step, c1 - c0, r1 - r0);
    if (++r < m.row_tiles) continue;
    r = 0;
    if (++c < m.column_tiles) continue;
    c = 0;
    walk.advance(1);
  }
}

void run_chunks(const Move& m, const void* from, void* to, int64_t begin, int64_t end) {
  Walk walk(m, from, to, begin / m.n_chunks);
  int64_t chunk = begin % m.n_chunks;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t left = m.unit - chunk * kChunk;
    memcpy(walk.to + chunk * kChunk, walk.from + chunk * kChunk,
           size_t(left < kChunk ? left : kChunk));
    if (++chunk == m.n_chunks) {
      chunk = 0;
      walk.advance(1);
    }
  }
}

template <class Copy>
void run_units(const Move& m, Walk walk, int64_t n, Copy copy) {
  if (m.rank == 0) return copy(walk.from, 0, walk.to, 0, n);
  const int last = m.rank - 1;
  while (n > 0) {
    const int64_t left = m.dims[last] - walk.at[last], step = left < n ? left : n;
    copy(walk.from, m.from[last], walk.to, m.to[last], step);
    walk.advance(step);
    n -= step;
  }
}

}  // namespace

int64_t plan_move(Move& m) {
  int64_t places = 1;
  for (int i = 0; i < m.rank; ++i) places *= m.dims[i];
  if (places == 0) return 0;
  collapse(m);
  if (m.rank > 0 && m.from[m.rank - 1] == m.unit && m.to[m.rank - 1] == m.unit)
    m.unit *= m.dims[--m.rank];
  find_transpose(m);
  places = 1;
  for (int i = 0; i < m.rank; ++i) places *= m.dims[i];
  if (m.column_tiles > 0) return places * m.column_tiles * m.row_tiles;
  m.n_chunks = m.unit > 2 * kChunk ? (m.unit + kChunk - 1) / kChunk : 1;
  return places * m.n_chunks;
}

int64_t move_work(const Move& m) {
  if (m.column_tiles > 0)
    return m.unit * (m.column / m.column_tiles + 1) * (m.row / m.row_tiles + 1) / 8;
  return (m.n_chunks > 1 ? kChunk : m.unit) / 16;
}

void run_move(const Move& m, const void* from, void* to, int64_t begin, int64_t end) {
  if (m.column_tiles > 0) return run_tiles(m, from, to, begin, end);
  if (m.n_chunks > 1) return run_chunks(m, from, to, begin, end);
  const Walk walk(m, from, to, begin);
  const int64_t n = end - begin;
  switch (m.unit) {
    case 1: return run_units(m, walk, n, copy_words<uint8_t>);
    case 2: return run_units(m, walk, n, copy_words<uint16_t>);
    case 4: return run_units(m, walk, n, copy_words<uint32_t>);
    case 8: return run_units(m, walk, n, copy_words<uint64_t>);
    case 16: return run_units(m, walk, n, copy_words<Word16>);
    default:
      return run_units(
          m, walk, n, [&](const std::byte* f, int64_t fs, std::byte* t, int64_t ts, int64_t count) {
            copy_runs(f, fs, t, ts, count, m.unit);
          });
  }
}

void move_of(const View& from, Move& move) {
  move.unit = size_of(from.dtype);
  int64_t step = move.unit * from.count();
  for (int i = 0; i < from.rank; ++i) {
    step = from.dims[i] == 0 ? 0 : step / from.dims[i];
    move.axis(from.dims[i], from.strides[i] * move.unit, step);
  }
}

}  // namespace sdx::SDX_ISA
