// GEMM micro-kernel interface: C[m x n] = A[m x k] * packed B[k x n] at the FMA issue limit, for
// every family that multiplies (matmul, conv, recurrent, attention, nbits).
//
// Layout of packed B: panels of kPanel columns. Panel j holds columns [32j, 32j + 32) as [k][32]
// floats, k outermost, zero padded after the last column. `packed_floats(k, n)` is its size. The
// layout is the same for every ISA and part of the pack file format: a changed one needs a new
// version in pack/identity.py.
//
// Register tile: up to kTileRows rows by two vectors of accumulators stay in registers over a whole
// pass along k. With AVX-512 12 x 32 floats are 24 of 32 registers, which leaves enough for a row
// of B (2) and the broadcast of A: 24 independent FMAs hide the FMA latency (4 cycles, 2 per cycle
// need >= 8), and each of the 2 + 12 loads of a step feeds many FMAs.
//
// A is not packed. Its rows are copied row-major into a local block, kStride floats apart, from
// which the tile reads scalars by broadcast: the copy costs one load and store per vector, where a
// transposed pack would scatter. The stride keeps 12 rows out of one set of the L1 cache (rows of
// 4096 bytes share a set) and is a constant, which needs no register. The caller's `fill` copies:
//
//   gemm_block(local, m, k, Columns{b, n, first, last}, Target{c, ldc},
//              TileEpilogue{alpha, bias, relu},
//              [&](float* to, int64_t row, int64_t rows, int64_t depth, int64_t depths) {
//                // rows [row, row + rows) of A, their elements [depth, depth + depths): row i goes
//                // to to + i * kStride. copy_rows() does it where A is in memory; convolutions
//                // run im2col here (implicit GEMM), float16 and bf16 are widened here.
//              });
//
// computes all m rows of panels [first, last) of C: column 32 * first + j of row i is stored at
// c[i * ldc + j]. Any m, n and k, 0 included, are valid; C need not be cleared. `local` is
// kBlockBytes of the thread's local memory. Epilogues that `TileEpilogue` cannot express (programs
// of chain.h, other output types) run over the block afterwards, while it is in cache: keep blocks
// below about 256 KB of C.
//
// `split_matmul(m, n, k)` cuts a matmul into such blocks: the items of a phase.
//
// bf16: the same code with a Bf16Pair in place of a float: two neighbours along k, which one
// instruction (VDPBF16PS) multiplies and adds. All depths count pairs then; the missing second
// value of the last pair of an odd k is 0 on both sides.
#pragma once

#include <cstdint>

#include "simd/vec.h"

namespace sdx::SDX_ISA {

using Bf16Pair = uint32_t;  // two bf16 values, the first of them in the low bits

constexpr int64_t kPanel = 32;
constexpr int kTileRows = SDX_VEC_BYTES == 64 ? 12 : SDX_VEC_BYTES == 32 ? 6 : 4;
// Cache blocking. kDepth: a panel of one pass is 256 x 32 floats = 32 KB, so it stays in L1/L2
// while tile after tile of rows passes over it. kBlockRows: a multiple of every kTileRows; its copy
// of A (153 KB) fits in L2 together with the panel. kMaxColumns: 144 x 256 floats of C are 144 KB.
constexpr int64_t kDepth = 256;           // most elements of a row in one pass over a block
constexpr int64_t kStride = kDepth + 16;  // between rows of A, in floats
constexpr int64_t kBlockRows = 144;       // most rows of A that are copied at a time
constexpr int64_t kMaxColumns = 256;      // of an item
constexpr int64_t kBlockBytes = kBlockRows * kStride * int64_t(sizeof(float));

constexpr int64_t panels_of(int64_t n) { return (n + kPanel - 1) / kPanel; }
constexpr int64_t packed_floats(int64_t k, int64_t n) { return panels_of(n) * kPanel * k; }

// Values per element of a packed matrix (float: 1, Bf16Pair: 2), and elements that k values take.
template <class U>
constexpr int64_t kValuesPer = 1;
template <>
constexpr int64_t kValuesPer<Bf16Pair> = 2;
template <class U>
constexpr int64_t depth_of(int64_t k) {
  return (k + kValuesPer<U> - 1) / kValuesPer<U>;
}

// Epilogue applied to complete accumulators in registers: y = alpha * acc + bias[column], then
// max(y, 0) if relu, then min(y, high). Accumulators begin with `start`, if given, which may be C
// itself.
struct TileEpilogue {
  float alpha = 1;
  const float* bias = nullptr;  // n floats, or null
  bool relu = false;
  float high = kInf;
  const float* start = nullptr;  // initial value of the first column of the first panel
  int64_t start_stride = 0;      // floats between its rows
  SDX_INLINE bool is_plain() const {
    return alpha == 1 && bias == nullptr && !relu && high == kInf;
  }
};

// Panels [first, last) of a packed B.
template <class U>
struct ColumnsOf {
  const U* packed;
  int64_t n;            // columns of the whole matrix
  int64_t first, last;  // panels
  int64_t depth = 0;    // rows of a stored panel if it has more than k; 0: k
};
using Columns = ColumnsOf<float>;

// Where results go: a row-major block of C.
struct Target {
  float* c;  // address of the first column of the first panel
  int64_t ldc;
};

// Begin of part `i` when n is cut into `parts` nearly equal parts.
SDX_INLINE int64_t part_begin(int64_t n, int64_t parts, int64_t i) {
  return n / parts * i + (i < n % parts ? i : n % parts);
}

// Number of passes over k, each of at most kDepth elements.
SDX_INLINE int64_t passes_of(int64_t k) { return k > kDepth ? (k + kDepth - 1) / kDepth : 1; }

// Passes [first, last) over the panels: `a` holds m rows for each pass, one pass after the other.
void gemm_passes(int64_t m, int64_t k, int64_t first, int64_t last, const float* a,
                 const Columns& b, const Target& to, const TileEpilogue& finish);
void gemm_passes(int64_t m, int64_t k, int64_t first, int64_t last, const Bf16Pair* a,
                 const ColumnsOf<Bf16Pair>& b, const Target& to, const TileEpilogue& finish);

// One pass over one panel of `width` columns, for callers that produce panels on the fly (Winograd
// weights, dequantized weights): m rows of A, kStride apart, times [k][32] floats, stored to C or
// added to it.
void gemm_pass(int64_t m, int64_t k, const float* a, const float* panel, int64_t width,
               const Target& to, bool add);

// Runs rows in blocks of at most kBlockRows and k in passes: fills the A block, then multiplies all
// panels by it.
template <class U, class Fill>
SDX_INLINE void gemm_block(void* local, int64_t m, int64_t k, const ColumnsOf<U>& b,
                           const Target& to, const TileEpilogue& finish, Fill&& fill) {
  U* a = static_cast<U*>(local);
  const int64_t blocks = (m + kBlockRows - 1) / kBlockRows, passes = passes_of(k);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t row = part_begin(m, blocks, block);
    const int64_t rows = part_begin(m, blocks, block + 1) - row;
    // With few rows several passes fit into the local block: each panel of B is then read over its
    // whole depth before the next one, which is the order of its addresses.
    const int64_t capacity = kBlockRows / rows;
    for (int64_t first = 0, last; first < passes; first = last) {
      last = first + capacity < passes ? first + capacity : passes;
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

// The `fill` for rows of floats in memory; `from` points to element [row, depth].
SDX_INLINE void copy_rows(float* to, const float* from, int64_t stride, int64_t rows, int64_t k) {
  for (int64_t i = 0; i < rows; ++i)
    memcpy(to + i * kStride, from + i * stride, size_t(k) * sizeof(float));
}

// A matmul cut into row_blocks x column_blocks items by its sizes alone, so that any number of
// threads gives the same bytes. Item i is block i % row_blocks of rows and i / row_blocks of
// columns: neighbouring items share columns of B.
struct Split {
  int64_t m, panels;
  int64_t row_blocks, column_blocks;
  int64_t work;  // of one item, in the units of Phase::work

  SDX_INLINE int64_t count() const { return row_blocks * column_blocks; }
  SDX_INLINE int64_t row(int64_t block) const { return part_begin(m, row_blocks, block); }
  SDX_INLINE int64_t panel(int64_t block) const { return part_begin(panels, column_blocks, block); }
};

SDX_INLINE Split split_matmul(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kMinItems = 8;         // enough to balance the load of threads
  constexpr int64_t kSmall = 512 * 1024;   // multiplications below which an item is not cut further
  constexpr int64_t kRowsToHideReads = 4;  // rows whose FMAs take as long as reading B from memory
  if (m <= 0 || n <= 0) return {m, panels_of(n), 0, 0, 1};
  Split split{m, panels_of(n), (m + kBlockRows - 1) / kBlockRows, 1, 1};
  split.column_blocks = (n + kMaxColumns - 1) / kMaxColumns;
  const auto work = [&] {
    return (m < kRowsToHideReads ? kRowsToHideReads : m) * n / split.count() * (k + 1);
  };
  while (split.count() < kMinItems && work() > kSmall) {
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
