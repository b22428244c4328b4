// The micro-kernel of C = A^T B: kTileRows x 2 vectors of accumulators, as in tile.cc.
#include "kernels/matmul/transposed_tile.h"

namespace sdx::SDX_ISA {
namespace {

constexpr int kWide = 2;  // vectors of columns in registers

using TileFn = void (*)(int64_t k, const DepthRows& a, const DepthRows& b, float* c, int64_t ldc,
                        bool add);

// R rows by two vectors of columns.
template <int R>
void tile(int64_t k, const DepthRows& a, const DepthRows& b, float* c, int64_t ldc, bool add) {
  f32v acc[R][kWide] = {};
  const float *left = a.at, *right = b.at;
  for (int64_t p = 0; p < k; ++p, left += a.stride, right += b.stride) {
    f32v column[kWide];
#pragma GCC unroll 2
    for (int j = 0; j < kWide; ++j) column[j] = pinned(load(right + j * kLanes));
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
      for (int j = 0; j < kWide; ++j) acc[i][j] += left[i] * column[j];
  }
#pragma GCC unroll 16
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < kWide; ++j) {
      float* to = c + i * ldc + j * kLanes;
      store(to, add ? load(to) + acc[i][j] : acc[i][j]);
    }
}

#if SDX_VEC_BYTES == 64
constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>,  tile<5>,  tile<6>,
                             tile<7>, tile<8>, tile<9>, tile<10>, tile<11>, tile<12>};
#elif SDX_VEC_BYTES == 32
constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>};
#else
constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>};
#endif

}  // namespace

// The m rows are cut into tiles of nearly equal height: a last tile of a few rows would run at a
// fraction of the speed.
void gemm_transposed(int64_t m, int64_t k, const DepthRows& a, const DepthRows& b, int64_t width,
                     const Target& to, bool add) {
  const int64_t tiles = (m + kTileRows - 1) / kTileRows;
  for (int64_t column = 0; column < width; column += kWide * kLanes)
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = part_begin(m, tiles, t), rows = part_begin(m, tiles, t + 1) - row;
      kTiles[rows - 1](k, {a.at + row, a.stride}, {b.at + column, b.stride},
                       to.c + row * to.ldc + column, to.ldc, add);
    }
}

}  // namespace sdx::SDX_ISA
