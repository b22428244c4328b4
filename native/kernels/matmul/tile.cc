// The GEMM micro-kernel: accumulators fill the register file (12 x 32 floats with AVX-512, 6 x 16
// with AVX2, 4 x 8 with SSE2), and in each step along k one broadcast of A feeds a row of them.
// Written with GCC vectors and fully unrolled constant loops; the inner loop has no spills.
#include "kernels/matmul/tile.h"

#include "simd/dot.h"

namespace sdx::SDX_ISA {
namespace {

// How the accumulators of a tile are stored: added to earlier partial sums or initial values, if
// any, and passed through the epilogue if this is the last pass over k.
struct Store {
  const float* add;  // at the tile's first row and column, or null
  int64_t add_stride;
  const TileEpilogue* finish;  // bias points to the tile's 32 columns; null: not the last pass
};

// C[rows x width] (+)= A[rows x k] * panel[k x 32]; entry r - 1 of kTiles computes r rows.
template <class U>
using TileFn = void (*)(int64_t k, const U* a, const U* panel, int64_t width, float* c, int64_t ldc,
                        const Store& store);

// Applies f to every accumulator. Branches on the epilogue are outside of it: one for the tile, not
// one per vector, and constant indices keep the accumulators in registers.
template <int R, int W, class F>
SDX_INLINE void each(f32v (&acc)[R][W], F&& f) {
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < W; ++j) f(acc[i][j], i, j * kLanes);
}

template <int R, int W>
SDX_INLINE void apply_epilogue(f32v (&acc)[R][W], const TileEpilogue& finish, int column) {
  if (finish.alpha != 1) each(acc, [&](f32v& y, int, int) { y *= finish.alpha; });
  if (finish.bias != nullptr)
    each(acc, [&](f32v& y, int, int j) { y += load(finish.bias + column + j); });
  const float low = finish.relu ? 0 : -kInf;
  if (finish.relu || finish.high < kInf)
    each(acc, [&](f32v& y, int, int) { y = vclamp(y, low, finish.high); });
}

SDX_INLINE f32v multiply_add(f32v acc, float a, f32v b) { return acc + a * b; }
SDX_INLINE f32v multiply_add(f32v acc, Bf16Pair a, u32v b) { return dot2_bf16(acc, splat(a), b); }

// Prefetch distance in steps along k: about the latency of L3. A step takes 12 to 24 cycles
// with 12 rows of AVX-512 and fewer on narrower tiles.
constexpr int64_t kPrefetchSteps = SDX_VEC_BYTES == 64 ? 16 : 48;

// Half a vector: the remaining columns of a matrix often fit into one, at half the cost.
typedef float Half __attribute__((vector_size(SDX_VEC_BYTES / 2)));

SDX_INLINE f32v whole_of(Half low) {
  f32v v{};
  memcpy(&v, &low, sizeof low);
  return v;
}

// R rows by W vectors of columns, plus half a vector if `has_half`. All columns are stored except
// in the last vector, of which the first `last` lanes are.
template <int R, int W, bool has_half, class U>
SDX_INLINE void strip(int64_t k, const U* a, const U* b, float* c, int64_t ldc,
                      const Store& store_as, int column, Part last) {
  constexpr int kAll = W + has_half;
  f32v acc[R][kAll] = {};
  Half rest[R] = {};
  for (int64_t p = 0; p < k; ++p, ++a, b += kPanel) {
    Vec<U> right[W];
    for (int j = 0; j < kAll * kLanes; j += 16) __builtin_prefetch(b + kPrefetchSteps * kPanel + j);
#pragma GCC unroll 8
    for (int j = 0; j < W; ++j) right[j] = pinned(load(b + j * kLanes));
    Half low;
    if constexpr (has_half) memcpy(&low, b + W * kLanes, sizeof low);
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 8
      for (int j = 0; j < W; ++j) acc[i][j] = multiply_add(acc[i][j], a[i * kStride], right[j]);
      if constexpr (has_half) rest[i] += a[i * kStride] * low;
    }
  }
  if constexpr (has_half)
    for (int i = 0; i < R; ++i) acc[i][W] = whole_of(rest[i]);
  const bool is_whole = last.n == kLanes;
  constexpr int kLast = (kAll - 1) * kLanes;
  if (store_as.add != nullptr) {
    const float* add = store_as.add + column;
    each(acc, [&](f32v& y, int i, int j) {
      const float* from = add + i * store_as.add_stride + j;
      y += is_whole || j < kLast ? load(from) : load(from, last);
    });
  }
  if (store_as.finish != nullptr) apply_epilogue(acc, *store_as.finish, column);
  if (is_whole)
    each(acc, [&](f32v& y, int i, int j) { store(c + i * ldc + j, y); });
  else
    each(acc, [&](f32v& y, int i, int j) {
      j < kLast ? store(c + i * ldc + j, y) : store(c + i * ldc + j, y, last);
    });
}

// Tiles with few rows have registers left for 4 vectors of columns instead of 2, and need the extra
// independent accumulators to hide the FMA latency.
constexpr int kVectors = int(kPanel) / kLanes;  // vectors in a row of a panel
constexpr int kRegisters = SDX_VEC_BYTES == 64 ? 32 : 16;
template <class U>
constexpr bool kHasHalves = SDX_VEC_BYTES == 64 && __is_same(U, float);
template <int R>
constexpr int kWide = kVectors <= 2 || R * 4 + 5 > kRegisters ? 2 : 4;

template <int R, class U>
void tile(int64_t k, const U* a, const U* panel, int64_t width, float* c, int64_t ldc,
          const Store& store_as) {
  constexpr int kStep = kWide<R> * kLanes;
  const auto run = [&]<int W, bool has_half>(int column) {
    const int64_t left = width - column - (W + has_half - 1) * kLanes;
    strip<R, W, has_half>(k, a, panel + column, c + column, ldc, store_as, column,
                          Part{left < kLanes ? int(left) : kLanes});
  };
  int column = 0;
  for (; column + kStep - kLanes < width; column += kStep) {
    if constexpr (kHasHalves<U> && kWide<R> == 2)
      if (width - column <= kLanes + kLanes / 2) return run.template operator()<1, true>(column);
    run.template operator()<kWide<R>, false>(column);
  }
  for (; column < width; column += kLanes) run.template operator()<1, false>(column);
}

#if SDX_VEC_BYTES == 64
template <class U>
constexpr TileFn<U> kTiles[] = {tile<1, U>, tile<2, U>,  tile<3, U>,  tile<4, U>,
                                tile<5, U>, tile<6, U>,  tile<7, U>,  tile<8, U>,
                                tile<9, U>, tile<10, U>, tile<11, U>, tile<12, U>};
#elif SDX_VEC_BYTES == 32
template <class U>
constexpr TileFn<U> kTiles[] = {tile<1, U>, tile<2, U>, tile<3, U>,
                                tile<4, U>, tile<5, U>, tile<6, U>};
#else
template <class U>
constexpr TileFn<U> kTiles[] = {tile<1, U>, tile<2, U>, tile<3, U>, tile<4, U>};
#endif

constexpr bool kHasMaskedStores = SDX_VEC_BYTES == 64;

// All rows of one panel: `a` holds m rows of depth k. The m rows are cut into tiles of nearly equal
// height, since a last tile of one or two rows would run at a fraction of the speed.
template <class U>
void gemm_panel(int64_t m, int64_t k, const U* a, const U* panel, int64_t width, float* c,
                int64_t ldc, const Store& store) {
  const int64_t tiles = (m + kTileRows - 1) / kTileRows, height = m / tiles, higher = m % tiles;
  for (int64_t t = 0, row = 0, rows; t < tiles; ++t, row += rows) {
    rows = height + (t < higher ? 1 : 0);
    const TileFn<U> tile = kTiles<U>[rows - 1];
    float* to = c + row * ldc;
    Store own = store;
    if (own.add != nullptr) own.add += row * own.add_stride;
    if (kHasMaskedStores || width % kLanes == 0) {
      tile(k, a + row * kStride, panel, width, to, ldc, own);
      continue;
    }
    // Without masked stores a partial last panel goes through a buffer of whole vectors.
    float whole[kTileRows * kPanel];
    if (own.add != nullptr) {
      for (int64_t i = 0; i < rows; ++i)
        memcpy(whole + i * kPanel, own.add + i * own.add_stride, size_t(width) * sizeof(float));
      own.add = whole, own.add_stride = kPanel;
    }
    tile(k, a + row * kStride, panel, width, whole, kPanel, own);
    for (int64_t i = 0; i < rows; ++i)
      vloop(width, [&](int64_t j, auto lanes) {
        sdx::SDX_ISA::store(to + i * ldc + j, load(whole + i * kPanel + j), lanes);
      });
  }
}

// Panels outermost: a panel of one pass stays in L1/L2 while all rows of the block use it.
template <class U>
void all_passes(int64_t m, int64_t k, int64_t first, int64_t last, const U* a,
                const ColumnsOf<U>& b, const Target& to, const TileEpilogue& finish) {
  const int64_t passes = passes_of(k), height = b.depth > 0 ? b.depth : k;
  for (int64_t p = b.first; p < b.last; ++p) {
    const int64_t column = p * kPanel, left = b.n - column;
    const int64_t width = left < kPanel ? left : kPanel;
    TileEpilogue own = finish;
    float bias[kPanel];
    if (finish.bias != nullptr) {  // tiles load the bias in whole vectors: pad the last panel's
      own.bias = finish.bias + column;
      if (width < kPanel) {
        memset(bias, 0, sizeof bias);
        memcpy(bias, own.bias, size_t(width) * sizeof(float));
        own.bias = bias;
      }
    }
    float* c = to.c + (p - b.first) * kPanel;
    const float* start = finish.start == nullptr ? nullptr : finish.start + (c - to.c);
    for (int64_t pass = first; pass < last; ++pass) {
      const int64_t depth = part_begin(k, passes, pass), end = part_begin(k, passes, pass + 1);
      const bool complete = pass + 1 == passes && !finish.is_plain();
      gemm_panel(m, end - depth, a + (pass - first) * m * kStride,
                 b.packed + (p * height + depth) * kPanel, width, c, to.ldc,
                 {pass > 0 ? c : start, pass > 0 ? to.ldc : finish.start_stride,
                  complete ? &own : nullptr});
    }
  }
}

}  // namespace

void gemm_pass(int64_t m, int64_t k, const float* a, const float* panel, int64_t width,
               const Target& to, bool add) {
  gemm_panel(m, k, a, panel, width, to.c, to.ldc, {add ? to.c : nullptr, to.ldc, nullptr});
}

void gemm_passes(int64_t m, int64_t k, int64_t first, int64_t last, const float* a,
                 const Columns& b, const Target& to, const TileEpilogue& finish) {
  all_passes(m, k, first, last, a, b, to, finish);
}

void gemm_passes(int64_t m, int64_t k, int64_t first, int64_t last, const Bf16Pair* a,
                 const ColumnsOf<Bf16Pair>& b, const Target& to, const TileEpilogue& finish) {
  all_passes(m, k, first, last, a, b, to, finish);
}

}  // namespace sdx::SDX_ISA
