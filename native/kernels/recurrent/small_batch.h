// Small-m matrix products (GEMV-like): up to four rows times packed weights. They run at memory
// bandwidth, so the weights are streamed once, in storage order; software prefetch makes it slower.
#pragma once

#include "kernels/matmul/tile.h"

namespace sdx::SDX_ISA {

// R rows of `a`, `stride` apart, times one panel. U independent accumulators per column, 8 in total
// with W vectors and R rows, hide the FMA latency that a single row would expose.
template <int R>
SDX_INLINE void multiply_panel(const float* a, int64_t stride, int64_t k, const float* panel,
                               float* c, int64_t ldc) {
  constexpr int W = kPanel / kLanes < 4 ? int(kPanel) / kLanes : 4;
  constexpr int U = 8 / (W * R) < 1 ? 1 : 8 / (W * R);
  for (int column = 0; column < kPanel; column += W * kLanes) {
    f32v accumulators[U][R][W] = {};
    const auto add = [&](int u, int64_t p) {
      const float* b = panel + p * kPanel + column;
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < W; ++j)
          accumulators[u][r][j] += a[r * stride + p] * load(b + j * kLanes);
    };
    int64_t p = 0;
    for (; p + U <= k; p += U)
#pragma GCC unroll 8
      for (int u = 0; u < U; ++u) add(u, p + u);
    for (; p < k; ++p) add(0, p);
    for (int u = 1; u < U; ++u)
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < W; ++j) accumulators[0][r][j] += accumulators[u][r][j];
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < W; ++j) store(c + r * ldc + column + j * kLanes, accumulators[0][r][j]);
  }
}

// Panels [first, last) of packed weights of depth k; `c` receives the first of them.
template <int R>
SDX_INLINE void multiply_panels(const float* a, int64_t stride, int64_t k, const float* weights,
                                int64_t first, int64_t last, float* c, int64_t ldc) {
  for (int64_t p = first; p < last; ++p, c += kPanel)
    multiply_panel<R>(a, stride, k, weights + p * kPanel * k, c, ldc);
}

}  // namespace sdx::SDX_ISA
