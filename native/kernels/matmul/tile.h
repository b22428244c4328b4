// Matrix products at the FMA limit: C[m x n] = rows of A times a packed B, for every family that
// multiplies (gemm, conv, recurrent, attention).
//
// Packed B is panels of kPanel columns: panel j holds columns [32j, 32j + 32) as [k][32] floats,
// k outermost, zeros behind the last column. `packed_floats(k, n)` is its size. The layout is the
// same for every ISA.
//
// A is never packed. A tile broadcasts elements of row-major rows that lie kStride floats apart, a
// stride that neither aliases at 4 KB nor needs a register. The caller's `fill` puts them there:
//
//   gemm_block(local, m, k, Columns{b, n, first, last}, Target{c, ldc}, TileEpilogue{alpha, bias,
//   relu},
//              [&](float* to, int64_t row, int64_t rows, int64_t depth, int64_t depths) {
//                // rows [row, row + rows) of A, their elements [depth, depth + depths): row i goes
//                // to to + i * kStride. copy_rows() does it where A is in memory; convolution
//                // gathers its windows here, half types are widened here.
//              });
//
// computes all m rows of panels [first, last) of C: column 32 * first + j of row i lies at
// c[i * ldc + j]. Any m, n and k, 0 included, will do; C never needs to be cleared. `local` is
// kBlockBytes of this thread's own memory. What `TileEpilogue` cannot say (longer epilogues, other
// types) runs over the block behind it, while it is hot: keep blocks below about 256 KB of C.
//
// `split_matmul(m, n, k)` cuts a product into such blocks: the items of a phase.
//
// Products of bf16 are the same with a Bf16Pair where a float was: two neighbours along k, which
// one instruction multiplies and adds. All depths count pairs then, the last of which may lack its
// second number: that is 0 on both sides.
#pragma once

#include <cstdint>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

using Bf16Pair = uint32_t;  // two numbers of bf16, the first of them in the low bits

constexpr int64_t kPanel = 32;
constexpr int kTileRows = SDX_VEC_BYTES == 64 ? 12 : SDX_VEC_BYTES == 32 ? 6 : 4;
constexpr int64_t kDepth = 256;           // most elements of a row in one pass over a block
constexpr int64_t kStride = kDepth + 16;  // between rows of A, in floats
constexpr int64_t kBlockRows = 144;       // most rows of A that are held at a time
constexpr int64_t kMostColumns = 256;     // most columns of an item, with so many rows
constexpr int64_t kBlockBytes = kBlockRows * kStride * int64_t(sizeof(float));

constexpr int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }
constexpr int64_t packed_floats(int64_t k, int64_t n) { return panels_of(n) * kPanel * k; }

// How many numbers an element of a packed matrix holds, and how many elements k numbers take.
template <class U>
constexpr int64_t kValuesPer = 1;
template <>
constexpr int64_t kValuesPer<Bf16Pair> = 2;
template <class U>
constexpr int64_t depth_of(int64_t k) {
  return (k + kValuesPer<U> - 1) / kValuesPer<U>;
}

// What happens to complete sums: y = alpha * sum + bias[column], then max(y, 0) if relu, then
// min(y, high). Sums begin with what lies at `start`, if given, which may be C itself.
struct TileEpilogue {
  float alpha = 1;
  const float* bias = nullptr;  // n of them, or null
  bool relu = false;
  float high = kInf;
  const float* start = nullptr;  // where the first column of the first panel begins
  int64_t start_stride = 0;      // between its rows
  SDX_INLINE bool is_plain() const {
    return alpha == 1 && bias == nullptr && !relu && high == kInf;
  }
};

template <class U>
struct ColumnsOf {
  const U* packed;
  int64_t n;            // of the whole matrix
  int64_t first, last;  // panels
  int64_t depth = 0;    // rows that a panel has, where it has more than are read
};
using Columns = ColumnsOf<float>;

struct Target {
  float* c;  // where the first column of the first panel goes
  int64_t ldc;
};

// Item `i` of `parts` nearly equal parts of n begins here.
SDX_INLINE int64_t part_begin(int64_t n, int64_t parts, int64_t i) {
  return n / parts * i + (i < n % parts ? i : n % parts);
}

// A row is added up in passes of at most kDepth elements.
SDX_INLINE int64_t passes_of(int64_t k) { return k > kDepth ? (k + kDepth - 1) / kDepth : 1; }

// Passes [first, last) over the panels: `a` holds the elements of m rows that each pass wants, one
// pass behind the other.
void gemm_passes(int64_t m, int64_t k, int64_t first, int64_t last, const float* a,
                 const Columns& b, const Target& to, const TileEpilogue& finish);
void gemm_passes(int64_t m, int64_t k, int64_t first, int64_t last, const Bf16Pair* a,
                 const ColumnsOf<Bf16Pair>& b, const Target& to, const TileEpilogue& finish);

// One pass over one panel of `width` columns, for callers that make panels on the way: m rows of A,
// kStride apart, times [k][32] floats, written over C or added to it.
void gemm_pass(int64_t m, int64_t k, const float* a, const float* panel, int64_t width,
               const Target& to, bool add);

template <class U, class Fill>
SDX_INLINE void gemm_block(void* local, int64_t m, int64_t k, const ColumnsOf<U>& b,
                           const Target& to, const TileEpilogue& finish, Fill&& fill) {
  U* a = static_cast<U*>(local);
  const int64_t blocks = (m + kBlockRows - 1) / kBlockRows, passes = passes_of(k);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = part_begin(m, blocks, block);
    const int64_t rows = part_begin(m, blocks, block + 1) - row;
    const int64_t room = kBlockRows / rows;  // few rows: all of B is read in the order it lies in
    for (int64_t first = 0, last; first < passes; first = last) {
      last = first + room < passes ? first + room : passes;
      for (int64_t p = first; p < last; ++p) {
        const int64_t depth = part_begin(k, passes, p);
        fill(a + (p - first) * rows * kStride, row, rows, depth,
             part_begin(k, passes, p + 1) - depth);
      }
      TileEpilogue own = finish;
      if (own.start != nullptr) own.start += row * own.start_stride;
      gemm_passes(rows, k, first, last, a, b, {to.c + row * to.ldc, to.ldc}, own);
    }
  }
}

// The `fill` for rows of floats in memory: `from` is the element [row, depth].
SDX_INLINE void copy_rows(float* to, const float* from, int64_t stride, int64_t rows, int64_t k) {
  for (int64_t i = 0; i < rows; ++i)
    memcpy(to + i * kStride, from + i * stride, size_t(k) * sizeof(float));
}

// A product cut into row_blocks x column_blocks items by its sizes alone, so that any number of
// threads gives the same bytes. Item i is block i % row_blocks of rows and i / row_blocks of
// columns: neighbours share columns of B.
struct Split {
  int64_t m, panels;
  int64_t row_blocks, column_blocks;
  int64_t work;  // of one item, as a phase wants it

  SDX_INLINE int64_t count() const { return row_blocks * column_blocks; }
  SDX_INLINE int64_t row(int64_t block) const { return part_begin(m, row_blocks, block); }
  SDX_INLINE int64_t panel(int64_t block) const { return part_begin(panels, column_blocks, block); }
};

SDX_INLINE Split split_matmul(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kEnough = 8;          // items that balance
  constexpr int64_t kSmall = 512 * 1024;  // multiplications below which an item is not cut further
  constexpr int64_t kReading = 4;         // rows that B is multiplied by while it is read
  if (m <= 0 || n <= 0) return {m, panels_of(n), 0, 0, 1};
  Split split{m, panels_of(n), (m + kBlockRows - 1) / kBlockRows, 1, 1};
  split.column_blocks = (n + kMostColumns - 1) / kMostColumns;
  const auto work = [&] { return (m < kReading ? kReading : m) * n / split.count() * (k + 1); };
  while (split.count() < kEnough && work() > kSmall) {
    // An item copies its rows of A for every few panels, and reads its part of B for every few
    // rows: 12 rows cost about as much as half a panel.
    const bool can_cut_rows = split.row_blocks * 2 * kTileRows <= m;
    const bool can_cut_columns = split.column_blocks < split.panels;
    if (!can_cut_rows && !can_cut_columns) break;
    const int64_t rows = m / split.row_blocks, panels = split.panels / split.column_blocks;
    (can_cut_columns && (!can_cut_rows || panels * 24 >= rows) ? split.column_blocks
                                                               : split.row_blocks)++;
  }
  split.work = work() / (SDX_VEC_BYTES / 2) + 1;
  return split;
}

}  // namespace sdx::SDX_ISA
